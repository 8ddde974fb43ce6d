"""Writes the CDI specs of the node when driver, GPUs or MIG devices have changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from partage.edges.cdi import toolkit
from partage.edges.cdi.spec import (
    Spec,
    device_files_spec,
    digest_of,
    imex_spec,
    inventory_digest,
    with_digest,
    with_missing_devices,
)
from partage.edges.read_file import read_regular
from partage.errors import HardwareError
from partage.model.gpu import Inventory
from partage.model.policy import Options
from partage.plan.serve.allocate_response import CDI_VENDOR
from partage.values import Frozen

DIRECTORY = Path("/var/run/cdi")
RETRY_S = 300.0
"""Seconds until nvidia-ctk is run again after it failed; until then the spec contains no libraries."""

_LARGEST_BYTES = 16 * 2**20
_IMEX = "imex-channel"


class CdiSpec(Frozen):
    """What containers get through CDI names now.

    complete: with libraries and hooks. reason: why not; empty if complete.
    classes:  besides ``gpu``, those that have a spec (``AllocateResponder``'s cdi_classes).
    """

    path: Path
    complete: bool
    reason: str = ""
    classes: tuple[str, ...] = ()


class _Kept(Frozen):
    digest: str
    spec: CdiSpec
    written_s: float
    retry: bool


class CdiSpecWriter:
    """The CDI specs of one node. One ``update`` at a time.

    directory: where the container runtime looks for specs. deadline_s: for each run of nvidia-ctk.
    """

    def __init__(self, directory: Path = DIRECTORY, deadline_s: float = toolkit.DEADLINE_S) -> None:
        self._directory = directory
        self._deadline_s = deadline_s
        self._kept: _Kept | None = None

    async def update(self, inventory: Inventory, options: Options, now_s: float) -> CdiSpec:
        """Write the specs that are missing or out of date.

        Raises HardwareError if the directory cannot be written.
        """
        ctk = "" if inventory.simulated else toolkit.find_toolkit(options.nvidia_ctk)
        wanted = inventory_digest(inventory, options, ctk)
        if self._kept is not None and self._is_valid(self._kept, wanted, now_s):
            return self._kept.spec
        spec = await self._write(inventory, options, ctk, wanted)
        self._kept = _Kept(wanted, spec, now_s, retry=bool(ctk) and not spec.complete)
        return spec

    def _is_valid(self, kept: _Kept, wanted: str, now_s: float) -> bool:
        unchanged = kept.digest == wanted and kept.spec.path.exists()
        return unchanged and (not kept.retry or now_s - kept.written_s < RETRY_S)

    async def _write(self, inventory: Inventory, options: Options, ctk: str, wanted: str) -> CdiSpec:
        """The valid specs: those that an earlier agent wrote, or new ones."""
        asked = _classes(options)
        if ctk and all(self._has_digest(name, wanted) for name in ("gpu", *asked)):
            return CdiSpec(self._path("gpu"), complete=True, classes=asked)
        ours = device_files_spec(inventory, options)
        if not ours["devices"]:
            return CdiSpec(self._path("gpu"), complete=False, reason="the node has no GPU that answers")
        if inventory.simulated:
            self._save("gpu", with_digest(ours, ""))
            reason = "a simulated node: device nodes only"
        else:
            reason = await self._write_gpus(ours, options, ctk, wanted)
        written = [name for name in asked if await self._write_class(name, options, ctk, wanted)]
        if len(written) < len(asked) and not reason:
            reason = f"no spec for {', '.join(name for name in asked if name not in written)}"
        return CdiSpec(self._path("gpu"), complete=not reason, reason=reason, classes=tuple(written))

    async def _write_gpus(self, ours: Spec, options: Options, ctk: str, wanted: str) -> str:
        """Write the spec of the GPUs. Returns why it is incomplete; empty if it is complete."""
        if not ctk:
            self._save("gpu", with_digest(ours, ""))
            return f"{options.nvidia_ctk} is not there: device nodes only, none of the driver's libraries"
        try:
            theirs = await toolkit.generate_spec(ctk, options, "gpu", self._deadline_s)
        except HardwareError as error:
            self._save("gpu", with_digest(ours, ""))
            return f"device nodes only, none of the driver's libraries: {error}"
        self._save("gpu", with_digest(with_missing_devices(theirs, ours), wanted))
        return ""

    async def _write_class(self, name: str, options: Options, ctk: str, wanted: str) -> bool:
        """Write the spec of another class. Returns whether there is one now."""
        if name == _IMEX:
            self._save(name, with_digest(imex_spec(options), wanted))
            return True
        if not ctk:
            return False
        try:
            spec = await toolkit.generate_spec(ctk, options, name, self._deadline_s)
        except HardwareError:
            return False
        self._save(name, with_digest(spec, wanted))
        return True

    # --- files --------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self._directory / f"{CDI_VENDOR}-{name}.json"

    def _has_digest(self, name: str, wanted: str) -> bool:
        """Whether a complete spec exists that was made from the same inventory and options."""
        try:
            return digest_of(json.loads(read_regular(self._path(name), _LARGEST_BYTES))) == wanted
        except (OSError, ValueError, RecursionError):
            return False  # missing or incomplete: it is written again

    def _save(self, name: str, spec: Spec) -> None:
        """Replace the file atomically: a runtime reads the old spec or the new one."""
        path = self._path(name)
        unfinished = path.with_suffix(".tmp")  # runtimes read .json and .yaml only
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with unfinished.open("w", encoding="utf-8") as file:
                json.dump(spec, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            unfinished.chmod(0o644)
            unfinished.replace(path)
        except OSError as error:
            raise HardwareError(f"the CDI spec {path} cannot be written: {error}") from error


def _classes(options: Options) -> tuple[str, ...]:
    """The classes besides ``gpu`` that the policy asks for."""
    wanted = {
        _IMEX: options.imex_channels,
        "gdrcopy": options.gdrcopy,
        "gds": options.gds,
        "mofed": options.mofed,
    }
    return tuple(name for name, on in wanted.items() if on)

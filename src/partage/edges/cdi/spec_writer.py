"""Writes the CDI specs of the node when driver, GPUs or MIG devices have changed. ``nvidia-ctk cdi generate``
knows what a driver needs in a container.

Beside each complete spec lies a file ``.digest``: of the spec, and of what it was made from. An annotation
would ask for CDI 0.6, which older runtimes refuse.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from partage.edges.cdi.host_spec import (
    DIRECTORY,
    STATIC_DIRECTORY,
    files_of_others,
    host_spec,
    library_error,
    with_libraries_of,
)
from partage.edges.cdi.spec import (
    Spec,
    applies_limits,
    device_files_spec,
    imex_spec,
    inventory_digest,
    spec_error,
    with_missing_devices,
    without_second_injection,
)
from partage.edges.host.own_task import end_group
from partage.edges.host.read_file import read_regular
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout
from partage.model.gpu import Driver, Inventory
from partage.model.policy import Options
from partage.plan.serve.allocate_response import CDI_VENDOR
from partage.values import Frozen

DEADLINE_S = 30.0
"""It looks for dozens of libraries and queries NVML: seconds on a busy node."""


def find_toolkit(name: str) -> str:
    """Absolute path of the executable ``name`` (a path, or a name on PATH); empty if there is none."""
    found = shutil.which(name)
    return os.path.abspath(found) if found else ""  # noqa: PTH100 - argv[0] matters, so links are not resolved


async def generate_spec(
    ctk: str, options: Options, cdi_class: str = "gpu", deadline_s: float = DEADLINE_S
) -> Spec:
    """The spec that it writes for one class of the vendor ``CDI_VENDOR``.

    Raises HardwareTimeout, DriverUnavailable (it failed, or wrote no spec), HardwareError (it cannot be
    run).
    """
    with tempfile.TemporaryDirectory(prefix="partage-cdi-") as folder:
        # Not in the CDI directory: runtimes would read the unfinished file.
        output = Path(folder) / "spec.json"
        await _run([ctk, *_arguments(options, cdi_class, output)], deadline_s)
        return _read(output, f"{CDI_VENDOR}/{cdi_class}")


def _arguments(options: Options, cdi_class: str, output: Path) -> list[str]:
    arguments = [
        "cdi",
        "generate",
        "--format=json",
        f"--output={output}",
        f"--vendor={CDI_VENDOR}",
        f"--class={cdi_class}",
        f"--device-name-strategy={options.device_ids}",
        f"--nvidia-ctk-path={options.nvidia_ctk}",
    ]
    if cdi_class != "gpu":
        arguments.append(f"--mode={cdi_class}")
    if options.driver_root != "/":
        arguments.append(f"--driver-root={options.driver_root}")
    if options.dev_root != options.driver_root:
        arguments.append(f"--dev-root={options.dev_root}")
    return arguments


async def _run(command: list[str], deadline_s: float) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, start_new_session=True
        )
    except OSError as error:
        raise HardwareError(f"{command[0]} cannot be run: {error}") from error
    try:
        async with asyncio.timeout(deadline_s):
            _, errors = await process.communicate()
    except TimeoutError as error:
        raise HardwareTimeout(f"{command[0]} did not end within {deadline_s:g} s") from error
    finally:
        await end_group(process)
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise DriverUnavailable(f"{command[0]} failed ({process.returncode}): {last[0][:400]}")


def _read(output: Path, kind: str) -> Spec:
    try:
        content = read_regular(output, _LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise DriverUnavailable(f"the spec that nvidia-ctk wrote has more than {_LARGEST_BYTES:,} bytes")
        spec = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise DriverUnavailable(f"nvidia-ctk wrote no spec that can be read: {error}") from error
    wrong = spec_error(spec, kind)
    if wrong:
        raise DriverUnavailable(f"nvidia-ctk wrote a spec, but {wrong}")
    found: Spec = spec
    return found


RETRY_S = 300.0
"""Seconds until nvidia-ctk is run again after it failed; until then the spec contains no libraries."""

_LARGEST_BYTES = 16 * 2**20
_IMEX = "imex-channel"


class CdiSpec(Frozen):
    """What containers get through CDI names now.

    complete: with libraries and hooks. reason: why not; empty if complete.
    classes:  besides ``gpu``, those that have a spec (``AllocateResponder``'s cdi_classes).
    bare: containers get their GPUs without the driver's libraries, and should.
    nvidia_limits: NVIDIA's hook of memory limits comes with the GPUs.
    """

    path: Path
    complete: bool
    reason: str = ""
    classes: tuple[str, ...] = ()
    bare: bool = False
    nvidia_limits: bool = False


class _Kept(Frozen):
    digest: str
    spec: CdiSpec
    written_s: float
    retry: bool


class CdiSpecWriter:
    """The CDI specs of one node. One ``update`` at a time.

    directory: where the container runtime looks for specs. deadline_s: for each run of nvidia-ctk.
    static: where else specs of the node may be. What nvidia-ctk says counts; where it is not there, what the
    node's own toolkit has written.
    """

    def __init__(
        self,
        directory: Path = DIRECTORY,
        deadline_s: float = DEADLINE_S,
        static: Path = STATIC_DIRECTORY,
    ) -> None:
        self._directory = directory
        self._deadline_s = deadline_s
        self._others = (static, directory)
        self._kept: _Kept | None = None

    async def update(self, inventory: Inventory, options: Options, now_s: float) -> CdiSpec:
        """Write the specs that are missing or out of date.

        Raises HardwareError if the directory cannot be written.
        """
        ctk = "" if inventory.simulated else find_toolkit(options.nvidia_ctk)
        source = ctk or ("" if inventory.simulated else repr(files_of_others(self._others)))
        wanted = inventory_digest(inventory, options, source)
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
        if all(self._has_digest(name, wanted) for name in ("gpu", *asked)):
            return CdiSpec(
                self._path("gpu"), complete=True, classes=asked, nvidia_limits=self._applies_limits()
            )
        ours = device_files_spec(inventory, options)
        if not ours["devices"]:
            return CdiSpec(self._path("gpu"), complete=False, reason="the node has no GPU that answers")
        if inventory.simulated:
            self._save("gpu", ours)
            reason = "a simulated node: device nodes only"
        else:
            reason = await self._write_gpus(ours, inventory, options, ctk, wanted)
        bare = bool(reason) and not inventory.simulated
        written = [name for name in asked if await self._write_class(name, options, ctk, wanted)]
        if len(written) < len(asked) and not reason:
            reason = f"no spec for {', '.join(name for name in asked if name not in written)}"
        return CdiSpec(
            self._path("gpu"),
            complete=not reason,
            reason=reason,
            classes=tuple(written),
            bare=bare,
            nvidia_limits=self._applies_limits(),
        )

    async def _write_gpus(
        self, ours: Spec, inventory: Inventory, options: Options, ctk: str, wanted: str
    ) -> str:
        """Write the spec of the GPUs. Returns why it is incomplete; empty if it is complete."""
        driver = inventory.driver.version if isinstance(inventory.driver, Driver) else ""
        why = f"{options.nvidia_ctk} is not there"
        if ctk:
            try:
                theirs = await generate_spec(ctk, options, "gpu", self._deadline_s)
                why = f"{ctk} wrote a spec, but {wrong}" if (wrong := library_error(theirs, driver)) else ""
            except HardwareError as error:
                why = str(error)
            if not why:
                self._save("gpu", with_missing_devices(theirs, ours), wanted)
                return ""
        found, missing = await asyncio.to_thread(host_spec, self._others, driver)
        if found is not None:
            self._save("gpu", with_libraries_of(found, ours), wanted)
            return ""
        self._save("gpu", ours)
        return f"device nodes only, none of the driver's libraries: {why}, and {missing}"

    async def _write_class(self, name: str, options: Options, ctk: str, wanted: str) -> bool:
        """Write the spec of another class. Returns whether there is one now."""
        if name == _IMEX:
            self._save(name, imex_spec(options), wanted)
            return True
        if not ctk:
            return False
        try:
            spec = await generate_spec(ctk, options, name, self._deadline_s)
        except HardwareError:
            return False
        self._save(name, spec, wanted)
        return True

    # --- files --------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        return self._directory / f"{CDI_VENDOR}-{name}.json"

    def _has_digest(self, name: str, wanted: str) -> bool:
        """Whether a complete spec exists that was made from the same inventory and options."""
        path = self._path(name)
        try:
            spec, digest = (read_regular(file, _LARGEST_BYTES) for file in (path, _digest_file(path)))
        except OSError:
            return False  # missing or incomplete: it is written again
        return digest.decode("ascii", "replace") == _digest(spec, wanted)

    def _applies_limits(self) -> bool:
        """As it is written now."""
        try:
            return applies_limits(json.loads(read_regular(self._path("gpu"), _LARGEST_BYTES)))
        except (OSError, ValueError):
            return False

    def _save(self, name: str, spec: Spec, wanted: str = "") -> None:
        """Replace the spec: a runtime reads the old one or the new one.

        wanted: digest of what it was made from; empty for an incomplete spec, which is written again as soon
        as possible.
        """
        path = self._path(name)
        content = json.dumps(without_second_injection(spec), indent=2).encode()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            _replace(path, content)
            if wanted:
                _replace(_digest_file(path), _digest(content, wanted).encode())
            else:
                _digest_file(path).unlink(missing_ok=True)
        except OSError as error:
            raise HardwareError(f"the CDI spec {path} cannot be written: {error}") from error


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".digest")  # runtimes read .json and .yaml only


def _digest(spec: bytes, wanted: str) -> str:
    return hashlib.sha256(wanted.encode() + spec).hexdigest()


def _replace(path: Path, content: bytes) -> None:
    """Write the file atomically."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.chmod(0o644)
    unfinished.replace(path)


def _classes(options: Options) -> tuple[str, ...]:
    """The classes besides ``gpu`` that the policy asks for."""
    wanted = {
        _IMEX: options.imex_channels,
        "gdrcopy": options.gdrcopy,
        "gds": options.gds,
        "mofed": options.mofed,
    }
    return tuple(name for name, on in wanted.items() if on)

"""Runs ``nvidia-ctk cdi generate``, which knows what a driver needs in a container."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from partage.edges.cdi.spec import Spec, spec_error
from partage.edges.host.own_task import end_group
from partage.edges.host.read_file import read_regular
from partage.errors import DriverUnavailable, HardwareError, HardwareTimeout
from partage.model.policy import Options
from partage.plan.serve.allocate_response import CDI_VENDOR

DEADLINE_S = 30.0
"""It looks for dozens of libraries and queries NVML: seconds on a busy node."""

_LARGEST_BYTES = 16 * 2**20


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

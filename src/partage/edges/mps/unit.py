"""The one template from which every MPS daemon's systemd unit is made. Only the device's UUID varies.

Limits reach the daemon by a file at a fixed place, so that no word of a request is in the call to systemd.
The properties are those that systemd 236 and newer take from systemd-run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partage.edges.mps.launch import SHARED_MEMORY
from partage.edges.mps.paths import DaemonPaths, NodeProgram
from partage.errors import InputError
from partage.model.ids import DeviceUuid
from partage.model.mps import is_device_uuid

_FIXED = (
    "--quiet",
    "--collect",  # the unit disappears when the daemon ends, also after a failure
    "--service-type=forking",
    "--property=UMask=0022",  # clients of other users open what the daemon makes
    "--property=LimitNOFILE=1048576",
    "--property=LimitMEMLOCK=infinity",
    "--property=LimitCORE=0",  # a core file would have the memory of tenants
)
_OF_THE_NODE = ("/proc", "/dev", "/sys")


def unit_name(device: DeviceUuid) -> str:
    """The daemon's unit. Raises InputError for anything but a UUID."""
    if not is_device_uuid(device):
        raise InputError(f"{device[:80]!r} is not the UUID of a GPU or MIG device")
    return f"partage-mps-{device}.service"


def unit_command(
    node: NodeProgram, options: Sequence[str], paths: DaemonPaths, *, own_shm: bool
) -> list[str]:
    """Arguments of systemd-run. options: of the control program, constants of Partage."""
    changed = node.root.name != ""
    binds = [f"{path}:{_below(node, path)}" for path in (*_OF_THE_NODE, str(paths.home)) if changed]
    if own_shm:
        binds.append(f"{paths.shm}:{_below(node, SHARED_MEMORY)}")
    variables = {**node.environment, "CUDA_VISIBLE_DEVICES": paths.device}
    chroot = ["chroot", str(node.root)] if changed else []
    return [
        *_FIXED,
        f"--unit={unit_name(paths.device)}",
        f"--description=MPS control daemon of {paths.device}",
        f"--property=EnvironmentFile={paths.unit_limits}",
        f"--property=StandardOutput=file:{paths.start_log}",
        "--property=StandardError=inherit",
        *(f"--property=BindPaths={bind}" for bind in binds),
        *(f"--setenv={name}={value}" for name, value in variables.items()),
        "--",
        *chroot,
        str(node.program),
        "-d",
        *options,
    ]


def write_limits(paths: DaemonPaths, limits: Mapping[str, str]) -> None:
    """Write the variables that the unit reads, and empty its log. Raises OSError."""
    paths.start_log.write_bytes(b"")
    text = "".join(f"{name}={value}\n" for name, value in limits.items())
    paths.unit_limits.write_text(text, encoding="ascii")


def _below(node: NodeProgram, path: str) -> str:
    return str(node.root / path.lstrip("/"))

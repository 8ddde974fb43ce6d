"""``devices.json``: what stands behind Slurm's indexes. ``partage slurm config`` writes it, the prolog reads
it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from partage.codec.values import CodecError, decode, encode
from partage.errors import InputError, wrong_input
from partage.slurm.host.root_directory import read_root_file
from partage.slurm.model import WRITTEN_BY, NodeDevices

DEVICES_FILE = "devices.json"
DEFAULT_PATH = "/etc/partage/slurm/devices.json"
MARK = f'{{\n  "writtenBy": "{WRITTEN_BY}"'
"""How a file begins that Partage wrote."""

_LARGEST_BYTES = 4 * 2**20


def devices_text(devices: NodeDevices) -> str:
    """The file's content."""
    return msgspec.json.format(encode(devices), indent=2).decode() + "\n"


def read_devices(path: Path) -> NodeDevices:
    """The file, which only root can have written. Raises InputError."""
    try:
        devices = decode(NodeDevices, read_root_file(path, _LARGEST_BYTES))
    except OSError as error:
        raise _wrong(error.filename or path, f"cannot be read: {error.strerror}") from error
    except CodecError as error:
        raise _wrong(path, f"is no file of 'partage slurm config': {error}") from error
    if [device.index for device in devices.devices] != list(range(len(devices.devices))):
        raise _wrong(path, "has indexes that are not 0, 1, 2 and so on")
    return devices


def _wrong(path: Path | str, message: str) -> InputError:
    hint = "write it with gres.conf: partage slurm config --output DIR"
    return wrong_input(path, message, hint)

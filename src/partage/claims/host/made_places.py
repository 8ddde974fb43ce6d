"""Where MIG devices were made for claims, ``claim-places.json``: those and no others are destroyed again.

A place is written down before anything is made there, so that it is known after ``kill -9`` at any moment.
Instances end with a boot.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from msgspec import json

from partage.codec.values import CodecError, decode, encode
from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file, set_aside
from partage.errors import HardwareError
from partage.model.ids import GpuUuid
from partage.model.layout import LayoutItem
from partage.text import printable, shortened
from partage.values import Frozen

PLACES_FILE = "claim-places.json"
_VERSION = "partage-claim-places/1"
_LIMIT_BYTES = 1024 * 1024
_LONGEST = 200


class MadePlace(Frozen, order=True):
    """item: the MIG device with its start, ``3g.40gb@4``. boot_id: of the node when it was made. Raises
    ValueError for an item of another form.
    """

    gpu: GpuUuid
    item: str
    boot_id: str

    def __post_init__(self) -> None:
        LayoutItem.parse(self.item)


class _PlacesDocument(Frozen):
    version: str
    places: tuple[MadePlace, ...]


class MadePlaces:
    """The places in a directory. Both calls block (the second flushes the disk)."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / PLACES_FILE

    def load(self) -> tuple[frozenset[MadePlace], str]:
        """What is written there, and why it cannot be used; empty if it can. Never raises.

        A file that is damaged is set aside: then nothing that is there counts as made for a claim.
        """
        try:
            content = read_regular(self._file, _LIMIT_BYTES + 1)
        except FileNotFoundError:
            return frozenset(), ""
        except OSError as error:
            return frozenset(), f"cannot read {self._file}: {error.strerror}"
        try:
            return _decoded(content), ""
        except CodecError as error:
            said = shortened(printable(str(error)), _LONGEST)
            return frozenset(), f"{self._file} cannot be used: {said}; {set_aside(self._file)}"

    def save(self, places: Collection[MadePlace]) -> None:
        """Replace the file. Raises HardwareError; then the old one is still there."""
        try:
            content = json.format(encode(_PlacesDocument(_VERSION, tuple(sorted(places)))), indent=1)
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file, content)
        except OSError as error:
            raise HardwareError(
                f"where MIG devices are made cannot be written to {self._file}: {error.strerror}",
                "nothing was changed; make room on the disk, or mend the directory",
            ) from error


def _decoded(content: bytes) -> frozenset[MadePlace]:
    """Raises CodecError."""
    if len(content) > _LIMIT_BYTES:
        raise CodecError(f"it is longer than {_LIMIT_BYTES} bytes")
    document = decode(_PlacesDocument, content, strict=False)
    if document.version != _VERSION:
        raise CodecError(f"its version is {document.version[:40]!r}, not {_VERSION!r}")
    return frozenset(document.places)

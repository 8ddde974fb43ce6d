"""The record of a claim in its CDI file: from there it is rebuilt when its own file is damaged.

An annotation of the spec, which no container gets.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from partage.claims.decide.cdi import ClaimCdi
from partage.claims.model.names import OWN_NAMES
from partage.claims.model.record import ClaimRecord, ClaimState
from partage.codec.values import CodecError, decode, encode
from partage.values import Frozen

_KEY = f"{OWN_NAMES.driver}/record"
_VERSION = "0.6.0"
"""The lowest CDI version with annotations."""

_MOST_BYTES = 240 * 1024
"""CDI's own loader refuses a spec with more than 256 KiB of annotations."""


class _Annotated(Frozen):
    annotations: Mapping[str, str] | None = None


def with_record(cdi: ClaimCdi, record: ClaimRecord) -> ClaimCdi:
    """The spec with the record of its claim, where there is room: with up to 4,000 units there is."""
    written = encode(record).decode()
    if len(written.encode()) > _MOST_BYTES:
        return cdi
    return replace(cdi, spec={**cdi.spec, "cdiVersion": _VERSION, "annotations": {_KEY: written}})


def record_in(spec: bytes, uid: str) -> ClaimRecord | None:
    """The record that was written into a CDI file of this claim; None: there is none that can be used."""
    try:
        annotations = decode(_Annotated, spec, strict=False).annotations or {}
        record = decode(ClaimRecord, annotations.get(_KEY, "").encode(), strict=False)
    except (CodecError, UnicodeEncodeError):
        return None
    fits = record.claim.uid == uid and record.state is ClaimState.PREPARED
    return record if fits else None

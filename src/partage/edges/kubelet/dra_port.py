"""The port between the server of the DRA driver and its users, without gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from partage.model.claim import ClaimRef, DeviceCondition, PreparedDevice
from partage.values import Frozen


class ConditionList(Frozen):
    """The health of all devices. version increases with every change of rows."""

    version: int
    rows: tuple[DeviceCondition, ...]


class DraHandler(Protocol):
    """Answers the kubelet. A claim that cannot be served gets a sentence, for the events of its pods."""

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """By UID of the claim: its devices, or why it has none now; the kubelet asks again."""
        ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        """By UID of the claim: why it cannot be taken back now; empty: it is, or was never prepared."""
        ...

    def conditions(self) -> ConditionList:
        """The health of all devices of the pool."""
        ...

    async def changed(self, seen_version: int) -> None:
        """Return when the version of ``conditions`` is no longer seen_version."""
        ...

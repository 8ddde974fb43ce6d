"""What the containers use together that have a ResourceClaim in common: a claim is one holder. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from partage.model.ids import ContainerId, DeviceUuid
from partage.values import Frozen


class ClaimMember(Frozen):
    """A container that uses a device of which it holds shares by these claims, ``namespace/name`` each."""

    device: DeviceUuid
    container: ContainerId
    claims: frozenset[str]
    used_bytes: int


class ClaimUse(Frozen):
    """What all containers use together of one device that have a claim in common, and what their claims have.

    containers: how many of them use the device.
    """

    claims: tuple[str, ...]
    containers: int
    used_bytes: int
    granted_bytes: int

    @property
    def over(self) -> bool:
        """They use more than their claims have."""
        return self.used_bytes > self.granted_bytes


def claim_uses(
    members: Iterable[ClaimMember], granted_bytes: Mapping[tuple[DeviceUuid, str], int]
) -> dict[tuple[DeviceUuid, ContainerId], ClaimUse]:
    """By device and container; a container that uses a device alone is left out.

    granted_bytes: of each claim on each device. Containers A and B with a claim in common, and B and C with
    another one, are one group: nobody can tell by which of its claims B uses memory.
    """
    groups: list[list[ClaimMember]] = []
    for member in members:
        same = [group for group in groups if any(_common(other, member) for other in group)]
        groups = [group for group in groups if group not in same]
        groups.append([*(other for group in same for other in group), member])
    return {
        (member.device, member.container): use
        for group in groups
        if len(group) > 1
        for use in [_use(group, granted_bytes)]
        for member in group
    }


def _common(one: ClaimMember, other: ClaimMember) -> bool:
    return one.device == other.device and not one.claims.isdisjoint(other.claims)


def _use(group: list[ClaimMember], granted_bytes: Mapping[tuple[DeviceUuid, str], int]) -> ClaimUse:
    claims = sorted(frozenset[str]().union(*(member.claims for member in group)))
    return ClaimUse(
        claims=tuple(claims),
        containers=len(group),
        used_bytes=sum([member.used_bytes for member in group]),
        granted_bytes=sum([granted_bytes.get((group[0].device, claim), 0) for claim in claims]),
    )

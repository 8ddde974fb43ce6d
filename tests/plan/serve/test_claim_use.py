"""Containers that have a claim in common are one group, whatever the order in which they are seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partage.model.ids import ContainerId, GpuUuid
from partage.plan.serve.watchdog import ClaimMember, ClaimUse, claim_uses

GPU, OTHER = GpuUuid("GPU-0"), GpuUuid("GPU-1")


def member(container: str, claims: str, used: int = 1, device: GpuUuid = GPU) -> ClaimMember:
    return ClaimMember(device, ContainerId(container), frozenset(claims), used)


@given(st.permutations([member("x", "a", 5), member("y", "ab", 3), member("z", "b", 2)]))
def test_claims_that_meet_in_a_container_count_together(members: list[ClaimMember]) -> None:
    uses = claim_uses(members, {(GPU, "a"): 4, (GPU, "b"): 5})
    expected = ClaimUse(("a", "b"), 3, 10, 9)
    assert uses == {(GPU, one.container): expected for one in members}
    assert expected.over


def test_devices_are_counted_apart() -> None:
    members = [member("x", "a", 5), member("x", "a", 5, OTHER), member("y", "a", 1, OTHER)]
    uses = claim_uses(members, {(GPU, "a"): 8, (OTHER, "a"): 6})
    assert {key: (use.used_bytes, use.over) for key, use in uses.items()} == {
        (OTHER, "x"): (6, False),
        (OTHER, "y"): (6, False),
    }

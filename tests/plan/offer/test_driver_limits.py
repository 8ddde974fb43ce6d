"""Shares of a time-sliced GPU that the driver limits: when they are promised, and why not."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import Unsatisfiable
from partage.model.driver_limit import (
    DriverLimit,
    LimitBackend,
    LimitObstacle,
    LimitSetter,
    LimitSupport,
    LimitWay,
)
from partage.model.gpu import Gpu
from partage.model.policy import (
    AllDevices,
    Exclusive,
    GpuEntry,
    MemoryUnits,
    Mps,
    Policy,
    Sharing,
    SharingClient,
    TimeSlicing,
)
from partage.model.share import DeviceOffer, Guarantee, driver_limits
from partage.plan.offer.advertise import advertise
from partage.plan.offer.caveats import caveats
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.offer.driver_limits import wants_limits, why_unlimited
from partage.units import GIB, MIB
from tests.plan.offers import assignment, gpu, node, target

ABLE = LimitSupport(LimitBackend.DMEM)
FOUR = TimeSlicing(4, limited=True)


def able(index: int = 0, limits: LimitSupport | None = ABLE) -> Gpu:
    return replace(gpu(index), limits=limits)


def offered(sharing: TimeSlicing, of: Gpu, *, mig: int | None = None, **more: object) -> list[DeviceOffer]:
    offer = advertise(
        assignment(target(of, sharing, mig=mig, **more)), node(of, driver="615.71.09"), Policy(source="p")
    )
    return [row for rows in offer.values() for row in rows]


@pytest.mark.parametrize(
    ("sharing", "wanted"), [(FOUR, True), (TimeSlicing(4), False), (Exclusive(), False), (Mps(2), False)]
)
def test_only_a_policy_with_the_word_wants_limits(sharing: Sharing, wanted: bool) -> None:
    entries = tuple(GpuEntry("gpus[0]", AllDevices(), kind) for kind in (Exclusive(), sharing))
    assert wants_limits(Policy(entries)) is wanted


def test_equal_shares_are_hard_where_the_node_can() -> None:
    (row,) = offered(FOUR, able())
    assert (row.guarantee, row.limit_bytes, row.memory_bytes) == (Guarantee.HARD, 20 * GIB, 20 * GIB)


def test_without_the_word_nothing_changes() -> None:
    (row,) = offered(TimeSlicing(4), able())
    assert (row.guarantee, row.limit_bytes) == (Guarantee.NONE, None)


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("limits", [None, *(LimitSupport(obstacle=obstacle) for obstacle in LimitObstacle)])
def test_on_a_node_that_cannot_the_shares_have_no_limit(limits: LimitSupport | None, guard: bool) -> None:
    (row,) = offered(FOUR, able(limits=limits), guard=guard)
    assert row.limit_bytes is None
    assert row.guarantee is (Guarantee.ADVISORY if guard else Guarantee.NONE)


def test_mig_devices_have_none() -> None:
    (row,) = offered(TimeSlicing(2, limited=True), replace(gpu(0, migs=1), limits=ABLE), mig=0)
    assert (row.limit_bytes, row.guarantee) == (None, Guarantee.NONE)


def test_unequal_shares_have_limits_of_their_own() -> None:
    clients = (SharingClient("big", 40 * GIB), SharingClient("small", 8 * GIB), SharingClient("rest"))
    rows = offered(TimeSlicing(3, clients=clients, limited=True), able())
    assert [(row.resource, row.limit_bytes, row.first, row.count, row.replicas) for row in rows] == [
        ("nvidia.com/gpu.big", 40 * GIB, 0, 1, 3),
        ("nvidia.com/gpu.small", 8 * GIB, 1, 1, 3),
        ("nvidia.com/gpu.rest", 32 * GIB, 2, 1, 3),
    ]
    assert {(row.guarantee, row.threads_percent, row.pipe) for row in rows} == {(Guarantee.HARD, None, "")}


def test_clients_that_want_too_much_are_refused_by_their_name() -> None:
    clients = (SharingClient("a", 60 * GIB), SharingClient("b", 30 * GIB))
    with pytest.raises(Unsatisfiable) as caught:
        offered(TimeSlicing(2, clients=clients), able())
    (problem,) = caught.value.problems
    assert problem.path == "gpus[0].time-slicing.clients"
    assert "the time-slicing clients want 90 GiB of the 80 GiB that it has" in problem.message


@pytest.mark.parametrize(
    "sharing",
    [
        TimeSlicing(81, limited=True),
        TimeSlicing(2, clients=(SharingClient("a"), SharingClient("b", 1023 * MIB)), limited=True),
        TimeSlicing(0, units=MemoryUnits(512 * MIB), limited=True),
    ],
)
def test_shares_below_one_gib_are_refused(sharing: TimeSlicing) -> None:
    with pytest.raises(Unsatisfiable, match="too small for 'memory: hard'"):
        offered(sharing, able())
    assert offered(replace(sharing, limited=False), able())


def test_what_a_container_holds_adds_up_for_each_gpu() -> None:
    (small,) = offered(TimeSlicing(0, units=MemoryUnits(GIB), limited=True), able())
    (large,) = offered(TimeSlicing(2, limited=True), able(1))
    (free,) = offered(TimeSlicing(2), able(2))
    assert driver_limits((row.gpu, row.limit_bytes) for row in (small, small, large, free)) == (
        DriverLimit(small.gpu, 2 * GIB),
        DriverLimit(large.gpu, 40 * GIB),
    )


@pytest.mark.parametrize(
    ("obstacle", "driver", "said"),
    [
        (LimitObstacle.DRIVER, "595.45.04", "driver branch 595 has no memory limits .* take branch 615"),
        (LimitObstacle.CGROUP_V1, "615.71.09", "no cgroup v2 at /sys/fs/cgroup: boot it with"),
        (LimitObstacle.MIG, "615.71.09", "in MIG mode, where the driver takes no limits: write mig:"),
        (LimitObstacle.MODE, "615.71.09", "RmMemacctMode is 0, .* leave it out"),
        (LimitObstacle.KERNEL, "615.71.09", "RmMemacctMode is 2, .* take kernel 6.14"),
        (LimitObstacle.SILENT, "615.71.09", "does not answer for the node's own cgroup, and dmem.capacity"),
    ],
)
def test_every_reason_says_what_to_change(obstacle: LimitObstacle, driver: str, said: str) -> None:
    of = able(limits=LimitSupport(obstacle=obstacle))
    assert re.search(said, why_unlimited(of, node(of, driver=driver)))


def test_a_node_that_can_needs_no_reason() -> None:
    assert why_unlimited(able(), node(able(), driver="615.71.09")) == ""


UNSET = LimitSetter(None, "the hook is not compiled: run build")
BY_NVIDIA = LimitSetter(LimitWay.NVIDIA, "/var/lib/partage/bin is mounted noexec")


@pytest.mark.parametrize(
    ("by", "guarantee", "limited"),
    [
        (None, Guarantee.HARD, True),
        (LimitSetter(LimitWay.HOOK), Guarantee.HARD, True),
        (LimitSetter(LimitWay.SPANK), Guarantee.HARD, True),
        (BY_NVIDIA, Guarantee.ADVISORY, True),
        (UNSET, Guarantee.NONE, False),
    ],
)
def test_what_sets_the_limits_decides_what_is_promised(
    by: LimitSetter | None, guarantee: Guarantee, limited: bool
) -> None:
    inventory = replace(node(able(), driver="615.71.09"), limits_by=by)
    offer = advertise(assignment(target(able(), FOUR)), inventory, Policy(source="p"))
    ((row,),) = offer.values()
    assert (row.guarantee, row.limited) == (guarantee, limited)


def _said(by: LimitSetter) -> tuple[str, str]:
    inventory = replace(node(able(), driver="615.71.09"), limits_by=by)
    state = resolve(parse_policy(ENTRY, "p").policy, inventory, geometry_of)
    found = caveats(state.policy, state.inventory, state.offer, ctk_found=True)
    return " ".join(problem.message for problem in state.warnings), " ".join(one.sentence for one in found)


def test_what_sets_them_is_told() -> None:
    warned, said = _said(UNSET)
    assert "nothing can set it before a container or job starts: the hook is not compiled" in warned
    assert "limit of" not in said
    assert "'advisory', because a tenant's own variables may be what it sets" in _said(BY_NVIDIA)[1]
    assert (
        "comes by CDI: where the container runtime has CDI switched off"
        in _said(LimitSetter(LimitWay.HOOK))[1]
    )


# --- what an operator is told -----------------------------------------------------------------------

ENTRY = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 4, memory: hard}}]"


def desired(*gpus: Gpu, driver: str = "615.71.09", text: str = ENTRY) -> DesiredState:
    return resolve(parse_policy(text, "p").policy, node(*gpus, driver=driver), geometry_of)


def test_a_node_that_cannot_is_a_warning_that_names_gpus_and_what_to_change() -> None:
    off = LimitSupport(obstacle=LimitObstacle.MODE)
    (problem,) = desired(able(0), able(1, off), able(2, off)).warnings
    assert (problem.severity, problem.path) == ("warning", "gpus[0].time-slicing.memory")
    assert problem.message.startswith("GPUs 1-2: no limit holds containers to their shares")
    assert "RmMemacctMode is 0" in problem.message


def test_an_old_branch_is_the_reason_also_where_nobody_looked() -> None:
    (problem,) = desired(gpu(0), driver="580.95.05").warnings
    assert "driver branch 580 has no memory limits for cgroups: take branch 615" in problem.message


def test_limit_and_what_is_left_of_it_are_told_apart() -> None:
    state = desired(able())
    assert not state.warnings
    found = caveats(state.policy, state.inventory, state.offer, ctk_found=True)
    said = [caveat.sentence for caveat in found if "limit" in caveat.sentence]
    assert said[0].startswith("Of a limit of 20 GiB a container can use 19 GiB to 19.8 GiB for data")
    assert "do not count managed memory" in said[1]
    assert said[2].startswith("Whether these limits can be set before a container starts is not known")
    plain = desired(able(), text=ENTRY.replace(", memory: hard", ""))
    assert not any(
        "limit of" in caveat.sentence
        for caveat in caveats(plain.policy, plain.inventory, plain.offer, ctk_found=True)
    )

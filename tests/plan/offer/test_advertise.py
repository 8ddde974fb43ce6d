"""What a node offers: memory, threads, guarantees, names; and what cannot be offered."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.errors import InputError, PartageError, Unsatisfiable
from partage.model.geometry import MigProfile, Placement
from partage.model.gpu import Inventory
from partage.model.ids import share_id
from partage.model.layout import LayoutItem
from partage.model.policy import MemoryUnits, Mps, Policy, Sharing, SharingClient, TimeSlicing
from partage.model.share import DeviceOffer, Guarantee, resources_of
from partage.model.strategy import Interval, Strategy
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import Assignment
from partage.plan.offer.gpu_devices import PlannedDevice, Target
from partage.units import GIB, MIB
from tests.examples import examples
from tests.plan.offers import NAME, assignment, gpu, node, target

_POLICY = Policy(source="policy.yaml")


def _offer(*targets: Target, inventory: Inventory | None = None) -> list[DeviceOffer]:
    inventory = inventory or node(*(one.gpu for one in targets))
    offer = advertise(assignment(*targets), inventory, _POLICY)
    return [one for rows in offer.values() for one in rows]


def _problems(
    error: type[PartageError], *targets: Target, driver: str = "550.163.01"
) -> list[tuple[str, str, str]]:
    with pytest.raises(error) as caught:
        _offer(*targets, inventory=node(*(one.gpu for one in targets), driver=driver))
    assert {problem.file for problem in caught.value.problems} == {"policy.yaml"}
    return [(problem.path, problem.message, problem.hint) for problem in caught.value.problems]


# --- one device -------------------------------------------------------------------------------


def test_a_whole_gpu_is_one_share_with_all_memory_for_certain() -> None:
    (one,) = _offer(target(gpu(3)))
    assert one == DeviceOffer(
        device=gpu(3).uuid,
        gpu=gpu(3).uuid,
        index="3",
        gpu_index=3,
        resource=NAME,
        strategy=Strategy.EXCLUSIVE,
        shared=Strategy.EXCLUSIVE,
        replicas=1,
        memory_bytes=80 * GIB,
        guarantee=Guarantee.HARD,
        numa_node=0,
        nodes=("/dev/nvidia13",),
    )
    assert one.share_ids == (share_id(gpu(3).uuid),)


def test_time_slices_share_the_memory_evenly_and_guarantee_nothing() -> None:
    (one,) = _offer(target(gpu(0), TimeSlicing(3, Interval.SHORT)))
    assert (one.shared, one.replicas, one.count) == (Strategy.TIME_SLICING, 3, 3)
    assert one.memory_bytes == 27306 * MIB
    assert (one.guarantee, one.interval, one.threads_percent) == (Guarantee.NONE, Interval.SHORT, None)


def test_the_guard_makes_a_time_slice_advisory_and_no_other_share_stronger() -> None:
    """A framework's own cap, which a tenant can drop."""
    (sliced,) = _offer(target(gpu(0), TimeSlicing(4), guard=True))
    (whole,) = _offer(target(gpu(0), guard=True))
    assert (sliced.guard, sliced.guarantee) == (True, Guarantee.ADVISORY)
    assert (whole.guard, whole.guarantee) == (True, Guarantee.HARD)


@pytest.mark.parametrize(
    ("replicas", "memory_mib", "threads"), [(10, 8155, 10), (3, 27186, 33), (48, 1699, 2)]
)
def test_even_mps_shares_have_the_figures_of_nvidias_daemon(
    replicas: int, memory_mib: int, threads: int
) -> None:
    """The examples of NVIDIA's formulas for a GPU of 81,559 MiB."""
    (one,) = _offer(target(gpu(0, memory_bytes=81559 * MIB), Mps(replicas)))
    assert (one.memory_bytes, one.threads_percent) == (memory_mib * MIB, threads)
    assert (one.guarantee, one.limits_in_env) == (Guarantee.GUARDED, False)


def test_a_tenant_goes_round_the_daemon_outside_exclusive_process_mode() -> None:
    (one,) = _offer(target(gpu(0), Mps(2, exclusive_process=False)))
    assert one.guarantee is Guarantee.ADVISORY


@pytest.mark.parametrize("sharing", [Mps(2), Mps(0, units=MemoryUnits(GIB))])
def test_mps_guarantees_nothing_before_volta(sharing: Mps) -> None:
    """Its daemon has no limits there, so none is set."""
    (one,) = _offer(target(gpu(0, capability=(6, 1)), sharing))
    assert one.guarantee is Guarantee.NONE


def test_a_mig_device_brings_its_capability_files() -> None:
    (one,) = _offer(target(gpu(2, migs=2), mig=1))
    assert one.device == gpu(2, migs=2).mig_devices[1].uuid
    assert (one.index, one.profile, one.memory_bytes) == ("2:1", "1g.10gb", 10 * GIB)
    assert one.nodes == ("/dev/nvidia12", "/dev/nvidia-caps/nvidia-cap110", "/dev/nvidia-caps/nvidia-cap111")
    assert (one.strategy, one.shared, one.guarantee) == (Strategy.MIG, Strategy.EXCLUSIVE, Guarantee.HARD)


def test_a_time_sliced_mig_device_guarantees_nothing() -> None:
    (one,) = _offer(target(gpu(0, migs=1), TimeSlicing(48), mig=0))
    assert (one.strategy, one.shared, one.guarantee) == (Strategy.MIG, Strategy.TIME_SLICING, Guarantee.NONE)
    assert one.memory_bytes == 10 * GIB // 48 // MIB * MIB


def test_compute_instances_of_one_gpu_instance_share_its_memory_without_a_guarantee() -> None:
    """They have multiprocessors of their own, and no memory isolation between them."""
    whole = gpu(0, migs=3)
    placements = (Placement(0, 4), Placement(0, 4), Placement(4, 4))
    devices = tuple(
        replace(device, gi_id=at.start, placement=at, memory_bytes=40 * GIB)
        for device, at in zip(whole.mig_devices, placements, strict=True)
    )
    of = replace(whole, mig_devices=devices)
    offered = _offer(*(target(of, mig=n) for n in range(3)))
    assert [one.guarantee for one in offered] == [Guarantee.NONE, Guarantee.NONE, Guarantee.HARD]
    assert [one.memory_bytes for one in offered] == [20 * GIB, 20 * GIB, 40 * GIB]


def test_planned_compute_instances_of_one_gpu_instance_have_names_of_their_own() -> None:
    profile = MigProfile.parse("1c.3g.40gb")
    planned = PlannedDevice(LayoutItem(profile), Placement(4, 4), 40 * GIB, siblings=2)
    two = [replace(target(gpu(0)), mig=planned, strategy=Strategy.MIG)] * 2
    offered = _offer(*two)
    assert len({one.device for one in offered}) == 2
    assert {one.guarantee for one in offered} == {Guarantee.NONE}


def test_a_planned_mig_device_is_offered_without_files() -> None:
    planned = PlannedDevice(LayoutItem(MigProfile.parse("3g.40gb")), Placement(4, 4), 40 * GIB - 1)
    (one,) = _offer(replace(target(gpu(0)), mig=planned, strategy=Strategy.MIG))
    assert (one.planned, one.placement, one.nodes, one.profile) == (True, Placement(4, 4), (), "3g.40gb")
    assert one.memory_bytes == 40 * GIB - 1


def test_a_mig_gpu_without_instances_offers_nothing_but_is_listed() -> None:
    empty = Assignment((), strategies={gpu(0).uuid: Strategy.MIG})
    assert advertise(empty, node(gpu(0)), _POLICY) == {gpu(0).uuid: ()}


# --- MPS clients of their own --------------------------------------------------------------------


def test_unequal_clients_have_names_figures_and_guarantees_of_their_own() -> None:
    """The daemon's one limit is the largest client's; smaller ones are held by variables."""
    clients = (
        SharingClient("big", 8 * GIB, 50),
        SharingClient("small", 2 * GIB, 20),
        SharingClient("small", 2 * GIB, 20),
        SharingClient("example.org/tiny", GIB, 10),
    )
    rows = _offer(target(gpu(0, memory_bytes=24 * GIB), Mps(4, clients), resource="nvidia.com/gpu.shared"))
    assert [(row.resource, row.first, row.count, row.memory_bytes, row.threads_percent) for row in rows] == [
        ("nvidia.com/gpu.big", 0, 1, 8 * GIB, 50),
        ("nvidia.com/gpu.small", 1, 2, 2 * GIB, 20),
        ("example.org/tiny", 3, 1, GIB, 10),
    ]
    assert [row.guarantee for row in rows] == [Guarantee.GUARDED, Guarantee.ADVISORY, Guarantee.ADVISORY]
    assert [row.limits_in_env for row in rows] == [False, True, True]
    assert [row.replicas for row in rows] == [4, 4, 4]
    assert rows[1].share_ids == (f"{gpu(0).uuid}::1", f"{gpu(0).uuid}::2")


def _apart(*clients: SharingClient, replicas: int = 0, **more: object) -> Mps:
    return replace(Mps(replicas or len(clients), clients, protocol=3), **more)


def test_under_protocol_3_each_kind_of_client_has_a_namespace_and_its_limits_are_guarded() -> None:
    """Equal clients share one: a namespace limits each of its clients. Nothing is left to variables."""
    clients = (
        SharingClient("small", 2 * GIB, 20),
        SharingClient("big", 8 * GIB, 50),
        SharingClient("small", 2 * GIB, 20),
    )
    of = gpu(0, memory_bytes=24 * GIB)
    rows = _offer(target(of, _apart(*clients)), inventory=node(of, driver="615.71.09"))
    assert [(row.resource.rpartition(".")[2], row.first, row.pipe) for row in rows] == [
        ("small", 0, "gpu/share0"),
        ("big", 1, "gpu/share1"),
        ("small", 2, "gpu/share0"),
    ]
    assert [row.guarantee for row in rows] == [Guarantee.GUARDED] * 3
    assert [row.limits_in_env for row in rows] == [False] * 3


def test_under_protocol_3_even_shares_have_one_namespace() -> None:
    (one,) = _offer(target(gpu(0), _apart(replicas=4)), inventory=node(gpu(0), driver="615.71.09"))
    assert (one.count, one.pipe, one.guarantee) == (4, "gpu/share0", Guarantee.GUARDED)


def test_under_protocol_3_shares_are_advisory_where_they_are_under_2() -> None:
    outside = target(gpu(0), _apart(replicas=2, exclusive_process=False))
    (one,) = _offer(outside, inventory=node(gpu(0), driver="615.71.09"))
    assert one.guarantee is Guarantee.ADVISORY


@pytest.mark.parametrize(
    ("driver", "capability", "mig", "said"),
    [
        ("610.43.02", (9, 0), None, "takes a driver of branch 615 or newer, and it is of branch 610"),
        ("what", (9, 0), None, "takes a driver of branch 615 or newer, and its version is not known"),
        ("615.71.09", (6, 1), None, "takes a GPU that limits its clients, Volta or newer"),
        ("615.71.09", (9, 0), 0, "is for whole GPUs: NVIDIA asks for MIG to be off"),
    ],
)
def test_protocol_3_is_refused_where_it_is_not_supported(
    driver: str, capability: tuple[int, int], mig: int | None, said: str
) -> None:
    of = gpu(0, migs=0 if mig is None else 1, capability=capability)
    ((path, message, hint),) = _problems(
        Unsatisfiable, target(of, _apart(replicas=2), mig=mig), driver=driver
    )
    where = "gpus[0].mps.protocol" if mig is None else "gpus[0].mig.mps.protocol"
    assert (path, message) == (where, f"GPU 0: MPS protocol 3 {said}")
    assert "without 'protocol'" in hint


def test_clients_without_figures_share_what_the_others_leave() -> None:
    clients = (SharingClient("big", 16 * GIB, 70), SharingClient("a"), SharingClient("b"))
    _, a, b = _offer(target(gpu(0, memory_bytes=24 * GIB), Mps(3, clients)))
    assert (a.memory_bytes, a.threads_percent) == (b.memory_bytes, b.threads_percent) == (4 * GIB, 15)


@pytest.mark.parametrize(
    ("clients", "message", "hint"),
    [
        (
            (SharingClient("a", 16 * GIB), SharingClient("b", 16 * GIB)),
            "GPU 0: the MPS clients want 32 GiB of the 24 GiB that it has",
            "",
        ),
        (
            (SharingClient("a", 24 * GIB), SharingClient("b")),
            "GPU 0: the MPS clients want 24 GiB of the 24 GiB that it has",
            "a client without a figure needs a part, too",
        ),
        (
            (SharingClient("a", None, 60), SharingClient("b", None, 50)),
            "GPU 0: the MPS clients want 110% of its SMs",
            "",
        ),
    ],
)  # fmt: skip
def test_clients_that_want_more_than_the_gpu_has_are_refused(
    clients: tuple[SharingClient, ...], message: str, hint: str
) -> None:
    wanted = target(gpu(0, memory_bytes=24 * GIB), Mps(2, clients))
    assert _problems(Unsatisfiable, wanted) == [("gpus[0].mps.clients", message, hint)]


def test_a_client_whose_name_makes_no_resource_name_is_wrong_input() -> None:
    """And outranks what is merely impossible."""
    clients = (SharingClient("Big One", 8 * GIB), SharingClient("small", 2 * GIB))
    wrong = target(gpu(0), Mps(2, clients))
    problems = _problems(InputError, wrong, target(gpu(1), Mps(49)))
    assert [path for path, _, _ in problems] == ["gpus[0].mps.clients", "gpus[1].mps.replicas"]
    assert "nvidia.com/gpu.Big One" in problems[0][1]


_client = st.builds(
    SharingClient, st.just("c"), st.none() | st.integers(1, 40 * GIB), st.none() | st.integers(1, 60)
)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(_client, min_size=2, max_size=6))
def test_what_clients_get_never_exceeds_the_gpu(clients: list[SharingClient]) -> None:
    """Either they fit, wishes fulfilled to the byte, or they are refused."""
    try:
        rows = _offer(target(gpu(0), Mps(len(clients), tuple(clients))))
    except Unsatisfiable:
        return
    each = [row for row in rows for _ in range(row.count)]
    assert sum(row.memory_bytes for row in each) <= 80 * GIB
    assert sum(row.threads_percent or 0 for row in each) <= 100
    for row, client in zip(each, clients, strict=True):
        assert row.memory_bytes == (client.memory_bytes or row.memory_bytes) > 0
        assert row.threads_percent == (client.threads_percent or row.threads_percent)


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "driver", "cap"),
    [
        ((6, 1), "550.1", 16),
        ((7, 0), "550.1", 48),
        ((9, 0), "589.99", 48),
        ((9, 0), "590.1", 60),
        ((6, 0), "590.1", 16),
    ],
)
def test_mps_clients_are_limited_by_architecture_and_driver(
    capability: tuple[int, int], driver: str, cap: int
) -> None:
    """Volta is 7.0: NVIDIA's plugin asks for 7.5, and gives a V100 16."""
    card = gpu(0, capability=capability)
    (row,) = _offer(target(card, Mps(cap)), inventory=node(card, driver=driver))
    assert row.count == cap
    (problem,) = _problems(Unsatisfiable, target(card, Mps(cap + 1)), driver=driver)
    assert problem[0] == "gpus[0].mps.replicas"
    assert f"{cap + 1} MPS clients, but at most {cap} are possible" in problem[1]


def test_one_problem_of_several_gpus_is_reported_once() -> None:
    many = [target(gpu(n), Mps(49), origin="sharing.mps.resources[0]") for n in (0, 1, 5)]
    ((path, message, _),) = _problems(Unsatisfiable, *many)
    assert path == "sharing.mps.resources[0].replicas"
    assert message.startswith("GPUs 0-1, 5: 49 MPS clients")


def test_a_mig_device_has_no_compute_mode_and_so_its_mps_shares_are_advisory() -> None:
    (whole,) = _offer(target(gpu(0, migs=1), mig=0))
    (row,) = _offer(target(gpu(0, migs=1), Mps(2), mig=0))
    assert (row.count, row.guarantee) == (2, Guarantee.ADVISORY)
    assert row.memory_bytes == whole.memory_bytes // 2 // MIB * MIB


@pytest.mark.parametrize("sharing", [TimeSlicing(10**9), Mps(10**9)])
def test_a_thousand_million_replicas_are_refused_at_once(sharing: Sharing) -> None:
    started = time.perf_counter()
    _problems(Unsatisfiable, *(target(gpu(n), sharing) for n in range(8)))
    assert time.perf_counter() - started < 0.2


def test_a_list_that_no_message_holds_is_refused_with_what_would_fit() -> None:
    cards = [target(gpu(n), TimeSlicing(10_000)) for n in range(8)]
    ((path, message, hint),) = _problems(Unsatisfiable, *cards)
    assert path == "gpus[0].time-slicing.replicas"
    assert message == "nvidia.com/gpu: 80,000 shares do not fit into the kubelet's message of 4 MiB"
    fitting, most = (int(word.replace(",", "")) for word in hint.split() if word[0].isdigit())
    assert fitting == 8 * most
    assert len(_offer(*(target(gpu(n), TimeSlicing(most)) for n in range(8)))) == 8
    _problems(Unsatisfiable, *(target(gpu(n), TimeSlicing(most + 1)) for n in range(8)))


def test_a_name_of_its_own_makes_a_list_of_its_own() -> None:
    """Two resources of 40,000 shares each are two messages."""
    halves = [
        target(gpu(n), TimeSlicing(40_000), resource=NAME if n else "nvidia.com/gpu.notebooks")
        for n in range(2)
    ]
    inventory = node(gpu(0), gpu(1))
    offer = advertise(assignment(*halves), inventory, _POLICY)
    assert [resource.count for resource in resources_of(offer).values()] == [40_000, 40_000]

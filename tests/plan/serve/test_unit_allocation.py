"""Units of memory: a container's come from one GPU, and what a container is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.model.gpu import Inventory
from partage.model.ids import MEMORY_RESOURCE, ShareId, device_of
from partage.model.policy import Options
from partage.model.share import AllocationRefused, ContainerAllocation, DeviceOffer, Guarantee, Resource
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.unit_allocation import NoRoom, UnitAllocator
from partage.units import GIB, MIB
from tests.plan.offers import gpu, ids, node, unit_row


def _prefer(
    cards: list[DeviceOffer], free: list[int], size: int, must_include: list[ShareId] | None = None
) -> list[ShareId]:
    """free: of each card, its highest ids."""
    available = [id_ for card, n in zip(cards, free, strict=True) for id_ in card.share_ids[card.count - n :]]
    must = must_include or []
    return UnitAllocator(Resource(MEMORY_RESOURCE, tuple(cards))).prefer(available[::-1] + must, must, size)


def _card(chosen: list[ShareId], cards: list[DeviceOffer]) -> int:
    (device,) = {device_of(id_) for id_ in chosen}
    return next(card.gpu_index for card in cards if card.device == device)


SIZES = [23, 79, 79, 14]
CARDS = [unit_row(index, units) for index, units in enumerate(SIZES)]


@pytest.mark.parametrize(
    ("free", "size", "index"),
    [
        ([23, 79, 79, 14], 3, 3),
        ([23, 79, 79, 14], 15, 0),
        ([23, 79, 79, 14], 24, 1),
        ([5, 5, 4, 14], 4, 2),
        ([5, 5, 4, 14], 5, 0),
        ([0, 3, 3, 0], 3, 1),
    ],
)
def test_the_card_with_least_that_is_enough(free: list[int], size: int, index: int) -> None:
    chosen = _prefer(CARDS, free, size)
    assert len(chosen) == len(set(chosen)) == size
    assert _card(chosen, CARDS) == index


def test_spread_takes_the_card_with_most() -> None:
    cards = [replace(card, spread=True) for card in CARDS]
    assert _card(_prefer(cards, [23, 79, 79, 14], 3), cards) == 1
    assert _card(_prefer(cards, [23, 70, 79, 14], 3), cards) == 2


def test_what_an_init_container_had_is_used_again_on_its_card() -> None:
    had = list(CARDS[1].share_ids[:3])
    chosen = _prefer(CARDS, [23, 20, 79, 14], 5, had)
    assert chosen[:3] == had
    assert _card(chosen, CARDS) == 1
    assert _prefer(CARDS, [23, 0, 0, 14], 3, had) == had
    with pytest.raises(
        NoRoom, match=r"an init container of its pod had 3 GiB of GPU 1, which Kubernetes"
    ) as caught:
        _prefer(CARDS, [23, 1, 79, 14], 5, had)
    assert caught.value.ignored, "other cards have 5 free: the next such pod would fail on this one again"


def test_units_of_two_cards_that_have_to_be_included_are_left_to_allocate() -> None:
    had = [CARDS[0].share_ids[0], CARDS[1].share_ids[0]]
    assert _prefer(CARDS, [0, 0, 0, 0], 2, had) == had


def test_a_refusal_says_what_is_free() -> None:
    with pytest.raises(NoRoom) as caught:
        _prefer(CARDS, [3, 4, 0, 1], 5)
    assert str(caught.value) == (
        "this container asks for 5 GiB of GPU memory, all of one GPU, and no GPU of this node has that much "
        "free (GPU 0: 3 GiB, GPU 1: 4 GiB, GPU 2: nothing, GPU 3: 1 GiB). Ask for less, or wait until "
        "memory is free"
    )
    assert (caught.value.units, caught.value.ignored) == (5, False)


def test_a_refusal_does_not_round_what_it_compares() -> None:
    """5.25 and 5.1875 GiB would both be 5.2."""
    cards = [unit_row(0, 100, 64 * MIB), unit_row(1, 100, 64 * MIB)]
    with pytest.raises(NoRoom, match=r"asks for 5376 MiB of .* \(GPU 0: 5312 MiB, GPU 1: 5 GiB\)"):
        _prefer(cards, [83, 80], 84)


def test_a_container_larger_than_any_card_is_told_so() -> None:
    with pytest.raises(
        NoRoom, match=r"asks for 80 GiB of GPU memory, and the largest GPU of this node has 79"
    ):
        _prefer(CARDS, SIZES, 80)


def test_a_container_as_large_as_the_largest_card_is_told_what_is_free() -> None:
    with pytest.raises(NoRoom, match="no GPU of this node has that much free"):
        _prefer(CARDS, [0, 78, 0, 0], 79)


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.data())
def test_a_choice_is_the_best_fit_and_a_refusal_is_right(sizes: list[int], data: st.DataObject) -> None:
    cards = [unit_row(index, units) for index, units in enumerate(sizes)]
    free = [data.draw(st.integers(0, units)) for units in sizes]
    size = data.draw(st.integers(1, 14))
    enough = [count for count in free if count >= size]
    try:
        chosen = _prefer(cards, free, size)
    except NoRoom:
        assert not enough
        return
    assert _card(chosen, cards) == free.index(min(enough))
    assert len(set(chosen)) == size


# --- Allocate ----------------------------------------------------------------------------------------


def _answer(wanted: list[ShareId], *cards: DeviceOffer) -> ContainerAllocation:
    inventory: Inventory = node(*(gpu(n) for n in range(4)))
    resource = Resource(MEMORY_RESOURCE, cards)
    return AllocateResponder(resource, inventory, Options(), "/run/partage/").answer(wanted)


def test_a_container_learns_its_card_and_its_amount_as_gpusharess_do() -> None:
    envs = _answer(list(CARDS[1].share_ids[7:10]), *CARDS).envs
    theirs = {key: value for key, value in envs.items() if key.startswith("ALIYUN")}
    assert theirs == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "80",
    }
    assert envs["NVIDIA_VISIBLE_DEVICES"] == gpu(1).uuid
    assert envs["PARTAGE_MEMORY_BYTES"] == str(3 * GIB)
    assert envs["PARTAGE_GUARANTEE"] == "advisory"
    assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in envs


@pytest.mark.parametrize("memory_mib", [3_900, 15_360, 23_028, 24_564, 81_559, 143_771])
@pytest.mark.parametrize("unit_mib", [256, 1024, 3072])
def test_a_program_that_takes_its_part_of_the_gpu_takes_no_more_than_its_amount(
    memory_mib: int, unit_mib: int
) -> None:
    """CONTAINER / DEV is the part of all memory that programs for gpushare give to TensorFlow or PyTorch."""
    card = gpu(0, memory_bytes=memory_mib * MIB)
    row = unit_row(0, (memory_mib - 512) // unit_mib, unit_mib * MIB)
    responder = AllocateResponder(Resource(MEMORY_RESOURCE, (row,)), node(card), Options(), "/run/partage")
    for amount in {1, row.count}:
        envs = responder.answer(list(row.share_ids[:amount])).envs
        part = int(envs["ALIYUN_COM_GPU_MEM_CONTAINER"]) / int(envs["ALIYUN_COM_GPU_MEM_DEV"])
        assert part * card.memory_bytes <= amount * row.memory_bytes


def test_a_unit_of_half_a_gib_is_counted_in_units_and_limited_in_mib() -> None:
    card = unit_row(0, 100, 512 * MIB)
    envs = _answer(list(card.share_ids[:3]), card).envs
    assert envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
    assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1536M"
    assert envs["PARTAGE_MEMORY_BYTES"] == str(1536 * MIB)


def test_thousands_of_ids_are_no_variable() -> None:
    """Linux has 128 KiB for one; a process with more does not start."""
    card = unit_row(0, 5000, 16 * MIB)
    few, many = (_answer(list(card.share_ids[:n]), card).envs for n in (512, 5000))
    assert few["PARTAGE_SHARES"].count(",") == 511
    assert "PARTAGE_SHARES" not in many
    assert max(map(len, many.values())) < 1000


def test_each_amount_has_its_namespace() -> None:
    card = replace(unit_row(0, 79), limits_in_env=False, pipe="gpu/units", guarantee=Guarantee.GUARDED)
    for amount in (1, 3, 79):
        answer = _answer(list(card.share_ids[:amount]), card)
        assert f"/run/partage/mps/{card.device}/pipe/gpu/units{amount}" in {
            mount.host_path for mount in answer.mounts
        }
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in answer.envs


def test_scattered_units_are_refused() -> None:
    wanted = [*CARDS[0].share_ids[:3], *CARDS[1].share_ids[:2]]
    with pytest.raises(NoRoom) as caught:
        _answer(wanted, *CARDS)
    assert str(caught.value) == (
        "this container asks for 5 GiB of GPU memory, and the kubelet chose 3 GiB of GPU 0, 2 GiB of GPU 1: "
        "a container's memory has to be of one GPU"
    )
    assert (caught.value.units, caught.value.ignored) == (5, True)


def test_units_that_are_not_there_are_refused_as_always() -> None:
    with pytest.raises(AllocationRefused, match="unknown device"):
        _answer([ids(unit_row(0, 80))[-1]], CARDS[1])

"""Preferred allocation: shares by NVIDIA's two policies, MIG devices over their GPUs, MPS from one GPU."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.model.gpu import Link, LinkPath
from partage.model.ids import ShareId
from partage.model.policy import AllocationPolicy
from partage.model.share import AllocationRefused, DeviceOffer
from partage.model.strategy import Strategy
from partage.plan.serve.preferred_allocation import PreferredAllocator
from tests.examples import examples
from tests.plan.offers import gpu, ids, offering, resource, share

GPU_GONE = ShareId("GPU-gone")

DISTRIBUTED, PACKED = AllocationPolicy.DISTRIBUTED, AllocationPolicy.PACKED


def _chooser(
    *offerings: DeviceOffer, policy: AllocationPolicy = DISTRIBUTED, links: list[Link] | None = None
) -> PreferredAllocator:
    return PreferredAllocator(resource(*offerings), links or [], policy)


# --- shares -----------------------------------------------------------------------------------


def test_distributed_takes_one_share_of_each_gpu_from_the_lowest_index() -> None:
    cards = [offering(n, 4) for n in range(3)]
    assert _chooser(*cards).prefer(ids(*cards), [], 4) == [share(0, 0), share(1, 0), share(2, 0), share(0, 1)]


def test_distributed_takes_the_gpu_with_the_fewest_allocated_shares() -> None:
    """Shares 0 and 1 of GPU 0 and share 0 of GPU 1 are held."""
    cards = [offering(n, 4) for n in range(3)]
    free = [id_ for id_ in ids(*cards) if id_ not in (share(0, 0), share(0, 1), share(1, 0))]
    assert _chooser(*cards).prefer(free, [], 3) == [share(2, 0), share(1, 1), share(2, 1)]


def test_packed_fills_the_fullest_gpu_first() -> None:
    cards = [offering(n, 4) for n in range(3)]
    free = [id_ for id_ in ids(*cards) if id_ != share(1, 0)]
    chosen = _chooser(*cards, policy=PACKED).prefer(free, [], 4)
    assert chosen == [share(1, 1), share(1, 2), share(1, 3), share(0, 0)]


def test_the_order_of_the_kubelets_list_does_not_matter() -> None:
    """The kubelet sends the ids of a set, in any order."""
    cards = [offering(n, 4) for n in range(3)]
    chooser = _chooser(*cards)
    assert chooser.prefer(ids(*cards)[::-1], [], 3) == chooser.prefer(ids(*cards), [], 3)


def test_what_has_to_be_included_comes_first_and_counts_as_allocated() -> None:
    cards = [offering(n, 4) for n in range(2)]
    chosen = _chooser(*cards).prefer(ids(*cards), [share(0, 3)], 3)
    assert chosen == [share(0, 3), share(1, 0), share(0, 0)]


def _nvidias_rule(
    free: set[ShareId], cards: list[DeviceOffer], must: list[ShareId], size: int, *, packed: bool
) -> Counter[str]:
    """Shares taken per device, by the published rule and nothing else: a naive second implementation."""
    sign = -1 if packed else 1
    taken = Counter(id_.partition("::")[0] for id_ in must)
    left = {one.device: len(free & set(one.share_ids) - set(must)) for one in cards}
    for _ in range(size - len(must)):
        rank = {
            one.device: (sign * (len(one.share_ids) - left[one.device]), taken[one.device], n)
            for n, one in enumerate(cards)
            if left[one.device]
        }
        device = min(rank, key=rank.__getitem__)
        taken[device] += 1
        left[device] -= 1
    return taken


@settings(deadline=None, max_examples=examples(150))
@given(st.data(), st.lists(st.integers(2, 6), min_size=1, max_size=5), st.booleans())
def test_shares_per_gpu_follow_nvidias_rule(data: st.DataObject, replicas: list[int], packed: bool) -> None:
    """Different numbers of replicas, some shares held, some to be included."""
    cards = [offering(n, count) for n, count in enumerate(replicas)]
    free = data.draw(st.sets(st.sampled_from(ids(*cards)), min_size=1))
    size = data.draw(st.integers(1, len(free)))
    must = sorted(data.draw(st.sets(st.sampled_from(sorted(free)), max_size=size)))
    chosen = _chooser(*cards, policy=PACKED if packed else DISTRIBUTED).prefer(sorted(free), must, size)
    assert len(set(chosen)) == size
    assert set(must) <= set(chosen) <= free
    counted = Counter(id_.partition("::")[0] for id_ in chosen)
    assert counted == _nvidias_rule(free, cards, must, size, packed=packed)


# --- refusals ---------------------------------------------------------------------------------


def test_too_few_free_shares_are_refused_in_nvidias_words() -> None:
    card = offering(0, 4)
    began = "error getting list of preferred allocation devices: "
    with pytest.raises(
        AllocationRefused, match=f"^{began}not enough available devices to satisfy allocation$"
    ):
        _chooser(card).prefer([share(0, 0)], [], 2)


def test_an_id_that_is_no_longer_offered_is_not_taken() -> None:
    """The kubelet's list may be a moment older than ours."""
    card = offering(0, 2)
    chooser = _chooser(card)
    assert chooser.prefer([GPU_GONE, share(0, 1)], [], 1) == [share(0, 1)]
    with pytest.raises(AllocationRefused, match="not enough"):
        chooser.prefer([GPU_GONE, share(0, 1)], [], 2)


def test_an_unknown_id_cannot_be_included() -> None:
    with pytest.raises(AllocationRefused, match="GPU-gone"):
        _chooser(offering(0, 2)).prefer([share(0, 0)], [GPU_GONE], 1)


def test_more_cannot_be_included_than_is_wanted() -> None:
    with pytest.raises(AllocationRefused, match="2 devices have to be included"):
        _chooser(offering(0, 2)).prefer(ids(offering(0, 2)), ids(offering(0, 2)), 1)


# --- whole GPUs and mixtures --------------------------------------------------------------------


def test_whole_gpus_are_chosen_by_their_links() -> None:
    """GPUs 0 and 2 have NVLinks; GPU 1 lies between them."""
    cards = [offering(n) for n in range(3)]
    links = [
        Link(gpu(0).uuid, gpu(1).uuid, LinkPath.SAME_BOARD),
        Link(gpu(0).uuid, gpu(2).uuid, LinkPath.CROSS_CPU, 4),
        Link(gpu(1).uuid, gpu(2).uuid, LinkPath.SAME_CPU),
    ]
    chooser = _chooser(*cards, links=links)
    assert chooser.prefer(ids(*cards), [], 2) == [share(0), share(2)]
    assert chooser.prefer(ids(*cards), [share(1)], 2) == [share(1), share(0)]


def test_whole_gpus_and_shares_under_one_name_follow_the_policy() -> None:
    """GPU 0 is in four shares, GPUs 1 and 2 are whole."""
    cards = [offering(0, 4), offering(1), offering(2)]
    assert _chooser(*cards).prefer(ids(*cards), [], 3) == [share(0, 0), share(1), share(2)]
    links = [Link(gpu(a).uuid, gpu(b).uuid, LinkPath.SAME_CPU) for a, b in ((0, 1), (0, 2), (1, 2))]
    cards.append(offering(3))
    nvlink = [Link(gpu(2).uuid, gpu(3).uuid, LinkPath.CROSS_CPU, 4)]
    with_a_share = _chooser(*cards, links=nvlink).prefer(ids(*cards[1:]), [share(0, 0)], 3)
    assert with_a_share == [share(0, 0), share(1), share(2)], "not the linked ones: a share is among them"
    only_whole = [share(2), share(1)]
    assert _chooser(*cards, links=links).prefer(only_whole, [], 2) == [share(1), share(2)]


def test_mig_devices_are_spread_over_their_gpus() -> None:
    cards = [offering(n, mig=m) for n in range(2) for m in range(3)]
    chosen = _chooser(*cards).prefer(ids(*cards), [], 4)
    assert chosen == ids(offering(0, mig=0), offering(1, mig=0), offering(0, mig=1), offering(1, mig=1))


def test_packed_mig_devices_fill_the_gpu_in_use_first() -> None:
    """One MIG device of GPU 1 is held."""
    cards = [offering(n, mig=m) for n in range(2) for m in range(3)]
    free = [id_ for id_ in ids(*cards) if id_ not in ids(offering(1, mig=0))]
    chosen = _chooser(*cards, policy=PACKED).prefer(free, [], 3)
    assert chosen == ids(offering(1, mig=1), offering(1, mig=2), offering(0, mig=0))


# --- MPS --------------------------------------------------------------------------------------


def _mps(index: int, replicas: int, *, single: bool = False) -> DeviceOffer:
    return offering(index, replicas, shared=Strategy.MPS, single=single)


def test_several_mps_shares_come_from_the_gpu_that_can_hold_them_all() -> None:
    """Two shares of GPU 0 are held, so that three fit on GPU 1 only."""
    cards = [_mps(0, 4), _mps(1, 4)]
    free = ids(*cards)[2:]
    assert _chooser(*cards).prefer(free, [], 3) == [share(1, 0), share(1, 1), share(1, 2)]
    assert _chooser(*cards, policy=PACKED).prefer(free, [], 2) == [share(0, 2), share(0, 3)]


def test_an_mps_share_that_has_to_be_included_decides_the_gpu() -> None:
    cards = [_mps(0, 4), _mps(1, 4)]
    assert _chooser(*cards).prefer(ids(*cards), [share(1, 2)], 2) == [share(1, 2), share(1, 0)]


def test_mps_shares_are_not_mixed_with_whole_gpus_under_one_name() -> None:
    cards = [_mps(0, 2), offering(1), offering(2), offering(3)]
    chosen = _chooser(*cards).prefer(ids(*cards), [], 3)
    assert chosen == [share(1), share(2), share(3)]


def test_a_request_that_allocate_refuses_anyway_is_answered_by_the_policy() -> None:
    """One share per container at most: NVIDIA's plugin prefers by its policy, and then refuses."""
    cards = [_mps(n, 2, single=True) for n in range(3)]
    assert _chooser(*cards).prefer(ids(*cards), [], 3) == [share(0, 0), share(1, 0), share(2, 0)]
    assert _chooser(*cards).prefer(ids(*cards), [], 2) == [share(0, 0), share(1, 0)]


def test_rows_of_one_gpu_are_one_device() -> None:
    """Two equal MPS clients and a third one: three shares of one GPU under one name."""
    first = replace(_mps(0, 3), count=2)
    rest = replace(_mps(0, 3), first=2, count=1)
    assert _chooser(first, rest).prefer(ids(first, rest), [], 3) == [share(0, 0), share(0, 1), share(0, 2)]

"""The size of the kubelet's device list, against protobuf itself."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.kubelet._generated import deviceplugin_pb2 as plugin
from partage.model.share import DeviceOffer
from partage.plan.offer.list_size import list_bytes, most_for_each
from tests.examples import examples
from tests.plan.offers import offering


def _shared(index: int, replicas: int, first: int, numa_node: int | None) -> DeviceOffer:
    return replace(offering(index, replicas), first=first, numa_node=numa_node)


_numa = st.none() | st.integers(0, 300)
_offerings = st.lists(
    st.builds(lambda index, numa: replace(offering(index), numa_node=numa), st.integers(0, 7), _numa)
    | st.builds(_shared, st.integers(0, 7), st.integers(2, 130), st.integers(0, 1200), _numa),
    max_size=4,
)


def _message(offerings: Sequence[DeviceOffer]) -> bytes:
    rows = []
    for one in offerings:
        numa = [] if one.numa_node is None else [plugin.NUMANode(ID=one.numa_node)]
        topology = {"topology": plugin.TopologyInfo(nodes=numa)} if numa else {}
        rows += [plugin.Device(ID=id_, health="Unhealthy", **topology) for id_ in one.share_ids]
    return bytes(plugin.ListAndWatchResponse(devices=rows).SerializeToString())


@settings(deadline=None, max_examples=examples(60))
@given(_offerings)
def test_the_computed_size_is_the_size_on_the_wire(offerings: list[DeviceOffer]) -> None:
    """Ids of any length, first shares other than 0, with and without topology."""
    assert list_bytes(offerings) == len(_message(offerings))


@settings(deadline=None, max_examples=examples(60))
@given(_offerings, st.integers(0, 20_000))
def test_one_share_more_for_each_device_would_not_fit(offerings: list[DeviceOffer], budget: int) -> None:
    """And so many do."""
    most = most_for_each(offerings, budget)

    def size(cap: int) -> int:
        return list_bytes([replace(one, count=min(one.count, cap)) for one in offerings])

    assert size(most) <= budget
    assert size(most + 1) > budget or most == max((one.count for one in offerings), default=0)


def test_a_thousand_million_replicas_are_counted_without_making_them() -> None:
    """Arithmetic: an id list of that length would take minutes and 100 GB."""
    started = time.perf_counter()
    huge = offering(0, 10**9)
    assert list_bytes([huge]) > 10**9 * 50
    assert 60_000 < most_for_each([huge], 4 * 2**20) < 70_000
    assert time.perf_counter() - started < 0.1


def test_a_list_that_fills_the_message_fits() -> None:
    shares = [offering(0, 100)]
    assert most_for_each(shares, list_bytes(shares)) == 100
    assert most_for_each(shares, list_bytes(shares) - 1) == 99

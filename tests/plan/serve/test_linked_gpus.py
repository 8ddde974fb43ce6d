"""The best-linked set of whole GPUs, against trying all sets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.model.gpu import Link, LinkPath
from partage.model.ids import GpuUuid
from partage.plan.serve.preferred_allocation import LinkedGpus, pair_score
from tests.examples import examples

_links = st.builds(
    lambda path, nvlinks: (path, nvlinks), st.sampled_from(LinkPath), st.sampled_from([0, 0, 1, 2, 4, 18])
)


def _node(count: int, of_pair: dict[tuple[int, int], tuple[LinkPath, int]]) -> list[Link]:
    return [
        Link(GpuUuid(f"GPU-{a}"), GpuUuid(f"GPU-{b}"), *of_pair[a, b])
        for a, b in combinations(range(count), 2)
    ]


def _names(count: int) -> list[GpuUuid]:
    return [GpuUuid(f"GPU-{n}") for n in range(count)]


def _scores(links: list[Link]) -> dict[frozenset[int], int]:
    seat = {name: n for n, name in enumerate(_names(64))}
    return {frozenset((seat[link.a], seat[link.b])): pair_score(link) for link in links}


def _inner(gpus: Sequence[int], scores: dict[frozenset[int], int]) -> int:
    return sum(scores[frozenset(pair)] for pair in combinations(gpus, 2))


def _by_brute_force(
    free: list[int], must: list[int], size: int, scores: dict[frozenset[int], int]
) -> list[int]:
    """Naive: greatest sum inside, then greatest sum of what is left, then the lowest added indexes."""

    def rank(chosen: Sequence[int]) -> tuple[int, int, list[int]]:
        rest = tuple(n for n in free if n not in chosen)
        added = [n for n in chosen if n not in must]
        return -_inner(chosen, scores), -_inner(rest, scores), added

    sets = [list(chosen) for chosen in combinations(sorted(free), size) if set(must) <= set(chosen)]
    return min(sets, key=rank)


@st.composite
def _requests(draw: st.DrawFn) -> tuple[int, list[Link], list[int], list[int], int]:
    count = draw(st.integers(1, 8))
    pairs = {pair: draw(_links) for pair in combinations(range(count), 2)}
    free = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
    size = draw(st.integers(1, len(free)))
    must = sorted(draw(st.sets(st.sampled_from(free), max_size=size)))
    return count, _node(count, pairs), free, must, size


@settings(deadline=None, max_examples=examples(200))
@given(_requests())
def test_up_to_eight_gpus_the_choice_is_the_best_of_all_sets(
    request_: tuple[int, list[Link], list[int], list[int], int],
) -> None:
    """Same set as the naive search finds: best inside, then best rest, then lowest."""
    count, links, free, must, size = request_
    chosen = LinkedGpus(_names(count), links).best(free, must, size)
    assert chosen == _by_brute_force(free, must, size, _scores(links))


def _two_of_eight(a: int, b: int) -> tuple[LinkPath, int]:
    return (LinkPath.SAME_CPU if a // 8 == b // 8 else LinkPath.CROSS_CPU), (4 if a // 2 == b // 2 else 0)


def _switch(_a: int, _b: int) -> tuple[LinkPath, int]:
    return LinkPath.CROSS_CPU, 18


def _islands(a: int, b: int) -> tuple[LinkPath, int]:
    """Four GPUs to a board, the boards interleaved: the good sets are not runs of indexes."""
    return (LinkPath.SAME_BOARD if a % 4 == b % 4 else LinkPath.CROSS_CPU), (2 if a % 4 == b % 4 else 0)


@pytest.mark.parametrize("of_pair", [_two_of_eight, _switch, _islands])
@pytest.mark.parametrize("size", [1, 2, 4, 7, 8, 12])
def test_sixteen_gpus_of_real_topologies_get_the_best_sum_there_is(of_pair, size: int) -> None:
    """NVLink pairs on two sockets, all behind a switch, four boards: compared with all sets of that size."""
    links = _node(16, {(a, b): of_pair(a, b) for a, b in combinations(range(16), 2)})
    scores = _scores(links)
    chosen = LinkedGpus(_names(16), links).best(range(16), [], size)
    matrix = [[scores.get(frozenset((a, b)), 0) for b in range(16)] for a in range(16)]
    best = max(sum(matrix[a][b] for a, b in combinations(gpus, 2)) for gpus in combinations(range(16), size))
    assert _inner(chosen, scores) == best


def test_gpus_behind_one_switch_are_taken_from_the_lowest_index() -> None:
    links = _node(16, {pair: _switch(*pair) for pair in combinations(range(16), 2)})
    assert LinkedGpus(_names(16), links).best(range(16), [], 8) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_single_gpu_is_taken_where_it_breaks_no_nvlink_pair() -> None:
    """GPUs 0-1 and 2-3 are pairs, and 1 is in use: 0 has lost its partner already."""
    links = _node(
        4, {(a, b): (LinkPath.SAME_CPU, 4 if a // 2 == b // 2 else 0) for a, b in combinations(range(4), 2)}
    )
    gpus = LinkedGpus(_names(4), links)
    assert gpus.best([0, 2, 3], [], 1) == [0]
    assert gpus.best([1, 2, 3], [], 1) == [1]
    assert gpus.best([0, 1, 2], [], 1) == [2]


def test_nvlinks_through_a_switch_outweigh_the_pcie_path() -> None:
    """0 and 1 share a board, 0 and 2 an NVSwitch on the other socket."""
    links = [
        Link(GpuUuid("GPU-0"), GpuUuid("GPU-1"), LinkPath.SAME_BOARD),
        Link(GpuUuid("GPU-0"), GpuUuid("GPU-2"), LinkPath.CROSS_CPU, 12),
        Link(GpuUuid("GPU-1"), GpuUuid("GPU-2"), LinkPath.CROSS_CPU),
    ]
    assert LinkedGpus(_names(3), links).best([0, 1, 2], [], 2) == [0, 2]


@pytest.mark.parametrize(
    ("pairs", "size", "best"),
    [
        ([(0, 1), (2, 4)], 4, [0, 1, 2, 4]),
        ([(0, 3), (1, 2), (2, 3), (2, 4), (2, 5), (4, 5)], 5, [0, 2, 3, 4, 5]),
    ],
)
def test_what_growing_and_swapping_misses_is_found(
    pairs: list[tuple[int, int]], size: int, best: list[int]
) -> None:
    """A better set, and one that is as good with lower indexes."""
    links = [Link(GpuUuid(f"GPU-{a}"), GpuUuid(f"GPU-{b}"), LinkPath.CROSS_CPU) for a, b in pairs]
    assert LinkedGpus(_names(6), links).best(range(6), [], size) == best


def test_links_to_gpus_of_other_resources_do_not_count() -> None:
    links = _node(4, {pair: _switch(*pair) for pair in combinations(range(4), 2)})
    assert LinkedGpus(_names(2), links).best([0, 1], [], 1) == [0]


def test_eight_of_sixteen_gpus_with_random_links_take_less_than_5_ms() -> None:
    """No symmetry to make use of: the dearest case. Best of several runs, of the processor's time."""
    of_pair = {
        (a, b): (tuple(LinkPath)[(a * 7 + b * 13) % 6], (a * 5 + b * 3) % 4)
        for a, b in combinations(range(16), 2)
    }
    gpus = LinkedGpus(_names(16), _node(16, of_pair))

    def run() -> float:
        started = time.process_time()
        gpus.best(range(16), [], 8)
        return time.process_time() - started

    assert min(run() for _ in range(10)) < 0.005

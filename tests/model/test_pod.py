"""What the scheduler counts of a pod."""

from __future__ import annotations

import pytest

from partage.model.pod import Container, ContainerKind, Pod

G = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("main", "before", "expected"),
    [
        ([1, 2], [], 3),
        ([1, 1], [(3, "init")], 3),
        ([2], [(1, "init")], 2),
        ([1], [(1, "sidecar")], 2),
        ([1], [(1, "sidecar"), (2, "init")], 3),
        ([1], [(2, "init"), (1, "sidecar")], 2),
        ([0], [(2, "init"), (3, "init")], 3),
    ],
)
def test_what_is_counted_follows_the_order_in_which_containers_run(
    main: list[int], before: list[tuple[int, ContainerKind]], expected: int
) -> None:
    containers = (
        *(Container(f"i{n}", {G: count}, kind) for n, (count, kind) in enumerate(before)),
        *(Container(f"m{n}", {G: count}) for n, count in enumerate(main)),
    )
    assert Pod("default", "p", containers).totals == {G: expected}


def test_an_amount_of_the_whole_pod_stands_for_the_sum_and_overhead_is_added() -> None:
    containers = (Container("a", {"cpu": 2000, G: 1}), Container("b", {"cpu": 1000, "memory": 0}))
    pod = Pod("default", "p", containers, overhead={"cpu": 250}, whole={"cpu": 500})
    assert pod.totals == {"cpu": 750, G: 1}


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_a_pod_needs_containers_with_different_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="different names"):
        Pod("default", "p", tuple(Container(name) for name in names)).must_be_possible()

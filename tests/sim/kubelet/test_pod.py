"""What the scheduler counts of a pod, and pods that cannot be."""

from __future__ import annotations

import pytest

from partage.sim.kubelet.pod import Container, Pod

G = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("main", "init", "expected"),
    [
        ([1, 2], [], 3),
        ([1, 1], [(3, False)], 3),
        ([2], [(1, False)], 2),
        ([1], [(1, True)], 2),
        ([1], [(1, True), (2, False)], 3),
        ([1], [(2, False), (1, True)], 2),
        ([0], [(2, False), (3, False)], 3),
    ],
)
def test_requests_follow_the_order_in_which_containers_run(
    main: list[int], init: list[tuple[int, bool]], expected: int
) -> None:
    pod = Pod(
        "default",
        "p",
        tuple(Container(f"m{n}", {G: count}) for n, count in enumerate(main)),
        tuple(Container(f"i{n}", {G: count}, restartable) for n, (count, restartable) in enumerate(init)),
    )
    assert pod.requests() == {G: expected}


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_a_pod_needs_containers_with_different_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="different names"):
        Pod("default", "p", tuple(Container(name) for name in names))

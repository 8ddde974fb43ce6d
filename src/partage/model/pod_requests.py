"""What a pod asks of its node, as Kubernetes counts the requests of its containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


def scheduled_requests(
    init: Iterable[tuple[Mapping[str, int], bool]], main: Iterable[Mapping[str, int]]
) -> dict[str, int]:
    """What the scheduler counts: main containers and sidecars together, or, if that is more, an init
    container together with the sidecars before it.

    init: the requests of each init container in order, and whether it is a sidecar (``restartPolicy:
    Always``).
    """
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for requests, sidecar in init:
        if sidecar:
            running.update(requests)
        else:
            most |= running + Counter(requests)
    for requests in main:
        running.update(requests)
    return dict(most | running)

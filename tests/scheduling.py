"""How tests are given to the workers of pytest-xdist."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class ForgetfulScheduling(LoadGroupScheduling):
    """What a worker has done is forgotten: pytest-xdist counts all of it anew after each of 13,000 tests."""

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        unit = self._split_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if all(self.assigned_work[node][unit].values()):
            del self.assigned_work[node][unit]


def scheduling(config: pytest.Config, log: Producer | None) -> ForgetfulScheduling | None:
    """None: with other options pytest-xdist has another one."""
    return ForgetfulScheduling(config, log) if config.getoption("dist") == "loadgroup" else None

"""How long a layout that failed waits until it is tried again."""

from __future__ import annotations

import pytest

from partage.plan.reconcile.node_plan import LONGEST_PAUSE_S, pause_s


@pytest.mark.parametrize(("tries", "seconds"), [(1, 2.0), (2, 4.0), (5, 32.0), (6, LONGEST_PAUSE_S)])
def test_pauses_grow_up_to_a_minute(tries: int, seconds: float) -> None:
    assert pause_s(tries, 2.0) == seconds


def test_a_gpu_that_failed_for_days_still_has_a_next_time() -> None:
    assert pause_s(100_000, 2.0) == LONGEST_PAUSE_S

"""What a plan says of a GPU, and how long one waits that failed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.gpu_use import GpuUse, LeftProcess, UseKind
from partage.model.ids import ContainerId, PodUid
from partage.plan.reconcile.blocked import Blocked, Blocker, BlockKind
from partage.plan.reconcile.node_plan import LONGEST_PAUSE_S, GpuPlan, Phase, pause_s
from partage.plan.reconcile.pod_uses import NOT_NAMED, entry_uses
from tests.plan.offers import NAME, gpu, node, share
from tests.plan.reconcile.test_planner import entry

UUID = gpu(0).uuid


def test_in_the_way_are_processes_and_what_is_left_of_pods_and_not_pods() -> None:
    users = (GpuUse(UUID, UseKind.PROCESS, "python", 1), GpuUse(UUID, UseKind.POD, "team/train"))
    blocked = Blocked(UUID, BlockKind.HELD, "it is used", (Blocker(UUID, users, "it has to be idle"),))
    left = LeftProcess(PodUid("uid"), ContainerId("3f" * 32), 2, name="sleep")
    held = replace(entry(NAME, share(0)), left=(left, left))
    plan = GpuPlan(Phase.WAITING, blocked=blocked, waiting_for=(held,))
    assert plan.processes == (str(users[0]), str(left))


def test_a_pod_that_the_kubelet_does_not_name_is_a_user_without_a_name() -> None:
    named = entry(NAME, share(0))
    assert [use.name for use in entry_uses([named], node(gpu(0)))] == ["default/train"]
    assert [use.name for use in entry_uses([replace(named, holders=())], node(gpu(0)))] == [NOT_NAMED]


@pytest.mark.parametrize(("tries", "seconds"), [(1, 2.0), (2, 4.0), (5, 32.0), (6, LONGEST_PAUSE_S)])
def test_pauses_grow_up_to_a_minute(tries: int, seconds: float) -> None:
    assert pause_s(tries, 2.0) == seconds


def test_a_gpu_that_failed_for_days_still_has_a_next_time() -> None:
    assert pause_s(100_000, 2.0) == LONGEST_PAUSE_S

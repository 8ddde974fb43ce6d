"""With what a Node is tainted: by conditions, and only where it is asked for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.gpu import NoDriver
from partage.model.node_labels import NodeTaint
from partage.plan.cluster.conditions import node_taints
from partage.plan.report import DependencyProblems
from tests.kubernetes.decide.test_events import ILL, WELL
from tests.plan.reconcile.test_planner import observe, snapshot
from tests.plan.test_report_events import ONE

READY, HEALTHY = NodeTaint.NOT_READY, NodeTaint.GPU_UNHEALTHY
BOTH = frozenset(NodeTaint)
SICK = replace(WELL, gpus=(ONE, replace(ONE, health=ILL)))
SILENT = replace(WELL, dependencies=DependencyProblems(hardware="it hangs"))


@pytest.mark.parametrize(
    ("now", "asked", "taints"),
    [
        (WELL, BOTH, {READY: False, HEALTHY: False}),
        (SICK, BOTH, {READY: False, HEALTHY: True}),
        (SICK, {READY}, {READY: False, HEALTHY: False}),
        (SILENT, BOTH, {READY: True}),
        (SILENT, frozenset(), {READY: False, HEALTHY: False}),
    ],
    ids=["well", "ill", "ill, not asked for", "not ready, and health is not known", "nothing is asked for"],
)
def test_taints(now, asked, taints) -> None:
    assert node_taints(now, asked) == taints


def test_without_a_driver_the_node_is_not_ready() -> None:
    inventory = replace(WELL.node.inventory, driver=NoDriver("driver-missing", "no driver"))
    now = replace(WELL, node=replace(WELL.node, inventory=inventory))
    assert node_taints(now, BOTH) == {READY: True}


def test_while_another_plugin_serves_the_gpus_there_are_none() -> None:
    now = replace(SICK, snapshot=snapshot(observe(), other_plugin="another process"))
    assert node_taints(now, BOTH) == {READY: False, HEALTHY: False}

"""With what a Node is tainted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from partage.model.node_labels import NodeTaint
from partage.plan.cluster.conditions import GPUS_HEALTHY, READY, node_conditions
from partage.plan.report import Report

_HOLDS_WITHOUT = {NodeTaint.NOT_READY: READY, NodeTaint.GPU_UNHEALTHY: GPUS_HEALTHY}


def node_taints(report: Report, asked: Collection[NodeTaint]) -> Mapping[NodeTaint, bool]:
    """Which taints the Node has, and which it has not. What is not known is left out, and stays as it is.

    asked: all others are taken away. While another device plugin serves the GPUs, Partage sets none.
    """
    if report.snapshot is not None and report.snapshot.other_plugin:
        return dict.fromkeys(NodeTaint, False)
    status = {condition.type: condition.status for condition in node_conditions(report)}
    found = {taint: not status[kind] for taint, kind in _HOLDS_WITHOUT.items() if kind in status}
    return {
        taint: taint in asked and found[taint] for taint in NodeTaint if taint in found or taint not in asked
    }

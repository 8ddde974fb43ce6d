"""Nodes and pods as they stand in a cluster: what agents publish, made by the agent's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partage.agent.node_labels import labels_of
from partage.plan.cluster.conditions import PLAN, node_conditions, pending_gpus, plan_annotation
from partage.plan.cluster.gpu_memory import GPU_MEMORY, memory_annotation, node_memory
from partage.plan.report import Report

Json = dict[str, Any]
SINCE = "2026-03-01T09:30:00Z"


def node_object(name: str, report: Report, **more: Any) -> Json:
    """The Node of an agent with this report. more: annotations, labels, kubelet (status of Ready)."""
    held = ((one.resource, one.id, one.holders, one.claim) for one in report.entries)
    annotations = {
        PLAN: plan_annotation(pending_gpus(report), "", SINCE),
        GPU_MEMORY: memory_annotation(node_memory(report.offer, held)),
        **more.get("annotations", {}),
    }
    capacity = {str(one.name): str(one.listed) for one in report.resources}
    allocatable = {str(one.name): str(one.healthy) for one in report.resources}
    conditions = [
        {
            "type": one.type,
            "status": str(one.status),
            "reason": one.reason,
            "message": one.message,
            "lastTransitionTime": SINCE,
        }
        for one in node_conditions(report)
    ]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": SINCE}
    return {
        "metadata": {
            "name": name,
            "labels": {**(labels_of(report) or {}), **more.get("labels", {})},
            "annotations": {key: value for key, value in annotations.items() if value},
        },
        "spec": {"unschedulable": True} if more.get("cordoned") else {},
        "status": {
            "capacity": {"cpu": "96", "memory": "1056Gi", "pods": "110", **capacity},
            "allocatable": {"cpu": "95", **allocatable},
            "conditions": [{**ready, **more.get("kubelet", {})}, *conditions],
        },
    }


def plain_node(name: str) -> Json:
    """A Node without GPUs."""
    return {"metadata": {"name": name}, "spec": {}, "status": {"capacity": {"cpu": "8", "pods": "110"}}}


def pod_object(name: str, node: str, requests: Mapping[str, int], namespace: str = "team") -> Json:
    """A pod that runs."""
    amounts = {"cpu": "1", **{key: str(count) for key, count in requests.items()}}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": amounts}}]},
        "status": {"phase": "Running", "startTime": SINCE},
    }


def agent_pod(node: str) -> Json:
    """The agent's pod, as the chart makes it."""
    labels = {"app.kubernetes.io/name": "partage", "app.kubernetes.io/component": "agent"}
    made = pod_object(f"partage-agent-{node}", node, {}, "partage")
    made["metadata"]["labels"] = labels
    return made

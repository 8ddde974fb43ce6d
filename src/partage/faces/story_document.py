"""The JSON answer of ``simulate``, and what the picture needs of an ending."""

from __future__ import annotations

from typing import Any

from partage.faces.documents import node_rows, resource_rows
from partage.faces.report import verify_of
from partage.lab.stories.model import Story
from partage.lab.stories.play import StoryEnding, StoryScene
from partage.model.ids import GpuUuid, ShareId
from partage.sim.kubelet.pod import ContainerStatus, PodStatus


def ending_document(story: Story, ending: StoryEnding) -> dict[str, Any]:
    """How the story went and how the node stands."""
    report = ending.snapshot.report
    return {
        "title": story.title,
        "machine": story.machine.name,
        "policy": story.policy.name if story.policy else None,
        "passed": ending.good,
        "scenes": [_scene(scene) for scene in ending.scenes],
        "protocolErrors": list(ending.protocol_errors),
        "capacity": dict(ending.snapshot.capacity),
        "allocatable": dict(ending.snapshot.allocatable),
        "resources": resource_rows(report.offer, verify_of(report)) if report else [],
        "node": node_rows(ending.inventory),
        "pods": [_pod(status) for status in ending.snapshot.pods],
    }


def _scene(scene: StoryScene) -> dict[str, Any]:
    row: dict[str, Any] = {"atSeconds": round(scene.at_s, 3), "verb": scene.verb, "text": scene.text}
    if scene.good is not None:
        row["good"] = scene.good
    if scene.details:
        row["details"] = list(scene.details)
    return row


def _pod(status: PodStatus) -> dict[str, Any]:
    return {
        "namespace": status.pod.namespace,
        "name": status.pod.name,
        "phase": str(status.phase),
        "reason": status.reason,
        "message": status.message,
        "containers": [_container(container) for container in status.containers],
    }


def _container(container: ContainerStatus) -> dict[str, Any]:
    return {
        "name": container.name,
        "state": str(container.state),
        "ids": {resource: sorted(ids) for resource, ids in container.ids.items()},
        "env": dict(sorted(container.env.items())),
        "mounts": [
            {"containerPath": mount.container_path, "hostPath": mount.host_path, "readOnly": mount.read_only}
            for mount in container.mounts
        ],
        "devices": [
            {
                "containerPath": node.container_path,
                "hostPath": node.host_path,
                "permissions": node.permissions,
            }
            for node in container.devices
        ],
        "annotations": dict(container.annotations),
        "cdiDevices": list(container.cdi_devices),
    }


def holders_of(ending: StoryEnding) -> dict[ShareId, str]:
    """NamedShare id to the pod that holds it, as the kubelet reports it."""
    return {
        share: status.pod.key
        for status in ending.snapshot.pods
        if status.holds
        for container in status.containers
        for ids in container.ids.values()
        for share in ids
    }


def troubles_of(ending: StoryEnding) -> dict[GpuUuid, str]:
    """GPU UUID to what is wrong with it, as the agent reports it."""
    report = ending.snapshot.report
    return {
        gpu.uuid: f"{gpu.health.state}: {gpu.health.reason}"
        for gpu in (report.gpus if report else ())
        if not gpu.health.state.offered
    }

"""Pods that users of the cluster make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def pod(name: str, *limits: Mapping[str, int], command: Sequence[str] = (), **spec: Any) -> Json:
    """A pod of busybox whose containers (``main``, ``c1``, ...) ask for these resources."""
    containers = [
        {
            "name": "main" if number == 0 else f"c{number}",
            "image": "docker.io/library/busybox:local",
            "imagePullPolicy": "IfNotPresent",
            "command": list(command) or ["/pause"],
            "resources": {"limits": {key: str(value) for key, value in asked.items()}},
        }
        for number, asked in enumerate(limits)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"partage-e2e": "tenant"}},
        "spec": {"containers": containers, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
        | spec,
    }


def deployment(name: str, replicas: int, limits: Mapping[str, int], **spec: Any) -> Json:
    """A Deployment of such pods with one container."""
    return _workload("Deployment", name, limits, spec, {"replicas": replicas})


def daemon_set(name: str, limits: Mapping[str, int], **spec: Any) -> Json:
    """A DaemonSet of such pods with one container."""
    return _workload("DaemonSet", name, limits, spec, {})


def _workload(
    kind: str, name: str, limits: Mapping[str, int], spec: Mapping[str, Any], more: Mapping[str, Any]
) -> Json:
    labels = {"app": name, "partage-e2e": "tenant"}
    template = {
        "metadata": {"labels": labels},
        "spec": pod("unused", limits, **spec)["spec"] | {"restartPolicy": "Always"},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template, **more},
    }


def job(name: str, parallelism: int, completions: int, limits: Mapping[str, int], **spec: Any) -> Json:
    """A Job of such pods; each ends well as soon as it has a file ``/end``."""
    labels = {"app": name, "partage-e2e": "tenant"}
    template = pod("unused", limits, command=("sh", "-c", "until [ -e /end ]; do sleep 0.1; done"), **spec)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "parallelism": parallelism,
            "completions": completions,
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }

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


def deployment(name: str, replicas: int, limits: Mapping[str, int]) -> Json:
    """A Deployment of such pods with one container."""
    template = pod("unused", limits)
    labels = {"app": name, "partage-e2e": "tenant"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": template["spec"] | {"restartPolicy": "Always"},
            },
        },
    }

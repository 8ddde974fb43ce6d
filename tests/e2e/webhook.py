"""Pods of other systems as the webhook lets them in."""

from __future__ import annotations

import json
import re

import yaml

from tests.e2e.claims import devices
from tests.e2e.cluster import NAMESPACE, Cluster, Json

GIB = 1 << 30
NAME = "partage-admission"
TRANSLATED = "partage.dev/translated"


def create(cluster: Cluster, document: Json, *options: str) -> str:
    """What kubectl says."""
    return cluster.kubectl("create", *options, "-f", "-", stdin=yaml.safe_dump(document), check=False)


def as_made(said: str) -> Json:
    """The object that kubectl prints; warnings stand around it."""
    found: Json = json.JSONDecoder().raw_decode(said[said.index("{") :])[0]
    return found


def created(cluster: Cluster, document: Json) -> str:
    """What kubectl says of a pod that was let in."""
    said = create(cluster, document)
    assert re.search(r"\bcreated\b", said), said
    return said


def replicas(cluster: Cluster) -> list[Json]:
    found = cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=admission")["items"]
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def names_of_templates(cluster: Cluster) -> set[str]:
    found = cluster.get("resourceclaimtemplates", "-l", "partage.dev/made-for=pods")["items"]
    return {one["metadata"]["name"] for one in found}


def check_gpu(cluster: Cluster, name: str, memory_bytes: int) -> None:
    """The GPU that the claim names is that of the container, with so much memory."""
    found = cluster.pod(name)
    (status,) = found["status"]["resourceClaimStatuses"]
    claim = cluster.get("resourceclaim", status["resourceClaimName"])
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    published = devices(cluster)[result["device"]]["attributes"]["uuid"]["string"]
    told = cluster.environment(name)
    assert told["PARTAGE_GPUS"] == published
    assert int(told["PARTAGE_MEMORY_BYTES"]) == memory_bytes
    assert found["metadata"]["annotations"]["partage.dev/translated"]
    assert found["spec"]["schedulerName"] == "default-scheduler"

"""Claims as tenants of a cluster make them, what a node needs to run them without a GPU, and their end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.cluster import NAMESPACE, Cluster, Json
from tests.e2e.tenants import pod

DRIVER = "gpu.partage.dev"
WHOLE = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
SHARE_CONFIG = {"apiVersion": "partage.dev/v1", "kind": "ShareConfig"}
EVEN = {"name": "gpu", "exactly": {"deviceClassName": "share.partage.dev"}}


def part(memory: str, cores: int | None = None, name: str = "gpu") -> Json:
    requests = {"memory": memory} | ({} if cores is None else {"cores": str(cores)})
    return {"name": name, "exactly": {"deviceClassName": DRIVER, "capacity": {"requests": requests}}}


def mig(profile: str, **more: Any) -> Json:
    expression = f"device.attributes['{DRIVER}'].profile == '{profile}'"
    return {"deviceClassName": "mig.partage.dev", "selectors": [{"cel": {"expression": expression}}], **more}


def template(name: str, *requests: Json, namespace: str = "default", config: Json | None = None) -> Json:
    devices: Json = {"requests": list(requests)}
    if config is not None:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": config}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace, "labels": {"partage-e2e": "tenant"}},
        "spec": {"spec": {"devices": devices}},
    }


def claiming(name: str, template_name: str = "", claim: str = "", containers: int = 1, **meta: str) -> Json:
    """A pod whose containers all have one claim."""
    made = pod(name, *({} for _ in range(containers)))
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template_name or name}
    made["spec"]["resourceClaims"] = [{"name": "gpu", **source}]
    for container in made["spec"]["containers"]:
        container["resources"] = {"claims": [{"name": "gpu"}]}
    made["metadata"] |= meta
    return made


def remove_claims(cluster: Cluster, left: Callable[[Cluster], object], *namespaces: str) -> None:
    """Pods first, then claims and templates once nothing is left of them on the node."""
    places = [("-n", namespace) for namespace in namespaces or ("default",)]
    for place in places:
        cluster.kubectl("delete", "pods", "--all", *place, "--force", "--grace-period=0", check=False)
    if cluster.get("pods", "-n", NAMESPACE)["items"]:
        cluster.until("nothing is held by claims", lambda: not left(cluster))
    for place in places:
        for kind in ("resourceclaimtemplates", "resourceclaims"):
            cluster.kubectl("delete", kind, "--all", *place, "--wait=false", check=False)


def skip_without_claims(cluster: Cluster) -> int:
    """Skip on a cluster that has no claims, or whose node is not ours; else its Kubernetes' minor version."""
    if cluster.folder is None:
        pytest.skip("device files that stand for GPUs are made on the node of an own cluster")
    minor = int(json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["minor"])
    if minor < 36:
        pytest.skip(f"Kubernetes 1.{minor}: claims need 1.36.4 or newer")
    return minor


def make_device_files(cluster: Cluster) -> None:
    """What the simulated node's CDI specs name; nothing answers there. The simulated MPS daemons have no
    directories, which CDI does not make, as the kubelet does.
    """
    for gpu in cluster.report()["gpus"]:
        cluster.on_node(
            "mkdir", "-p", f"/run/partage/mps/{gpu['uuid']}/pipe", f"/run/partage/mps/{gpu['uuid']}/shm"
        )
    specs = [json.loads(path.read_text()) for path in cluster.path_on_node("/run/partage/cdi").glob("*.json")]
    edits = [
        part["containerEdits"]
        for spec in specs
        for part in (spec, *spec["devices"])
        if "containerEdits" in part
    ]
    for path in {file["path"] for edit in edits for file in edit.get("deviceNodes", ())}:
        cluster.on_node("mkdir", "-p", path.rpartition("/")[0])
        cluster.on_node("sh", "-c", f"test -e {path} || mknod -m 666 {path} c 1 3")


def devices(cluster: Cluster, driver: str = DRIVER) -> dict[str, Json]:
    """All devices of the driver's slices, by name."""
    slices = cluster.get("resourceslices")["items"]
    ours = (one["spec"] for one in slices if one["spec"]["driver"] == driver)
    return {one["name"]: one for spec in ours for one in spec.get("devices", [])}


def claimed(cluster: Cluster) -> set[str]:
    """Claims that hold something, as the agent reports them."""
    return {one["claim"] for one in cluster.report()["held"] if one.get("claim")}


def refused(cluster: Cluster, name: str) -> str:
    """Why the scheduler cannot give it anything, once it has said so."""
    return cluster.until("it is not scheduled", lambda: cluster.events("FailedScheduling", name))[-1]


def remove_installed(cluster: Cluster) -> None:
    """The tenants, the chart, and the claims and templates that are left."""
    try:
        cluster.remove_tenants()
    finally:
        cluster.uninstall()
        cluster.kubectl("delete", "resourceclaimtemplates,resourceclaims", "--all", check=False)

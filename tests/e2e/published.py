"""Manifests that other systems publish, read from copies of their repositories, made fit for a small cluster:
what they ask of GPUs stays.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from partage.kubernetes.manifests.pods import is_manifest, is_own_kind, pod_specs_at

Json = dict[str, Any]
REPOSITORIES = (
    "Project-HAMi/HAMi",
    "Project-HAMi/volcano-vgpu-device-plugin",
    "volcano-sh/volcano",
    "kai-scheduler/KAI-Scheduler",
    "AliyunContainerService/gpushare-scheduler-extender",
    "AliyunContainerService/gpushare-device-plugin",
    "nebuly-ai/nos",
)
OURS = re.compile(
    r"nvidia\.com/(gpu|mig)|volcano\.sh/v?gpu|aliyun\.com/gpu|gpu-fraction|\bgpu-memory\b|gke-gpu-sharing"
)
OTHERS = re.compile(r"(amd|huawei|cambricon|hygon|metax|mthreads|iluvatar|enflame|kunlun|vastai)[a-z]*\.")
"""Of other vendors' devices."""
_BLOCK = re.compile(r"^( *)```[^`\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_BETWEEN = re.compile(r"^ *(?:---.*|EOF|\$ .*|.*<<.*)$", re.MULTILINE)
"""Documents, also in commands of a shell."""
_NOT_TRIED = re.compile(r"(^|/)(vendor|crds?|bases|testdata)/|CHANGELOG")
_VERSIONS = {"Pod": "v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1", "Job": "batch/v1"}
"""Of today: some manifests are older than Kubernetes 1.16."""
_PAUSE = {
    "image": "docker.io/library/busybox:local",
    "imagePullPolicy": "IfNotPresent",
    "command": ["/pause"],
}
_KEPT_OF_CONTAINER = {"name", "resources", "restartPolicy", "env"}
_KEPT_OF_POD = {
    "containers",
    "initContainers",
    "schedulerName",
    "resourceClaims",
    "restartPolicy",
}


class Published(NamedTuple):
    """An object of a repository's file; number: in the file, from 1."""

    repository: str
    file: str
    number: int
    document: Json

    @property
    def where(self) -> str:
        return f"{self.file} [{self.number}] {self.document['kind']}"

    @property
    def is_own_kind(self) -> bool:
        return is_own_kind(self.document)


def commit_of(folder: Path) -> str:
    """Short."""
    return _git(folder, "rev-parse", "--short=8", "HEAD").strip()


def published(folder: Path, repository: str) -> Iterator[Published]:
    """Objects with pods that ask for GPUs of NVIDIA, in YAML files and in blocks of Markdown. What is made of
    templates is no YAML and left out.
    """
    files = _git(folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    for file in files:
        if not file.endswith((".yaml", ".yml", ".md")) or _NOT_TRIED.search(file):
            continue
        text = _git(folder, "show", f"HEAD:{file}")
        found = (document for part in _parts(file, text) for document in _documents(part))
        for number, document in enumerate(found, 1):
            if _asks(document):
                yield Published(repository, file, number, document)


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True)
    return done.stdout.decode(errors="replace")


def _parts(file: str, text: str) -> list[str]:
    return [found[2] for found in _BLOCK.finditer(text)] if file.endswith(".md") else [text]


def _documents(text: str) -> Iterator[Json]:
    for part in _BETWEEN.split(text):
        try:
            found = yaml.safe_load(part)
        except yaml.YAMLError:
            continue
        if isinstance(found, dict) and is_manifest(found):
            yield found


def _asks(document: Json) -> bool:
    pods = [_pod_at(document, keys) for keys in pod_specs_at(document)]
    text = "\n".join(yaml.safe_dump(_worded(pod)) for pod in pods)
    return bool(OURS.search(text)) and not OTHERS.search(text)


def _pod_at(document: Json, keys: tuple[Any, ...]) -> Json:
    """Its metadata and spec; {} of a part of an object."""
    found: Any = document
    for key in keys[:-1]:
        found = found.get(key) if isinstance(found, dict) else found[key] if isinstance(found, list) else None
    if not isinstance(found, dict):
        return {}
    return found if keys[-1] == "spec" else {"spec": found.get(keys[-1])}


def _worded(pod: Json) -> Json:
    """What of a pod can ask for GPUs. The agents of these systems name the resources elsewhere."""
    spec = pod.get("spec") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    resources = [one.get("resources") for one in containers if isinstance(one, dict)]
    marks = (pod.get("metadata") or {}).get("annotations")
    return {"annotations": marks, "resources": resources, "nodeSelector": spec.get("nodeSelector")}


def fitted(found: Published, name: str) -> Json:
    """The object for a node with two cores and busybox alone: another name, other programs, no CPU, no main
    memory, no volumes, no labels of nodes. ``app`` finds its pods.
    """
    document: Json = yaml.safe_load(yaml.safe_dump(found.document))
    meta = document.setdefault("metadata", {})
    meta.pop("generateName", None)
    meta.pop("namespace", None)
    meta["name"] = name
    if document["kind"] in _VERSIONS:
        document["apiVersion"] = _VERSIONS[document["kind"]]
    (keys,) = pod_specs_at(document)
    pod = _pod_at(document, keys)
    for labelled in (document, pod):
        meta = labelled["metadata"] = labelled.get("metadata") or {}
        meta["labels"] = {**(meta.get("labels") or {}), "app": name, "partage-e2e": "tenant"}
    if document["kind"] in ("Deployment", "StatefulSet"):
        document["spec"]["selector"] = {"matchLabels": {"app": name}}
    spec = {key: value for key, value in pod["spec"].items() if key in _KEPT_OF_POD}
    for group in ("containers", "initContainers"):
        if spec.get(group):
            spec[group] = [_fitted_container(one, group) for one in spec[group]]
    pod["spec"] = {**spec, "terminationGracePeriodSeconds": 0}
    return document


def _fitted_container(container: Json, group: str) -> Json:
    kept = {key: value for key, value in container.items() if key in _KEPT_OF_CONTAINER}
    resources = kept.get("resources") or {}
    kept["resources"] = {
        part: _extended(amounts) if isinstance(amounts, dict) else amounts
        for part, amounts in resources.items()
    }
    ends = group == "initContainers" and container.get("restartPolicy") != "Always"
    return kept | _PAUSE | ({"command": ["true"]} if ends else {})


def _extended(amounts: Json) -> Json:
    return {name: amount for name, amount in amounts.items() if "/" in name}

"""The objects of manifests that make pods: which of them a workload's containers are of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from partage.edges.host.read_file import files_below
from partage.errors import InputError, Problem
from partage.kubernetes.manifests.input_files import ManifestInput, read_input_file
from partage.kubernetes.manifests.pods import POD_SPEC_AT, objects_of
from partage.plan.history.evidence import workload_of
from partage.plan.offer.policy_choice import POLICY_SUFFIXES
from partage.values import Frozen


class PodOwner(Frozen):
    """An object that makes pods, or is one. namespace: empty: its manifest does not say. file: where it is.

    resources: of each container, the names in its limits and requests.
    """

    api_version: str
    kind: str
    name: str
    namespace: str
    file: str
    resources: Mapping[str, frozenset[str]]

    @property
    def pod_spec_at(self) -> tuple[str, ...]:
        """The keys that lead to the pod's spec."""
        return POD_SPEC_AT[self.kind]


def read_owners(paths: Iterable[Path]) -> tuple[PodOwner, ...]:
    """Of all manifests of files and directories. Raises InputError with everything that is none."""
    owners: list[PodOwner] = []
    problems: list[Problem] = []
    for path in paths:
        for file in _files(path):
            try:
                found = read_input_file(str(file))
            except InputError as error:
                problems += error.problems
                continue
            if isinstance(found, ManifestInput):
                owners += _owners(found)
            elif path.is_file():
                problems.append(
                    Problem(str(file), "", "error", "has no Kubernetes objects", "name manifests here")
                )
    if problems:
        raise InputError(problems)
    return tuple(owners)


def owners_of(workload: str, owners: Iterable[PodOwner]) -> tuple[PodOwner, ...]:
    """Those that may have made its pods. workload: ``namespace/name/container``. One whose manifest says the
    namespace goes before those that do not.
    """
    namespace, name, container = (*workload.split("/", 2), "", "")[:3]
    fitting = [
        owner
        for owner in owners
        if _makes(owner, name) and container in owner.resources and owner.namespace in {"", namespace}
    ]
    sure = [owner for owner in fitting if owner.namespace]
    return tuple({(owner.kind, owner.name, owner.namespace): owner for owner in sure or fitting}.values())


def _makes(owner: PodOwner, workload: str) -> bool:
    return workload in (owner.name, workload_of(owner.name) if owner.kind == "Pod" else owner.name)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return files_below(path, *POLICY_SUFFIXES)


def _owners(found: ManifestInput) -> Iterator[PodOwner]:
    for path, document in found.documents:
        top = document.value
        for _, value in objects_of(top, path) if isinstance(top, dict) else ():
            metadata = value.get("metadata")
            if not isinstance(metadata, Mapping) or value["kind"] not in POD_SPEC_AT:
                continue
            if metadata.get("ownerReferences"):
                continue  # its owner would undo the change
            name = metadata.get("name")
            if isinstance(name, str):
                yield PodOwner(
                    api_version=str(value["apiVersion"]),
                    kind=str(value["kind"]),
                    name=name,
                    namespace=str(metadata.get("namespace") or ""),
                    file=found.file,
                    resources=dict(_containers(value)),
                )


def _containers(value: Mapping[str, Any]) -> Iterator[tuple[str, frozenset[str]]]:
    spec: Any = value
    for key in POD_SPEC_AT[value["kind"]]:
        spec = spec.get(key) if isinstance(spec, Mapping) else None
    rows = spec.get("containers") if isinstance(spec, Mapping) else None
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping) and isinstance(row.get("name"), str):
            resources = row.get("resources")
            asked = resources if isinstance(resources, Mapping) else {}
            names = (asked.get(key) for key in ("limits", "requests"))
            yield (
                row["name"],
                frozenset(str(name) for some in names if isinstance(some, Mapping) for name in some),
            )

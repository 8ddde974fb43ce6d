"""What a file that is to be checked is: a policy, a manifest, a story, a machine, worker groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from partage.codec.yaml_document import YamlDocument, read_document, split_documents
from partage.edges.files.input_file import read_input
from partage.errors import InputError
from partage.kubernetes.manifests.node import LineOf
from partage.kubernetes.manifests.pods import is_manifest, objects_of
from partage.values import Frozen

WORKER_GROUPS = "WorkerGroups"
"""The ``kind`` of a cluster file."""


class PolicyInput(Frozen):
    """To be read as a policy."""

    file: str
    content: bytes


class StoryInput(Frozen):
    """To be read as a story."""

    file: str


class MachineInput(Frozen):
    """To be read as a machine for the simulation."""

    file: str
    content: bytes


class ManifestInput(Frozen):
    """Kubernetes objects, each with its path: ``[1]`` for the second of several."""

    file: str
    content: bytes
    documents: tuple[tuple[str, YamlDocument], ...]


class GroupsInput(Frozen):
    """The worker groups of a cluster."""

    file: str
    document: YamlDocument


Paper = PolicyInput | StoryInput | MachineInput | ManifestInput | GroupsInput


def read_input_file(file: str) -> Paper:
    """Read the file and tell what it is. Raises InputError for a file that cannot be read.

    What is nothing else is a policy, a broken one perhaps: its reader says what is wrong.
    """
    content = read_input(file)
    parts = split_documents(content)
    if len(parts) == 1:
        try:
            read = read_document(content, file)
        except InputError:
            return PolicyInput(file, content)
        return _single(file, content, read)
    documents = [(f"[{n}]", read_document(part, file)) for n, part in enumerate(parts)]
    found = tuple((path, one) for path, one in documents if is_manifest(one.value))
    return ManifestInput(file, content, found) if found else PolicyInput(file, content)


def _single(file: str, content: bytes, read: YamlDocument) -> Paper:
    document = read.value
    if not isinstance(document, dict):
        return PolicyInput(file, content)
    if document.get("kind") == WORKER_GROUPS:
        return GroupsInput(file, read)
    if is_manifest(document):
        return ManifestInput(file, content, (("", read),))
    if "steps" in document and "version" not in document:
        return StoryInput(file)
    if document.get("kind") == "Machine" or _names_gpus(document):
        return MachineInput(file, content)
    return PolicyInput(file, content)


def _names_gpus(document: Mapping[str, Any]) -> bool:
    """A machine without a header, or a recording that holds one: its GPUs have names and select nothing."""
    inner = document.get("machine")
    machine = inner if isinstance(inner, dict) else document
    gpus = machine.get("gpus")
    rows = gpus if isinstance(gpus, list) and "version" not in machine else []
    return any(isinstance(row, dict) and "name" in row and "select" not in row for row in rows)


ManifestObject = tuple[str, Mapping[str, Any], LineOf]
"""The path of a Kubernetes object in its file, the object, and the lines of its keys."""


def objects(manifest: ManifestInput) -> Iterator[ManifestObject]:
    """All Kubernetes objects in the file, those in Lists too, with their paths and lines."""
    for path, document in manifest.documents:
        if isinstance(document.value, dict):
            for where, value in objects_of(document.value, path):
                yield where, value, document.line

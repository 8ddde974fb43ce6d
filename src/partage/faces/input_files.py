"""What a file that is to be checked is: a policy, a Kubernetes manifest, a story, a machine."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from partage.codec.yaml_document import read_document, read_lenient
from partage.edges.files.input_file import read_input
from partage.errors import InputError, Problem
from partage.faces.manifest import config_texts, is_manifest, objects_of
from partage.values import Frozen

_MARKER = re.compile(rb"^---(?=\s|$)", re.MULTILINE)
"""Where a document begins. A line that starts so ends every YAML value, block texts included."""

_CONFIG_KEYS = frozenset({"version", "flags", "sharing", "resources", "mig-configs", "gpus", "imex"})


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
    documents: tuple[tuple[str, Mapping[str, Any]], ...]


Paper = PolicyInput | StoryInput | MachineInput | ManifestInput


def read_input_file(file: str) -> Paper:
    """Read the file and tell what it is. Raises InputError for a file that cannot be read.

    What is nothing else is a policy, a broken one perhaps: its reader says what is wrong.
    """
    content = read_input(file)
    parts = _parts(content)
    if len(parts) == 1:
        try:
            document = read_document(content, file).value
        except InputError:
            return PolicyInput(file, content)
        return _single(file, content, document)
    documents = [(f"[{n}]", read_document(part, file).value) for n, part in enumerate(parts)]
    found = tuple(
        (path, value) for path, value in documents if isinstance(value, dict) and is_manifest(value)
    )
    return ManifestInput(file, found) if found else PolicyInput(file, content)


def _single(file: str, content: bytes, document: object) -> Paper:
    if not isinstance(document, dict):
        return PolicyInput(file, content)
    if is_manifest(document):
        return ManifestInput(file, (("", document),))
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


def objects(manifest: ManifestInput) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All Kubernetes objects in the file, those in Lists too."""
    for path, document in manifest.documents:
        yield from objects_of(document, path)


def configs_of(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """The entries of a ConfigMap that look like policies, with their paths."""
    for where, text in config_texts(document).items():
        try:
            value = read_lenient(text.encode("utf-8", "surrogatepass"), where).value
        except InputError:
            # Broken YAML in a ConfigMap of anything else is not ours; in one of policies it is.
            value = None if "sharing" in text or "mig-" in text or "partage/v1" in text else ""
        if value is None or (isinstance(value, dict) and _CONFIG_KEYS & set(value)):
            yield f"{path}.{where}".lstrip("."), text


def named(problem: Problem, file: str) -> Problem:
    """The problem, of that file where it names none."""
    return problem if problem.file else replace(problem, file=file)


def _parts(content: bytes) -> list[bytes]:
    """The documents of a file; empty ones left out. Lines keep their numbers."""
    starts = [match.start() for match in _MARKER.finditer(content)]
    edges = [0, *starts, len(content)]
    parts: list[bytes] = []
    for begin, end in itertools.pairwise(edges):
        text = content[begin:end]
        if re.sub(rb"^---|(?m:#.*$)", b"", text).strip():
            parts.append(b"\n" * content.count(b"\n", 0, begin) + text)
    return parts

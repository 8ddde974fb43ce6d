"""Labels of a node in files and texts: as somebody writes them down, or kubectl; and as
node-feature-discovery reads them (its source ``local``): ``key=value``, one a line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from partage.codec.yaml_document import Value, describe, read_document
from partage.edges.files.input_file import STDIN, read_input
from partage.edges.host.replace_file import replace_file
from partage.errors import InputError, Problem
from partage.model.node_labels import parse_label_key, parse_label_value, parse_labels


def read_node_labels(text: str) -> dict[str, str]:
    """``pool=inference,zone=a``; an empty text for no labels; or the name of a file, ``-`` for standard
    input: a Node as ``kubectl get node NAME -o yaml`` prints it, or a mapping of labels.

    Raises InputError.
    """
    if text.strip() and "=" not in text:
        return _from_file(text)
    try:
        return parse_labels(text)
    except ValueError as error:
        raise InputError(f"--node-labels: {error}", "pool=inference,zone=a, or a file's name") from error


def _from_file(file: str) -> dict[str, str]:
    try:
        content = read_input(file)
    except InputError as error:
        hint = "--node-labels takes labels, pool=inference,zone=a, or the name of a file"
        raise InputError(
            [replace(problem, hint=problem.hint or hint) for problem in error.problems]
        ) from error
    document = read_document(content, "standard input" if file == STDIN else file).value
    path = ""
    if isinstance(document, dict) and "metadata" in document:
        metadata, path = document["metadata"], "metadata.labels"
        document = metadata.get("labels", {}) if isinstance(metadata, dict) else None
    if not isinstance(document, dict):
        text = "has to be a Node, or a mapping of labels"
        raise InputError([Problem(file, path, "error", text, "kubectl get node NAME -o yaml prints a Node")])
    labels: dict[str, str] = {}
    problems = []
    for key, value in document.items():
        try:
            labels[parse_label_key(key)] = _value(value)
        except ValueError as error:
            problems.append(Problem(file, f"{path}.{key}".lstrip("."), "error", str(error)))
    if problems:
        raise InputError(problems)
    return labels


def _value(value: Value) -> str:
    """Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"a label's value is text, not {describe(value)}: put it in quotes")  # noqa: TRY004
    return parse_label_value(value)


def features(labels: Mapping[str, str]) -> str:
    """The content of the file."""
    return "".join(f"{key}={value}\n" for key, value in labels.items())


def write_features(path: Path, labels: Mapping[str, str]) -> None:
    """Replace the file in one step: node-feature-discovery may read it at any time, as any user.

    Raises OSError; then the old one is still there.
    """
    replace_file(path, features(labels).encode(), mode=0o644, hidden=True)

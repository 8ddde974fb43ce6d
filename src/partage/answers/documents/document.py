"""What every document begins with, and how its rows are made. Keys are added, never renamed."""

from __future__ import annotations

from typing import Literal, TypeVar

from partage.errors import Problem
from partage.model.ids import GpuUuid
from partage.values import Frozen

T = TypeVar("T")

API_VERSION = "partage/v1"


class Document(Frozen, tag_field="apiVersion", tag=API_VERSION):
    """A document: its first keys are ``apiVersion`` and ``kind``."""


class ProblemsDocument(Document, kw_only=True):
    """What ``-o json`` prints instead of an answer."""

    kind: Literal["Problems"] = "Problems"
    problems: tuple[Problem, ...]


class CheckDocument(Document, kw_only=True):
    """The answer of ``check``. files: as they were named. not_compared: which of them were not compared with
    a machine or a policy, sentences.
    """

    kind: Literal["Check"] = "Check"
    files: tuple[str, ...]
    problems: tuple[Problem, ...]
    not_compared: tuple[str, ...] = ()


class PolicySource(Frozen):
    """Which policy it is. source: its file, or a word for the built-in one. format: ``partage/v1``,
    ``nvidia/v1`` or ``mig-parted/v1``.
    """

    source: str
    format: str


class GpuName(Frozen):
    """Which GPU of the node it is. index: NVML's."""

    index: int
    uuid: GpuUuid


def row(kind: type[T], value: object, **given: object) -> T:
    """A Struct with these fields; fields that are not given are the attributes of the same name of a value.

    Raises TypeError for a field that neither has, unless it has a default.
    """
    names = getattr(kind, "__struct_fields__", ())
    taken = {name: getattr(value, name) for name in names if name not in given and hasattr(value, name)}
    return kind(**taken, **given)

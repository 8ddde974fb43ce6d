"""What a provider's rules judge: worker groups, entries of a policy, pods; each with its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import field

from partage.errors import Severity
from partage.model.geometry import Geometry
from partage.model.strategy import Strategy
from partage.providers.decide.rules import MigType
from partage.values import Frozen

Keys = tuple[str | int, ...]
"""The way to a place in a document."""


class LayoutTable(Frozen):
    """The layouts that the provider publishes for a model. wrong: a misprinted profile list, by name, with
    what was meant."""

    models: tuple[str, ...]
    title: str
    names: tuple[str, ...]
    wrong: Mapping[str, str] = field(default_factory=dict)


class Model(Frozen):
    """What is known of a group's GPU. geometry: None without MIG, or if its placements are not known; mig
    tells them apart."""

    id: str
    memory_bytes: int
    mig: bool
    geometry: Geometry | None = None


class Group(Frozen):
    """GPUs that are used in one way: a worker group, or an entry of a policy.

    at: its place. who: its name in messages. model: None: any. gpus: of one node; None: not known. mig:
    None: not said. layout: its name; profiles: its MIG devices. replicas: 1 for exclusive, None: not said.
    unequal: its shares are not equal. part: it takes only some GPUs of a node.
    """

    at: Keys
    who: str
    sharing: Strategy = Strategy.EXCLUSIVE
    replicas: int | None = None
    mig: MigType = MigType.NONE
    model: Model | None = None
    gpus: int | None = None
    layout: str | None = None
    profiles: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    unequal: bool = False
    part: bool = False


class ManifestContainer(Frozen):
    """at: its ``resources.limits``. limits: resource to amount, as written."""

    at: Keys
    who: str
    limits: Mapping[str, Any]


class ManifestPod(Frozen):
    """at: its spec. selector: its ``nodeSelector``."""

    at: Keys
    who: str
    host_ipc: bool
    selector: Mapping[str, str]
    containers: tuple[ManifestContainer, ...]


class RuleViolation(Frozen):
    """What breaks a rule, and where."""

    severity: Severity
    at: Keys
    message: str
    hint: str = ""

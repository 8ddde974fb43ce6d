"""What a story says, as values. ``read`` makes them from a file, ``play`` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import field

from partage.model.pod import Pod
from partage.sim.kubelet.pods import PodPhase
from partage.sim.node.faults import Fault
from partage.sim.node.load import Load
from partage.sim.node.machine import Machine
from partage.values import Frozen

DEFAULT_NAMESPACE = "default"
DEFAULT_WITHIN_S = 5.0


def full_pattern(pattern: str) -> str:
    """The name or pattern of a pod with its namespace."""
    return pattern if "/" in pattern else f"{DEFAULT_NAMESPACE}/{pattern}"


def short_key(key: str) -> str:
    """A pod's name; its namespace too where it is not the usual one."""
    return key.removeprefix(f"{DEFAULT_NAMESPACE}/")


class PolicyText(Frozen):
    """A policy as the agent finds it: the content of a file, or of the story. name: for messages.

    files: of a directory of named policies, by name; None: there is one file.
    """

    name: str
    content: bytes = b""
    files: Mapping[str, bytes] | None = None


# --- steps -------------------------------------------------------------------------------------


class Remark(Frozen):
    """A remark to the reader."""

    text: str


class Work(Frozen):
    """What each container of a pod does on each device that it holds. memory_bytes: the least."""

    memory_bytes: int | None = None
    load: Load | None = None


class RunPods(Frozen):
    """These pods come. refused: they have to be turned away, with this text in the reason. work: of each;
    None:
    they use nothing.
    """

    pods: tuple[Pod, ...]
    refused: str | None = None
    work: Work | None = None


class EndPods(Frozen):
    """The pods that match end. pattern: ``train-*``, in namespace ``default`` where none is given."""

    pattern: str


class ChangePolicy(Frozen):
    """The policy file is replaced."""

    policy: PolicyText


class SetLabels(Frozen):
    """Labels of the Node are set; None: removed."""

    labels: Mapping[str, str | None]


class RestartKubelet(Frozen):
    """The kubelet stops and starts again; its device plugins have to register again."""


class RestartAgent(Frozen):
    """The agent stops, away from its pods, and starts again."""


class TimePasses(Frozen):
    """Time passes: the clocks of agent and kubelet jump."""

    seconds: float


class FaultStep(Frozen):
    """A fault of the node."""

    fault: Fault


class Expect(Frozen):
    """All of this has to be true within ``within_s``. Patterns may hold ``*``.

    allocatable, capacity: resource to count; 0 also stands for a name the kubelet does not know.
    pods:     pod to phase.
    env:      pod or pod/container to variable to pattern.
    health:   state (healthy, suspect, unhealthy, probation) to the GPUs that are in it, by index.
    waiting:  GPUs that wait for their holders before they change; None: not asked.
    mig_config: what became of the layout that a label asks for (pending, success, failed, rebooting); empty:
              no label does. None: not asked.
    problem:  a text in a problem that the agent reports; empty: it reports none. None: not asked.
    """

    path: str
    within_s: float = DEFAULT_WITHIN_S
    allocatable: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    pods: Mapping[str, PodPhase] = field(default_factory=dict)
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    health: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    waiting: tuple[int, ...] | None = None
    mig_config: str | None = None
    problem: str | None = None


StoryStep = (
    Remark
    | RunPods
    | EndPods
    | ChangePolicy
    | SetLabels
    | RestartKubelet
    | RestartAgent
    | TimePasses
    | FaultStep
    | Expect
)


class Story(Frozen):
    """A story, ready to be played. policy None: every GPU exclusive. labels: of the Node; None: there is no
    cluster that has labels.
    """

    file: Path
    title: str
    machine: Machine
    policy: PolicyText | None
    config: str | None
    steps: tuple[StoryStep, ...]
    labels: Mapping[str, str] | None = None

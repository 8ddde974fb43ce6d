"""Read a story file (docs/reference/stories.md). All problems at once, each with its path and line.

What the story's machine cannot do is found here, and not in the middle of a play.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from partage.codec.fields import Dialect, Field, Notes, Table, nearest_word
from partage.codec.reader import number, parsed
from partage.codec.yaml_document import read_document
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.input_file import read_input, read_regular_input
from partage.edges.files.policy import parse_policy
from partage.edges.files.policy_directory import read_policies
from partage.errors import InputError, Unsatisfiable
from partage.lab.stories.expectations import read_expectation
from partage.lab.stories.model import (
    ChangePolicy,
    EndPods,
    FaultStep,
    PolicyText,
    Remark,
    RestartAgent,
    RestartKubelet,
    RunPods,
    SetLabels,
    Story,
    StoryStep,
    TimePasses,
    Work,
    full_pattern,
)
from partage.model.gpu import NoDriver
from partage.model.ids import parse_resource_name
from partage.model.node_labels import parse_label_key, parse_label_value
from partage.model.pod import Container, Pod
from partage.plan.offer.desired import resolve
from partage.sim.node.effects import apply_fault
from partage.sim.node.faults import Fault, Occupy, RaiseXid
from partage.sim.node.files.fault_syntax import read_fault
from partage.sim.node.files.load import load_machine
from partage.sim.node.files.value_syntax import read_bytes, read_load
from partage.sim.node.machine import Machine
from partage.sim.node.state import power_on
from partage.values import Frozen

_TOP = ("title", "machine", "policy", "config", "labels", "steps")
_STEPS = {
    "say": ("say",),
    "run": ("run", "requests", "containers", "init", "copies", "refused", "memory", "load"),
    "end": ("end",),
    "policy": ("policy",),
    "label": ("label",),
    "restart": ("restart",),
    "later": ("later",),
    "fault": ("fault",),
    "expect": ("expect", "within"),
}
"""What a step can do, and the keys that go with it. Each has a method of the reader."""

_MOST_STEPS = 1000
_MOST_COPIES = 1000
_DURATION = re.compile(r"(\d{1,4}) ?([smh])", re.ASCII)
_POD_NAME = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,62}/)?[a-z0-9][a-z0-9.-]{0,200}", re.ASCII)


def read_story(
    path: Path,
    *,
    machine: str | None = None,
    policy: str | None = None,
    config: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Story:
    """The story in that file; machine, policy, config and labels outrank the file's own.

    Raises InputError with all problems.
    """
    file = str(path)
    document = read_document(read_input(file), file)
    notes = Notes(document, file, Dialect())
    top = notes.top_table(_TOP)
    reader = StoryReader(path.parent)
    chosen_machine = load_machine(machine) if machine is not None else reader.machine(top)
    reader = StoryReader(path.parent, chosen_machine)
    steps = reader.steps(top)
    chosen_policy = (
        _policy_text(policy, read_input) if policy is not None else top.value("policy", reader.policy, None)
    )
    _check_kinds(top, chosen_policy, steps)
    title = top.value("title", Field.text, None)
    config = config if config is not None else top.value("config", Field.text, None)
    notes.finish()
    assert chosen_machine is not None, "a machine that could not be made has been noted"
    title = title or path.resolve().parent.name
    known = labels if labels is not None else top.value("labels", _labels, None)
    if known is None and any(isinstance(step, SetLabels) for step in steps):
        known = {}
    notes.finish()
    return Story(path, title, chosen_machine, chosen_policy, config, steps, known)


def _policy_text(path: str, read: Callable[[str], bytes]) -> PolicyText:
    """A policy, or a directory of them. Raises InputError."""
    policy_texts = read_policies(path, read)
    if not policy_texts.directory:
        return PolicyText(path, policy_texts.text(path))
    return PolicyText(path, files={name: policy_texts.text(name) for name in policy_texts.names})


def _check_kinds(top: Table, policy: PolicyText | None, steps: Sequence[StoryStep]) -> None:
    """The agent's ``--policy`` names a file or a directory, and does not change."""
    policies = [policy] if policy is not None else []
    policies += [step.policy for step in steps if isinstance(step, ChangePolicy)]
    if len({text.files is None for text in policies}) > 1:
        top.whole.error("some of its policies are files, and some are directories", "take one kind")


def _labels(place: Field) -> dict[str, str] | None:
    found = _label_changes(place)
    return None if found is None else {key: value for key, value in found.items() if value is not None}


def _label_changes(place: Field) -> dict[str, str | None] | None:
    """Key to value; null removes a label."""
    members = place.mapping()
    if members is None:
        return None
    changes: dict[str, str | None] = {}
    for key, field in members.items():
        value = None if field.value is None else field.parsed(parse_label_value)
        try:
            changes[parse_label_key(key)] = value
        except ValueError as error:
            field.error(str(error))
    return changes


class StoryReader(Frozen):
    """Reads the parts of a story; problems are noted.

    folder: of the story, for names of files. node: on which it is played; None: not known.
    """

    folder: Path
    node: Machine | None = None

    def machine(self, top: Table) -> Machine | None:
        """By name, or a machine file beside the story."""
        what = "machine: 8xh100-sxm5-80gb, or a machine file beside the story"
        name = top.needed("machine", Field.text, what)
        if name is None:
            return None
        beside = self.folder / name
        try:
            return load_machine(str(beside) if beside.is_file() else name)
        except (InputError, Unsatisfiable) as error:
            for problem in error.problems:
                top.here("machine").error(problem.message, problem.hint)
            return None

    def policy(self, place: Field) -> PolicyText | None:
        """A file's name, relative to the story, or a policy written out."""
        if isinstance(place.value, dict):
            return PolicyText(f"{place.place.file}: {place.place.path}", json.dumps(place.value).encode())
        name = place.text()
        if name is None:
            return None
        path = str(self.folder / name)
        try:
            return _policy_text(path, read_regular_input)
        except InputError as error:
            for problem in error.problems:
                place.error(f"{path}: {problem.message}", problem.hint)
            return None

    def steps(self, top: Table) -> tuple[StoryStep, ...]:
        """Every step that could be read."""
        written = top.needed("steps", lambda field: field.items(at_most=_MOST_STEPS))
        steps = [self._step(place) for place in written or []]
        return tuple(step for step in steps if step is not None)

    def _step(self, place: Field) -> StoryStep | None:
        written = place.value if isinstance(place.value, dict) else {}
        verbs = [verb for verb in _STEPS if verb in written]
        if len(verbs) != 1:
            near = (
                None
                if verbs
                else next(filter(None, (nearest_word(key, list(_STEPS)) for key in written)), None)
            )
            place.error(
                "a step does exactly one thing" if verbs else "this step does nothing that is known",
                f"did you mean {near!r}?" if near else f"one of: {', '.join(_STEPS)}",
            )
            return None
        table = place.table(_STEPS[verbs[0]])
        read: Callable[[Table], StoryStep | None] = getattr(self, f"_{verbs[0]}")
        return None if table is None else read(table)

    def _say(self, step: Table) -> StoryStep | None:
        text = step.text("say", "")
        return Remark(text) if text else None

    def _run(self, step: Table) -> StoryStep | None:
        name = step.needed("run", parsed(_pod_name))
        containers = _containers(step)
        init = step.value("init", _init_containers, ())
        count = step.value("copies", number(1), 0)
        refused = step.text("refused", "")
        if count > _MOST_COPIES:
            step.here("copies").error(f"at most {_MOST_COPIES} copies")
            return None
        if not name or not containers:
            return None
        namespace, _, pod = full_pattern(name).rpartition("/")
        names = [f"{pod}-{n}" for n in range(count)] if count else [pod]
        try:
            pods = tuple(Pod(namespace, each, (*init, *containers)) for each in names)
            pods[0].must_be_possible()
        except ValueError as error:
            step.whole.error(str(error))
            return None
        work = Work(step.value("memory", read_bytes, None), step.value("load", read_load, None))
        return RunPods(pods, refused or None, work if work != Work() else None)

    def _end(self, step: Table) -> StoryStep | None:
        pattern = step.text("end", "")
        return EndPods(full_pattern(pattern)) if pattern else None

    def _policy(self, step: Table) -> StoryStep | None:
        policy = step.value("policy", self.policy, None)
        return None if policy is None else ChangePolicy(policy)

    def _label(self, step: Table) -> StoryStep | None:
        changes = step.value("label", _label_changes, None)
        return None if changes is None else SetLabels(changes)

    def _restart(self, step: Table) -> StoryStep | None:
        match step.text("restart", ""):
            case "kubelet":
                return RestartKubelet()
            case "agent":
                return RestartAgent()
        step.whole.error("only the kubelet and the agent can be restarted", "restart: kubelet")
        return None

    def _later(self, step: Table) -> StoryStep | None:
        place = step.get("later")
        match = _DURATION.fullmatch(str(place.value)) if place else None
        if match is None:
            step.whole.error("has to be a time in seconds, minutes or hours", "later: 90s, later: 2m")
            return None
        return TimePasses(float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]])

    def _fault(self, step: Table) -> StoryStep | None:
        place = step.required("fault")
        fault = read_fault(place) if place else None
        if place is None or fault is None:
            return None
        if self.node is not None and (why := why_impossible(self.node, fault)):
            place.error(why, "the machine of this story cannot do that")
        return FaultStep(fault)

    def _expect(self, step: Table) -> StoryStep | None:
        return read_expectation(step, None if self.node is None else gpu_indexes(self.node))


def _containers(step: Table) -> tuple[Container, ...]:
    """``requests`` of one container called main, or several ``containers`` by name."""
    if ("containers" in step) == ("requests" in step):
        step.whole.error("a pod has either requests or containers", "requests: {nvidia.com/gpu: 1}")
        return ()
    if "requests" in step:
        return (_container("main", step.here("requests")),)
    return step.value("containers", _container_map, ())


def _container_map(place: Field) -> tuple[Container, ...]:
    named = place.mapping() or {}
    return tuple(_container(name, wanted) for name, wanted in named.items())


def _init_containers(place: Field) -> tuple[Container, ...]:
    return tuple(replace(container, kind="init") for container in _container_map(place))


def _container(name: str, place: Field) -> Container:
    wanted: dict[str, int] = {}
    for resource, count in (place.mapping() or {}).items():
        amount = count.integer(1)
        try:
            key = parse_resource_name(resource)
        except ValueError as error:
            count.error(str(error))
            continue
        if amount is not None:
            wanted[key] = amount
    return Container(name, wanted)


def _pod_name(text: str) -> str:
    if not _POD_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of a pod such as train-0 or team-a/train-0")
    return text


def check_policy(story: Story) -> None:
    """Raises InputError or Unsatisfiable if the policy that the story begins with is wrong, or cannot hold on
    its machine. Problems name the policy as the story does.
    """
    if story.policy is None or story.policy.files is not None or story.labels is not None:
        return  # labels choose while it is played, and what is wrong then is reported
    policy = parse_policy(story.policy.content, story.policy.name, story.config).policy
    if not isinstance(story.machine.inventory.driver, NoDriver):
        resolve(policy, story.machine.inventory, geometry_of)


def why_impossible(machine: Machine, fault: Fault) -> str:
    """Why the fault cannot happen on the machine at any time; empty if it can.

    MIG instances are not looked for: they may be made before the fault happens.
    """
    anywhere = replace(fault, gi=None, ci=None) if isinstance(fault, RaiseXid | Occupy) else fault
    try:
        apply_fault(power_on(machine), anywhere)
    except InputError as error:
        return error.problems[0].message
    return ""


def gpu_indexes(machine: Machine) -> frozenset[int]:
    """The indexes of the machine's GPUs, lost ones too."""
    inventory = machine.inventory
    return frozenset([*(gpu.index for gpu in inventory.gpus), *(gpu.index for gpu in inventory.lost)])

"""The policy of one node: chosen by its labels, with the entries and the MIG layout that they ask for.

The agent and the one-shot verbs ask here, so that ``plan --node-labels`` says what the agent will do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256

from msgspec import field
from msgspec.structs import replace

from partage.edges.files.policy import LoadedPolicy, built_in, parse_policy, policy_keys
from partage.edges.files.policy_directory import PolicyTexts
from partage.edges.files.state import SavedPolicy
from partage.errors import InputError, Problem
from partage.model.layout import DISABLED, parse_layout_name
from partage.model.node_labels import MIG_CONFIG, NodeLabels
from partage.model.policy import AllDevices, DesiredMig, GpuEntry, NodeLayouts, Policy
from partage.plan.offer.policy_choice import (
    ChoiceRules,
    LabelsUnknown,
    NothingChosen,
    TakeNone,
    TakePolicy,
    UnknownName,
    asked_labels,
    choose_policy,
    for_node,
    named_policy,
)
from partage.plan.report import PolicyReason
from partage.text import listed
from partage.values import Frozen

_NO_FILE = PolicyTexts("")

BUILT_IN = "built-in"
"""The revision of the policy that needs no file."""


class PolicyRefusal(Frozen):
    """The node has no policy, and why. layouts_problems: why the label that asks for a layout is refused."""

    reason: PolicyReason
    problems: tuple[Problem, ...]
    layouts_problems: tuple[Problem, ...] = ()


class ChosenLayouts(Frozen):
    """The layouts of the node's label. text: the file in which they stand, for the state file; empty where
    they are known by name.
    """

    layouts: NodeLayouts
    source: str = ""
    text: str = ""


class NodePolicy(Frozen):
    """The policy of a node.

    loaded: without the label's layouts. by: what chose it; empty where there was no choice. layouts: of the
    node's label, None: it has none, or a wrong one. layouts_unknown: it is not known whether it has one.
    layouts_problems: why the label is refused. saved: for the state file; None: the built-in policy.
    """

    loaded: LoadedPolicy
    name: str | None = None
    by: str = ""
    layouts: ChosenLayouts | None = None
    layouts_unknown: bool = False
    layouts_problems: tuple[Problem, ...] = ()
    saved: SavedPolicy | None = None

    def policy(self, layouts: ChosenLayouts | None) -> Policy:
        """The policy with these layouts."""
        return replace(self.loaded.policy, layouts=layouts.layouts if layouts else None)

    def revision(self, layouts: ChosenLayouts | None) -> str:
        """What it is known as in a fleet: ``3f2a91c04b7d``, the digest of its text; ``/name``: one of several
        configurations in it; ``+all-1g.10gb``: with the layouts of the node's label.
        """
        digest, config = self.loaded.digest[:12] or BUILT_IN, self.saved.config if self.saved else None
        base = f"{digest}/{config}" if config else digest
        return f"{base}+{layouts.layouts.name}{_short_digest(layouts.text)}" if layouts else base

    def remembered(self, layouts: ChosenLayouts | None) -> SavedPolicy | None:
        """What the next agent has to know in order to have the same, with these layouts."""
        if self.saved is None and layouts is None:
            return None
        saved = self.saved or SavedPolicy("", "")
        if layouts is None:
            return saved
        labels = {**saved.labels, MIG_CONFIG: layouts.layouts.name}
        return replace(saved, labels=labels, layouts=layouts.text, layouts_source=layouts.source)


def _short_digest(text: str) -> str:
    """``@9c1f02``; empty for an empty text."""
    return f"@{sha256(_bytes(text)).hexdigest()[:6]}" if text else ""


class NodeChoice(Frozen):
    """What a policy is chosen by.

    labels: of the node, None: not known. awaited: they will become known. rules: for a directory; the
    default is the configuration of a file. environ: NVIDIA's variables, for its format.
    """

    labels: NodeLabels | None = None
    awaited: bool = False
    rules: ChoiceRules = ChoiceRules()
    environ: Mapping[str, str] = field(default_factory=dict)


def restored(saved: SavedPolicy, environ: Mapping[str, str]) -> NodePolicy:
    """The policy that an agent has remembered. Raises InputError if it can no longer be read."""
    texts = {saved.source: _bytes(saved.text)} if saved.text else {}
    found = PolicyTexts(saved.source, texts) if saved.text else None
    rules = ChoiceRules(saved.config)
    choice = NodeChoice(saved.labels, rules=rules, environ=environ)
    layouts = PolicyTexts(saved.layouts_source, {saved.layouts_source: _bytes(saved.layouts)})
    made = node_policy(found, choice, layouts if saved.layouts else None)
    if isinstance(made, PolicyRefusal):
        raise InputError(made.problems)
    return made


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def node_policy(
    found: PolicyTexts | None, choice: NodeChoice, layouts_in: PolicyTexts | None = None
) -> NodePolicy | PolicyRefusal:
    """The policy of a node.

    found: what was read; None: no policy was named. layouts_in: where the label's layout is looked for, None:
    there, too.
    """
    labels = choice.labels
    if labels is None and not choice.awaited:
        labels = {}
    asked = labels.get(MIG_CONFIG) if labels is not None else None
    chosen: ChosenLayouts | None = None
    problems: tuple[Problem, ...] = ()
    if asked:
        try:
            chosen = _layouts(asked, layouts_in or found or _NO_FILE)
        except InputError as error:
            problems = error.problems
    try:
        base = _chosen(found, choice, labels, laid_out=chosen is not None)
    except InputError as error:
        return PolicyRefusal(PolicyReason.WRONG, error.problems, problems)
    if isinstance(base, PolicyRefusal):
        return replace(base, layouts_problems=problems)
    return replace(base, layouts=chosen, layouts_unknown=labels is None, layouts_problems=problems)


def labels_choose(found: PolicyTexts) -> bool:
    """Whether labels choose among what was read: a directory, or the keys of a ConfigMap."""
    if found.directory:
        return True
    try:
        return bool(policy_keys(found.text(found.path), found.path))
    except InputError:
        return False


def _chosen(
    found: PolicyTexts | None, choice: NodeChoice, labels: NodeLabels | None, *, laid_out: bool
) -> NodePolicy | PolicyRefusal:
    """The policy without the label's layouts. laid_out: there are some."""
    if found is None:
        return NodePolicy(built_in(choice.environ))
    keys = None if found.directory else policy_keys(found.text(found.path), found.path)
    if not found.directory and (not keys or _names_no_key(keys, choice, labels)):
        return _read(found, found.path, "", choice, laid_out=laid_out)
    match choose_policy(keys or found.names, labels, choice.rules):
        case TakePolicy(name=name, by=by) if keys:
            return _read(found, found.path, by, choice, laid_out=laid_out, key=(name, keys[name]))
        case TakePolicy(name=name, by=by):
            return _read(found, name, by, choice, laid_out=laid_out)
        case TakeNone(by=by):
            return NodePolicy(built_in(choice.environ), by=by)
        case UnknownName(message=message, hint=hint):
            return _refusal(PolicyReason.UNKNOWN_NAME, found, message, hint)
        case NothingChosen(message=message, hint=hint):
            return _refusal(PolicyReason.NONE_CHOSEN, found, message, hint)
        case LabelsUnknown():
            return _refusal(PolicyReason.LABELS_UNKNOWN, found, *_LABELS_UNKNOWN)


def _names_no_key(keys: Collection[str], choice: NodeChoice, labels: NodeLabels | None) -> bool:
    """The default is a configuration in one of the keys, and no label asks for another."""
    default = choice.rules.default
    return bool(default) and default not in keys and labels is not None and not named_policy(labels)


_LABELS_UNKNOWN = (
    "which policy this node takes depends on its labels, which are not known yet",
    "the API server has not answered",
)


def _refusal(reason: PolicyReason, found: PolicyTexts, message: str, hint: str) -> PolicyRefusal:
    return PolicyRefusal(reason, (Problem(found.path, "", "error", message, hint),))


def _read(
    found: PolicyTexts,
    name: str,
    by: str,
    choice: NodeChoice,
    *,
    laid_out: bool,
    key: tuple[str, Sequence[str]] | None = None,
) -> NodePolicy | PolicyRefusal:
    """One policy, as this node has it. key: of a ConfigMap, with the configurations in it. Raises
    InputError.
    """
    content, file = found.text(name), found.file(name)
    config = None if found.directory else choice.rules.default
    named = _configurations(content, file) if laid_out else []
    if key is not None:
        config, named = key[0], [f"{key[0]}/{inner}" for inner in key[1]] if laid_out else []
    if named:  # the label says which of them; this one only has to be right
        config = named[0] if key is not None else config or named[0]
        loaded = parse_policy(content, file, config, choice.environ)
        loaded = replace(loaded, policy=replace(loaded.policy, entries=()))
    else:
        loaded = parse_policy(content, file, config, choice.environ)
    asked = asked_labels(loaded.policy)
    if asked and choice.labels is None and choice.awaited:
        return _refusal(PolicyReason.LABELS_UNKNOWN, found, *_LABELS_UNKNOWN)
    policy = for_node(loaded.policy, choice.labels)
    relevant = {key: value for key, value in (choice.labels or {}).items() if key in asked}
    return NodePolicy(
        replace(loaded, policy=policy),
        name=name if found.directory else config,
        by=by,
        saved=SavedPolicy(loaded.text, file, config, relevant),
    )


def _configurations(content: bytes, file: str) -> list[str]:
    """The names of a mig-parted file's configurations; nothing for any other file."""
    if b"mig-configs" not in content:
        return []
    from partage.edges.files.config_map import named_configurations

    return named_configurations(content, file)


def _configurations_by_key(content: bytes, file: str) -> Mapping[str, list[str]]:
    """The same, for each key of a ConfigMap; another file is one key without a name."""
    keys = policy_keys(content, file)
    return {"": _configurations(content, file)} if keys is None else keys


def _layouts(name: str, found: PolicyTexts) -> ChosenLayouts:
    """The layouts of that name: of a file, else those that Partage knows. Raises InputError."""
    known: list[str] = []
    having: list[tuple[str, str]] = []
    for policy, text in found.texts.items():
        for key, named in _configurations_by_key(text, found.file(policy)).items():
            known += named
            if name in named:
                having.append((policy, key))
    if len(having) > 1:
        raise InputError(
            f"label {MIG_CONFIG} asks for {name[:60]!r}, which is in "
            f"{' and in '.join(key or policy for policy, key in having[:5])}",
            "remove one of the two",
        )
    if having:
        [(policy, key)] = having
        file = found.file(policy)
        loaded = parse_policy(found.texts[policy], file, f"{key}/{name}" if key else name)
        entries = tuple(entry for entry in loaded.policy.entries if isinstance(entry, GpuEntry))
        return ChosenLayouts(NodeLayouts(name, entries), file, loaded.text)
    return ChosenLayouts(NodeLayouts(name, (_known_by_name(name, known),)))


def _known_by_name(name: str, known: Sequence[str]) -> GpuEntry:
    """A layout that has the same name on every node: ``all-disabled``, ``all-1g.10gb``."""
    try:
        named = parse_layout_name(name)
    except ValueError as error:
        files = f"; in files: {listed(known, 20)}" if known else ""
        raise InputError(f"label {MIG_CONFIG} asks for an unknown layout: {error}{files}") from error
    layout = DesiredMig(enabled=False) if named == DISABLED else DesiredMig(named=named)
    return GpuEntry(f"label {MIG_CONFIG}", AllDevices(), mig=layout)

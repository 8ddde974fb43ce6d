"""Worker groups and policies, judged by a provider's rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partage.errors import Severity
from partage.model.geometry import MigProfile
from partage.model.layout import DoesNotFit, LayoutItem, named_layouts, place, resolve_layout
from partage.providers.decide import rules as kinds
from partage.providers.decide.rules import AnyRule, Group, Keys, LayoutTable, MigType, Provider, RuleViolation
from partage.text import counted
from partage.values import grouped


def judge_groups(
    groups: Sequence[Group], provider: Provider, tables: Sequence[LayoutTable], *, one_node: bool
) -> list[RuleViolation]:
    """Everything that breaks a rule. one_node: the groups are entries of one policy, which is that of a node;
    else they are worker groups of one cluster."""
    violations = [
        violation
        for rule in provider.rules
        for violation in _together(groups, rule, provider, one_node=one_node)
    ]
    for group in groups:
        for rule in provider.rules:
            violations += _alone(group, rule, provider, tables, one_node=one_node)
    return list(dict.fromkeys(violations))


def _together(
    groups: Sequence[Group], rule: AnyRule, provider: Provider, *, one_node: bool
) -> Iterator[RuleViolation]:
    match rule:
        case kinds.OneMigType() if not one_node:
            types = grouped((group.mig if group.mig.mig else MigType.NONE, group) for group in groups)
            if len(types) > 1:
                text = "; ".join(f"{kind}: {', '.join(g.who for g in them)}" for kind, them in types.items())
                later = [them[0] for them in types.values()][1]
                yield _violation(
                    rule,
                    (*later.at, "mig"),
                    f"{provider.title} has one kind of MIG for all worker groups of a cluster, here there "
                    f"are {len(types)} ({text})",
                    "give all groups the same, or make a second cluster",
                )
        case kinds.OneWayPerNode() if one_node:
            ways = {group.sharing for group in groups}
            if len(ways) > 1 or any(g.part and g.sharing.traits.in_shares for g in groups):
                shared = next(g for g in groups if g.sharing.traits.in_shares)
                yield _violation(
                    rule,
                    shared.at,
                    f"{provider.title} shares all GPUs of a node in one way; here only some have "
                    f"{shared.sharing.traits.word}",
                    "use one way for all GPUs of these nodes, and other nodes for the rest",
                )


def _alone(  # noqa: C901, PLR0912 - one case for each kind of rule
    group: Group, rule: AnyRule, provider: Provider, tables: Sequence[LayoutTable], *, one_node: bool
) -> Iterator[RuleViolation]:
    match rule:
        case kinds.Replicas() if group.sharing is rule.sharing:
            yield from _replicas(group, rule, provider)
        case kinds.EqualShares() if group.unequal:
            yield _violation(rule, group.at, f"{provider.title} makes equal shares only", "give replicas: N")
        case kinds.MigSharing() if group.mig in rule.mig and group.sharing in rule.sharing:
            yield _violation(
                rule,
                group.at,
                f"{provider.title} has no {group.sharing.traits.word} with MIG type {group.mig}",
                "take another MIG type, or no sharing",
            )
        case kinds.MigModels():
            if group.mig.mig and (model := group.model) and not _tables(tables, model.id):
                known = ", ".join(table.title for table in tables)
                yield _violation(
                    rule, (*group.at, "gpu"), f"{provider.title} has no MIG on {model.id}", f"it has: {known}"
                )
        case kinds.LayoutOfGpu():
            yield from _layout_of_gpu(group, rule, tables)
            if not one_node:
                yield from _layout_fits(group, rule)
        case kinds.ListedLayouts():
            yield from _listed(group, rule, provider, tables)
        case kinds.UniformSingle():
            yield from _uniform(group, rule)
        case kinds.ModeLabel() if not one_node:
            yield from _mode_label(group, rule, provider)
        case kinds.NeededLabel() if not one_node and group.sharing is rule.sharing:
            if group.labels.get(rule.key) != rule.value:
                yield _violation(
                    rule,
                    (*group.at, "labels"),
                    f"{group.who} has {group.sharing.traits.word}, for which {provider.title} needs the "
                    f"label {rule.key}={rule.value}",
                    "add it",
                )
        case kinds.LabelValues() | kinds.CountLabel() | kinds.ProfileLabel() if rule.key in group.labels:
            at = (*group.at, "labels", rule.key)
            yield from judge_label(rule, group.labels[rule.key], at, group)
        case _:
            pass


def _replicas(group: Group, rule: kinds.Replicas, provider: Provider) -> Iterator[RuleViolation]:
    count = group.replicas
    if count is None:
        return
    word = rule.sharing.traits.word
    if count < rule.least or (rule.most is not None and count > rule.most):
        allowed = f"{rule.least} or more" if rule.most is None else f"{rule.least} to {rule.most}"
        text = f"{provider.title} allows {allowed} shares under {word}, not {count}"
        hint = "sharing: exclusive for GPUs that nobody shares" if count < 2 else f"replicas: {rule.most}"
        yield _violation(rule, group.at, text, hint)
    elif rule.doubtful_over is not None and count > rule.doubtful_over:
        text = (
            f"{count} shares under {word} work on newer drivers only; up to {rule.doubtful_over} on every one"
        )
        hint = rule.hint or f"replicas: {rule.doubtful_over}, or look at the drivers of these nodes"
        yield RuleViolation("warning", group.at, text, hint)


def _tables(tables: Sequence[LayoutTable], model: str) -> list[LayoutTable]:
    return [table for table in tables if model in table.models]


def _layout_of_gpu(
    group: Group, rule: kinds.LayoutOfGpu, tables: Sequence[LayoutTable]
) -> Iterator[RuleViolation]:
    model = group.model
    if model is None:
        return
    if group.mig.mig and not model.mig:
        yield _violation(rule, (*group.at, "mig"), f"{model.id} has no MIG", "take mps or time-slicing")
        return
    if (group.layout is not None or group.profiles) and not group.mig.mig:
        text = f"{group.who} has a layout, but its MIG type is {group.mig}"
        yield _violation(rule, (*group.at, "layout"), text, "mig: single or mixed, or remove the layout")
    geometry = model.geometry
    if geometry is None:
        return
    meant = {name for table in _tables(tables, model.id) for name in table.wrong}
    named = named_layouts(geometry)
    if group.layout is not None and group.layout not in named and group.layout not in meant:
        text = f"{model.id} has no layout {group.layout}"
        yield _violation(rule, (*group.at, "layout"), text, f"it has: {', '.join(named)}")
    for profile in dict.fromkeys(group.profiles):
        if geometry.spec(MigProfile.parse(profile)) is None:
            has = ", ".join(str(spec.profile) for spec in geometry.profiles)
            yield _violation(rule, group.at, f"{model.id} has no MIG profile {profile}", f"it has: {has}")


def _layout_fits(group: Group, rule: kinds.LayoutOfGpu) -> Iterator[RuleViolation]:
    """A list of profiles is one that a GPU has room for. Of policies ``check --machine`` says it."""
    geometry = group.model.geometry if group.model else None
    known = [MigProfile.parse(profile) for profile in group.profiles]
    if geometry is None or any(geometry.spec(profile) is None for profile in known):
        return
    try:
        place(geometry, [LayoutItem(profile) for profile in known])
    except DoesNotFit as error:
        hint = f"partage fits {geometry.model} shows what fits"
        yield _violation(rule, (*group.at, "layout"), f"{geometry.model} has no room for it: {error}", hint)


def _listed(
    group: Group, rule: kinds.ListedLayouts, provider: Provider, tables: Sequence[LayoutTable]
) -> Iterator[RuleViolation]:
    if group.layout is None or group.model is None:
        return
    at = (*group.at, "layout")
    for table in _tables(tables, group.model.id):
        if group.layout in table.wrong:
            yield RuleViolation(
                "warning",
                at,
                f"{group.layout} is a misprint in {provider.title}'s table for the {table.title}",
                f"what was meant: {table.wrong[group.layout]}",
            )
        elif group.layout not in table.names and _exists(group):
            listed = ", ".join(table.names)
            text = f"{provider.title} does not list {group.layout} for the {table.title}, which could have it"
            yield _violation(rule, at, text, f"it lists: {listed}")


def _exists(group: Group) -> bool:
    geometry = group.model.geometry if group.model else None
    return geometry is not None and group.layout in named_layouts(geometry)


def profiles_of(group: Group) -> tuple[str, ...] | None:
    """The profiles of a group's MIG devices; None if they are not known."""
    if group.profiles:
        return group.profiles
    geometry = group.model.geometry if group.model else None
    if geometry is None or group.layout is None:
        return None
    try:
        items = resolve_layout(geometry, (), group.layout).items
    except DoesNotFit:
        return None
    return tuple(str(item.profile) for item in items)


def _uniform(group: Group, rule: kinds.UniformSingle) -> Iterator[RuleViolation]:
    found = profiles_of(group)
    if group.mig is MigType.SINGLE and found and len(set(found)) > 1:
        text = f"{group.who} has MIG type single, but several profiles: {counted(found)}"
        yield _violation(rule, group.at, text, "mig: mixed, or a layout of one profile")


def _mode_label(group: Group, rule: kinds.ModeLabel, provider: Provider) -> Iterator[RuleViolation]:
    at = (*group.at, "labels", rule.key)
    value = group.labels.get(rule.key)
    fitting = [name for name, mode in rule.modes.items() if mode is group.sharing]
    if value is None:
        if group.sharing in rule.needed:
            text = f"{group.who} has {group.sharing.traits.word}, and no label {rule.key}"
            yield _violation(rule, (*group.at, "labels"), text, f"add {rule.key}={' or '.join(fitting)}")
    elif value not in rule.modes:
        text = f"{value!r} is no value of {rule.key} at {provider.title}"
        yield _violation(rule, at, text, f"one of {', '.join(rule.modes)}")
    elif rule.modes[value] is not group.sharing:
        text = f"{rule.key}={value} means {rule.modes[value].traits.word}, and {group.who} has "
        hint = f"{rule.key}={' or '.join(fitting)}" if fitting else "change the sharing"
        yield _violation(rule, at, text + group.sharing.traits.word, hint)


def judge_label(
    rule: kinds.LabelValues | kinds.CountLabel | kinds.ProfileLabel,
    value: str,
    at: Keys,
    group: Group | None,
) -> Iterator[RuleViolation]:
    """The value of a label of a node, or of a node selector. group: whose label it is, None of a selector."""
    match rule:
        case kinds.LabelValues() if value not in rule.values:
            text = f"{value!r} is no value of {rule.key}"
            yield _violation(rule, at, text, f"one of {', '.join(rule.values)}")
        case kinds.CountLabel():
            number = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else -1
            if not rule.least <= number <= rule.most:
                text = f"{rule.key} has to be {rule.least} to {rule.most}, not {value}"
                yield _violation(rule, at, text, "correct the label")
            elif group is not None and group.replicas not in (None, number):
                text = f"{rule.key} says {number} shares, and {group.who} has {group.replicas}"
                yield _violation(rule, at, text, "make them equal")
        case kinds.ProfileLabel():
            geometry = group.model.geometry if group and group.model else None
            has = [str(spec.profile) for spec in geometry.profiles] if geometry else []
            if geometry is not None and value not in has:
                text = f"{geometry.model} has no MIG profile {value}"
                yield _violation(rule, at, text, f"it has: {', '.join(has)}")
        case _:
            pass


def _violation(rule: AnyRule, at: Keys, message: str, hint: str = "") -> RuleViolation:
    severity: Severity = rule.severity
    return RuleViolation(severity, at, message, rule.hint or hint)

"""Pods, judged by a provider's rules: what they ask for, and on which worker groups they can run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partage.errors import Severity
from partage.model.ids import VENDOR
from partage.providers.decide import rules as kinds
from partage.providers.decide.judge_groups import judge_label, profiles_of
from partage.providers.decide.rules import (
    AnyRule,
    Group,
    Keys,
    ManifestContainer,
    ManifestPod,
    MigType,
    Provider,
    RuleViolation,
)
from partage.units import GIB, whole_quantity

_GPU, _MIG = f"{VENDOR}/gpu", f"{VENDOR}/mig-"


def judge_pod(pod: ManifestPod, provider: Provider, groups: Sequence[Group]) -> list[RuleViolation]:
    """Everything that breaks a rule. groups: those of the cluster; () where they are not known: then only
    the node selector says how the GPUs are shared."""
    selected = _selected(pod, groups)
    places = selected if groups else _from_selector(pod, provider)
    violations: list[RuleViolation] = []
    for rule in provider.rules:
        if isinstance(rule, kinds.LabelValues | kinds.CountLabel | kinds.ProfileLabel):
            if rule.key in pod.selector:
                at = (*pod.at, "nodeSelector", rule.key)
                violations += judge_label(rule, pod.selector[rule.key], at, None)
        elif isinstance(rule, kinds.ModeLabel) and pod.selector.get(rule.key, "") not in ("", *rule.modes):
            text = f"{pod.selector[rule.key]!r} is no value of {rule.key} at {provider.title}"
            violations.append(
                _violation(rule, (*pod.at, "nodeSelector", rule.key), text, f"one of {', '.join(rule.modes)}")
            )
        elif isinstance(rule, kinds.HostIpc):
            violations += _host_ipc(pod, rule, provider, places)
        elif isinstance(rule, kinds.OneOfResources):
            asked = [
                n
                for n in rule.resources
                if any(n in manifest_container.limits for manifest_container in pod.containers)
            ]
            if len(asked) > 1:
                text = f"asks for {' and '.join(asked)}, which no node of {provider.title} offers together"
                violations.append(_violation(rule, pod.at, text, "ask for one of them"))
        for container in pod.containers:
            violations += _container(container, pod, rule, provider, places, known=bool(groups))
    if groups and not selected and any(_gpus(manifest_container) for manifest_container in pod.containers):
        text = "no worker group has the labels of its node selector: the pod would stay pending"
        violations.append(
            RuleViolation("error", (*pod.at, "nodeSelector"), text, "use the labels of a worker group")
        )
    return list(dict.fromkeys(violations))


def _gpus(container: ManifestContainer) -> list[str]:
    return [name for name in container.limits if name.startswith(f"{VENDOR}/")]


def _selected(pod: ManifestPod, groups: Sequence[Group]) -> list[Group]:
    """The groups with the labels that the pod selects; labels that no group says are passed over."""
    known = {key for group in groups for key in group.labels}
    wanted = {key: value for key, value in pod.selector.items() if key in known}
    return [g for g in groups if all(g.labels.get(key) == value for key, value in wanted.items())]


def _from_selector(pod: ManifestPod, provider: Provider) -> list[Group]:
    for rule in provider.rules:
        if isinstance(rule, kinds.ModeLabel) and (mode := rule.modes.get(pod.selector.get(rule.key, ""))):
            return [Group((), "the selected nodes", mode, labels=pod.selector)]
    return []


def offered_names(group: Group, rule: kinds.OfferedNames) -> set[str] | None:
    """The resources of a group; None if its profiles are not known."""
    shared = group.sharing.traits.in_shares
    if group.mig is not MigType.MIXED:
        return set(rule.shared if shared else rule.whole)
    found = profiles_of(group)
    if found is None:
        return None
    names = rule.shared if shared else rule.whole
    suffixes = {name.removeprefix(_GPU) for name in names if name.startswith(_GPU)}
    plain = [profile.replace("+", ".").replace(",", ".") for profile in found]
    return {f"{_MIG}{profile}{suffix}" for profile in plain for suffix in suffixes}


def _may_serve(container: ManifestContainer, group: Group, provider: Provider) -> bool:
    """Whether the group offers something that the container asks for."""
    rule = next(
        (candidate for candidate in provider.rules if isinstance(candidate, kinds.OfferedNames)), None
    )
    names = offered_names(group, rule) if rule else None
    return bool(_gpus(container) if names is None else names & set(container.limits))


def _host_ipc(
    pod: ManifestPod, rule: kinds.HostIpc, provider: Provider, places: Sequence[Group]
) -> Iterator[RuleViolation]:
    if pod.host_ipc:
        return
    serving = [g for g in places if any(_may_serve(container, g, provider) for container in pod.containers)]
    hit = [g for g in serving if g.sharing is rule.sharing]
    if hit:
        text = f"has no hostIPC: true, without which it does not reach the MPS daemon of {_names(hit)}"
        yield _violation(rule, pod.at, text, "hostIPC: true in the pod's spec", sure=len(hit) == len(serving))


def _container(
    container: ManifestContainer,
    pod: ManifestPod,
    rule: AnyRule,
    provider: Provider,
    places: Sequence[Group],
    *,
    known: bool,
) -> Iterator[RuleViolation]:
    match rule:
        case kinds.Request():
            yield from _request(container, rule, provider, places)
        case kinds.OfferedNames() if known and places:
            yield from _names_exist(container, rule, places)
        case kinds.Amount() if rule.resource in container.limits:
            yield from _amount(container, rule, places)
        case kinds.ResourceNeeds() if rule.resource in container.limits:
            yield from _needs(container, pod, rule, places, known=known)
        case _:
            pass


def _request(
    container: ManifestContainer, rule: kinds.Request, provider: Provider, places: Sequence[Group]
) -> Iterator[RuleViolation]:
    serving = [g for g in places if _may_serve(container, g, provider)]
    hit = [g for g in serving if g.sharing is rule.sharing and not (rule.alone_on_one_gpu and g.gpus == 1)]
    sure = len(hit) == len(serving) and not (rule.alone_on_one_gpu and any(g.gpus is None for g in hit))
    for name in _gpus(container):
        amount = whole_quantity(container.limits[name])
        if hit and amount is not None and amount > rule.most:
            text = (
                f"asks for {amount} of {name}; under {rule.sharing.traits.word} ({_names(hit)}) a container "
                f"of {provider.title} asks for exactly {rule.most}"
            )
            yield _violation(rule, (*container.at, name), text, f"ask for {rule.most}", sure=sure)


def _names_exist(
    container: ManifestContainer, rule: kinds.OfferedNames, places: Sequence[Group]
) -> Iterator[RuleViolation]:
    offers = [offered_names(group, rule) for group in places]
    if any(names is None for names in offers):
        return
    there = set().union(*(names for names in offers if names))
    for name in _gpus(container):
        if name not in there:
            text = f"no worker group that it can run on offers {name}"
            yield _violation(
                rule, (*container.at, name), text, f"offered: {', '.join(sorted(there)) or 'nothing'}"
            )


def _amount(
    container: ManifestContainer, rule: kinds.Amount, places: Sequence[Group]
) -> Iterator[RuleViolation]:
    written = container.limits[rule.resource]
    at = (*container.at, rule.resource)
    amount = whole_quantity(written)
    if amount is None:
        yield _violation(rule, at, f"{written!r} is no whole number of {rule.resource}", "a whole number")
        return
    if amount < rule.least or (rule.most is not None and amount > rule.most) or amount % rule.multiple_of:
        range_ = f"{rule.least} or more" if rule.most is None else f"{rule.least} to {rule.most}"
        steps = f", a multiple of {rule.multiple_of}" if rule.multiple_of > 1 else ""
        yield _violation(rule, at, f"{rule.resource} has to be {range_}{steps}, not {amount}", "correct it")
    sizes = [group.model.memory_bytes // GIB for group in places if group.model]
    if rule.gpu_memory and sizes and len(sizes) == len(places) and amount > max(sizes):
        text = f"asks for {amount} GiB of one GPU, and the largest has {max(sizes)} GiB"
        yield _violation(rule, at, text, "ask for less")


def _needs(
    container: ManifestContainer,
    pod: ManifestPod,
    rule: kinds.ResourceNeeds,
    places: Sequence[Group],
    *,
    known: bool,
) -> Iterator[RuleViolation]:
    labels = [group.labels for group in places] if known else [pod.selector]
    values = [label.get(rule.key) for label in labels]
    if not known and values == [None]:
        return
    if places and not any(v in rule.values or (v is None and rule.absent) for v in values):
        have = ", ".join(sorted({f"{rule.key}={v}" if v else f"no {rule.key}" for v in values}))
        text = f"{rule.resource} is offered by nodes with {rule.key}={' or '.join(rule.values)}; here: {have}"
        yield _violation(rule, (*container.at, rule.resource), text, "ask for what these nodes offer")


def _names(groups: Sequence[Group]) -> str:
    return ", ".join(group.who for group in groups)


def _violation(rule: AnyRule, at: Keys, message: str, hint: str = "", *, sure: bool = True) -> RuleViolation:
    severity: Severity = rule.severity if sure else "warning"
    return RuleViolation(severity, at, message, rule.hint or hint)

"""What a container asks for, as a ResourceClaimTemplate whose name is a hash of its content; and when
it is marked as asked for, and when it may go.

Why none is taken from a pod: who lets a pod in has seen to it that the template is there, and that its mark
is not older than ``MARK_S``. A pod that was let in is in the API server before ``LET_IN_S`` are over, or
never: the API server gives a request no more than a minute. The sweep first reads a template, then the pods
of the namespace, and deletes the version that it has read, if no pod names it and its mark is older than
``KEPT_S`` = MARK_S + LET_IN_S and more. So a pod that was let in by this mark is among the pods that are
read; for one that comes later the mark was renewed, which makes another version, and the deletion is refused.
A Deployment whose pods come hours later needs no template meanwhile: each of its pods is let in by itself,
and makes it anew. Once a claim was made of it, which the controller does at once, nobody needs the template.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from partage.admission.decide.need import (
    BytesOfGpu,
    CannotMean,
    EvenShares,
    GpuNeed,
    GpuRules,
    PartOfGpu,
    SizesUnknown,
    WholeGpu,
)
from partage.claims.decide.book import BookDevice, amount_of
from partage.claims.model.names import CORES, MEMORY, OWN_NAMES, SHARES, Mode
from partage.model.ids import GPU_CLASS, MIG_CLASS, SHARE_CLASS
from partage.text import listed
from partage.units import MIB, exact_quantity, format_exactly, parse_quantity
from partage.values import Frozen

DRIVER = OWN_NAMES.driver
REQUEST = "gpu"
_MOST_WAYS = 8
"""Alternatives of a request."""
_LONGEST = 10 * 1024
"""Bytes of an expression."""
_ATTRIBUTES, _CAPACITY = f"device.attributes['{DRIVER}']", f"device.capacity['{DRIVER}']"


def _about(attribute: str, expression: str, *, wanted: bool) -> str:
    told = f"has({attribute}) && ({expression})"
    return told if wanted else f"!({told})"


_NOT_MPS = _about(f"{_ATTRIBUTES}.strategy", f"{_ATTRIBUTES}.strategy == 'mps'", wanted=False)
"""Of several GPUs for one container: through MPS, it can use one."""

Json = dict[str, Any]


class ClaimableSize(Frozen, order=True):
    """Memory of GPUs that claims can have parts of, and the smallest step of a part."""

    memory_bytes: int
    step_bytes: int


class ClaimableSizes(Frozen):
    """The sizes that there are for claims: of GPUs that are shared by amounts, of MIG devices."""

    amounts: tuple[ClaimableSize, ...] = ()
    migs: tuple[int, ...] = ()


class ClaimForm(Frozen):
    """A template. spec: ``spec.spec`` of it. words: what it asks for: ``memory 3Gi of gpu.partage.dev``."""

    name: str
    spec: Json
    words: str

    def manifest(self, namespace: str = "") -> Json:
        """The object. namespace: empty: that of whoever applies it."""
        metadata: Json = {"name": self.name}
        if namespace:
            metadata["namespace"] = namespace
        metadata["labels"] = {"app.kubernetes.io/managed-by": "partage"}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": metadata,
            "spec": {"spec": self.spec},
        }


class _Way(Frozen):
    """One alternative. label: what tells it from others."""

    device_class: str
    selectors: tuple[str, ...] = ()
    amounts: tuple[tuple[str, str], ...] = ()
    label: str = ""


def claim_form(need: GpuNeed, rules: GpuRules, sizes: ClaimableSizes | None) -> ClaimForm:
    """The template. sizes: None: not known. Raises CannotMean where it depends on sizes that are not known,
    or of which there are too many.
    """
    ways = [*_ways(need, rules, sizes)]
    which = tuple(rule_expressions(rules))
    if need.count > 1 and not rules.mig:
        which = (*which, _NOT_MPS)
    requests: list[Json] = [_request(ways, which, need.count)]
    devices: Json = {"requests": requests}
    if need.count > 1:
        attribute = "parentUUID" if rules.mig else "uuid"
        devices["constraints"] = [{"requests": [REQUEST], "distinctAttribute": f"{DRIVER}/{attribute}"}]
    spec = {"devices": devices}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    return ClaimForm(f"partage-{digest[:16]}", spec, _words(ways, need.count, rules))


def _ways(need: GpuNeed, rules: GpuRules, sizes: ClaimableSizes | None) -> Iterator[_Way]:
    if rules.mig:
        yield from _of_mig(need, sizes)
        return
    cores = ((CORES, str(need.cores)),) if need.cores else ()
    by_amounts = f"{_ATTRIBUTES}.mode == '{Mode.AMOUNTS}'"
    match need.memory:
        case WholeGpu():
            yield _Way(GPU_CLASS)
        case BytesOfGpu(memory_bytes=memory):
            yield _Way(GPU_CLASS, (by_amounts,), ((MEMORY, _quantity(memory)), *cores))
        case PartOfGpu(part=part):
            for size in _known(sizes):
                amount = _part_of(size, part)
                total = _quantity(size.memory_bytes)
                same = f"{by_amounts} && {_CAPACITY}.{MEMORY}.compareTo(quantity('{total}')) == 0"
                amounts = ((MEMORY, _quantity(amount)), *cores)
                yield _Way(GPU_CLASS, (same,), amounts, f"of-{total}")
        case EvenShares(shares=shares, most=most):
            few = () if most is None else (f"{_CAPACITY}.{SHARES}.compareTo(quantity('{most}')) <= 0",)
            yield _Way(SHARE_CLASS, few, ((SHARES, str(shares)),))


def _of_mig(need: GpuNeed, sizes: ClaimableSizes | None) -> Iterator[_Way]:
    """The smallest MIG device with enough memory first."""
    match need.memory:
        case BytesOfGpu(memory_bytes=least):
            pass
        case WholeGpu():
            least = 0
        case _:
            raise CannotMean(
                "a part of a GPU's memory says nothing about the size of a MIG device",
                "name an amount in MiB",
            )
    known = [memory for memory in sorted({*(sizes.migs if sizes else ())}) if memory >= least]
    if len(known) <= 1 or not least:
        enough = f"{_CAPACITY}.{MEMORY}.compareTo(quantity('{_quantity(least)}')) >= 0"
        yield _Way(
            MIG_CLASS, (enough,) if least else (), label=f"of-{_quantity(least)}-or-more" if least else ""
        )
        return
    for memory in known[:_MOST_WAYS]:
        same = f"{_CAPACITY}.{MEMORY}.compareTo(quantity('{_quantity(memory)}')) == 0"
        yield _Way(MIG_CLASS, (same,), label=f"of-{_quantity(memory)}")


def _known(sizes: ClaimableSizes | None) -> Sequence[ClaimableSize]:
    """One of each memory, with its largest step, smallest first."""
    if sizes is None:
        raise SizesUnknown(
            "a part of a GPU's memory is an amount only once the sizes of the GPUs are known",
            "--policy FILE with --machine NAME, or --cluster",
        )
    found = {size.memory_bytes: size for size in sorted(sizes.amounts)}
    if not found:
        raise CannotMean("no GPU is there for claims of an amount of its memory", HOME[Mode.AMOUNTS])
    if len(found) > _MOST_WAYS:
        names = listed([format_exactly(memory) for memory in sorted(found)], 32)
        raise CannotMean(
            f"a claim can name {_MOST_WAYS} sizes of GPUs, and there are {len(found)}: {names}",
            "name an amount in MiB, or fewer models with nvidia.com/use-gputype",
        )
    return [found[memory] for memory in sorted(found)]


HOME = {
    Mode.AMOUNTS: "in the policy: {select: rest, via: claims, mps: {unit: 1Gi}}",
    Mode.WHOLE: "in the policy: {select: rest, via: claims, exclusive: {}}",
    Mode.REPLICAS: "in the policy: {select: rest, via: claims, mps: {replicas: 4}}",
    Mode.MIG: "in the policy: {select: rest, via: claims, mig: {layout: [...]}}",
}
"""The line of a policy that makes a home for a request."""
_HOME_OF_SEVERAL = "in the policy: {select: rest, via: claims, time-slicing: {unit: 1Gi}}"
"""Of parts of several GPUs: through MPS, a container uses one GPU."""


def home_of(need: GpuNeed, rules: GpuRules) -> str:
    """The line that would make a home for it, with what else it takes."""
    return (
        f"with a GPU that the pod names, {_line_of(need, rules)}"
        if names_gpus(rules)
        else _line_of(need, rules)
    )


def names_gpus(rules: GpuRules) -> bool:
    """Whether not every GPU is meant."""
    return any((rules.models, rules.not_models, rules.uuids, rules.not_uuids))


def _line_of(need: GpuNeed, rules: GpuRules) -> str:
    if rules.mig:
        return HOME[Mode.MIG]
    match need.memory:
        case WholeGpu():
            return HOME[Mode.WHOLE]
        case EvenShares():
            return HOME[Mode.REPLICAS]
    return HOME[Mode.AMOUNTS] if need.count == 1 else _HOME_OF_SEVERAL


def _part_of(size: ClaimableSize, part: Decimal) -> int:
    """Rounded down to whole steps, so that parts which are one GPU together fit on it; one step at least."""
    steps = int(size.memory_bytes * part // size.step_bytes)
    return max(steps, 1) * size.step_bytes


def rule_expressions(rules: GpuRules) -> dict[str, str]:
    """Expressions for the GPUs that are meant, each with the annotation that says so. A device may be without
    a product name.

    Attributes are named in full: of ``.?name.orValue('')`` the API server does not know how long it can be,
    and refuses what is done with it as too complex.
    """
    keys = rules.keys or ("",) * 4
    product = f"{_ATTRIBUTES}.productName"
    uuid = f"{_ATTRIBUTES}.{'parentUUID' if rules.mig else 'uuid'}"
    found = {}
    for key, words, wanted in ((keys[0], rules.models, True), (keys[1], rules.not_models, False)):
        if words:
            either = " || ".join(f"{product}.lowerAscii().contains('{word}')" for word in words)
            found[_about(product, either, wanted=wanted)] = key
    for key, uuids, wanted in ((keys[2], rules.uuids, True), (keys[3], rules.not_uuids, False)):
        if uuids:
            inside = f"{uuid}.lowerAscii() in [{', '.join(map(repr, uuids))}]"
            found[_about(uuid, inside, wanted=wanted)] = key
    return found


def _request(ways: Sequence[_Way], which: tuple[str, ...], count: int) -> Json:
    if len(ways) == 1:
        return {"name": REQUEST, "exactly": _ask(ways[0], which, count)}
    return {
        "name": REQUEST,
        "firstAvailable": [{"name": way.label.lower(), **_ask(way, which, count)} for way in ways],
    }


def _ask(way: _Way, which: tuple[str, ...], count: int) -> Json:
    ask: Json = {"deviceClassName": str(way.device_class)}
    selectors = (*way.selectors, *which)
    for text in selectors:
        if len(text) > _LONGEST:
            raise CannotMean(
                "the lists of GPU models and UUIDs are longer than a claim can say", "shorten them"
            )
    if selectors:
        ask["selectors"] = [{"cel": {"expression": text}} for text in selectors]
    if way.amounts:
        ask["capacity"] = {"requests": dict(way.amounts)}
    if count > 1:
        ask["count"] = count
    return ask


def _words(ways: Sequence[_Way], count: int, rules: GpuRules) -> str:
    many = f"{count} x " if count > 1 else ""
    ruled = " (of GPUs that the pod names)" if names_gpus(rules) else ""
    said = dict.fromkeys(_way_words(way) for way in ways)
    return f"{many}{' or '.join(said)} of {ways[0].device_class}{ruled}"


def _way_words(way: _Way) -> str:
    if way.device_class == MIG_CLASS:
        return f"a MIG device {way.label.replace('-', ' ')}".strip()
    return ", ".join(f"{name} {amount}" for name, amount in way.amounts) or "a whole GPU"


def _quantity(memory_bytes: int) -> str:
    return exact_quantity(memory_bytes, binary=True)


MADE_FOR = "partage.dev/made-for"
"""Label of templates that the webhook made; its value is ``pods``. Those that people apply have none."""
PODS = "pods"
ASKED_AT = "partage.dev/asked-at"
"""Annotation: when a pod was let in that names it."""
MARK_S = 300.0
LET_IN_S = 120.0
KEPT_S = 900.0
"""The rest of it is for clocks that differ."""


class TemplateMark(Frozen):
    """What a template says of itself. ours: the webhook made it, for pods. asked_s: the last mark, seconds
    since 1970; one that is no time counts as when the template was made. owner: UID of the webhook's
    configuration, with which it goes; empty: none.
    """

    ours: bool
    asked_s: float
    owner: str


def mark_of(labels: Mapping[str, str], notes: Mapping[str, str], made_at: str, owner: str) -> TemplateMark:
    """notes: its annotations. made_at: RFC 3339."""
    asked_s = _seconds(notes.get(ASKED_AT, "")) or _seconds(made_at) or 0.0
    return TemplateMark(labels.get(MADE_FOR) == PODS, asked_s, owner)


def needs_mark(mark: TemplateMark, now_s: float, owner: str) -> bool:
    """Before a pod is let in that names it. owner: the webhook's configuration of now."""
    return mark.ours and (now_s - mark.asked_s >= MARK_S or mark.owner != owner)


def may_go(mark: TemplateMark, now_s: float) -> bool:
    """If no pod names it."""
    return mark.ours and now_s - mark.asked_s >= KEPT_S


def same_content(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether the API server has what was sent: it adds defaults, and writes amounts in its own way."""
    return bool(_plain(ours) == _plain(theirs))


_DEFAULTS: Collection[tuple[str, object]] = (("allocationMode", "ExactCount"), ("count", 1))


def _plain(value: Any, key: str = "") -> Any:  # noqa: ANN401 - JSON has no better type
    if isinstance(value, Mapping):
        return {
            name: _plain(inner, "amount" if key == "capacity" and name == "requests" else name)
            if key != "amount"
            else _amount(inner)
            for name, inner in value.items()
            if (name, inner) not in _DEFAULTS
        }
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _amount(text: object) -> object:
    try:
        return parse_quantity(str(text))
    except ValueError:
        return text


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def sizes_of(devices: Iterable[BookDevice]) -> ClaimableSizes:
    """Of published devices; those of other drivers are left out."""
    amounts, migs = set(), set()
    for device in devices:
        if device.driver != OWN_NAMES.driver or MEMORY not in device.device.capacity:
            continue
        memory_bytes = int(amount_of(device.device, MEMORY))
        if device.text("mode") == Mode.AMOUNTS:
            amounts.add(ClaimableSize(memory_bytes, _step(device)))
        elif device.text("mode") == Mode.MIG:
            migs.add(memory_bytes)
    return ClaimableSizes(tuple(sorted(amounts)), tuple(sorted(migs)))


def _step(device: BookDevice) -> int:
    policy = device.device.capacity[MEMORY].request_policy
    if policy is None:
        return MIB
    if policy.valid_range is None or policy.valid_range.step is None:
        return int(parse_quantity(policy.default))
    return int(parse_quantity(policy.valid_range.step)) or MIB

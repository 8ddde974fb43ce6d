"""Partage's own policy format, ``version: partage/v1``: docs/reference/policy.md, and a JSON Schema.

Strict: exact types, and unknown keys are errors. Contradictions in the file are found here; contradictions
to a node are found by ``plan.offer.assign``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TypeVar

from partage.codec.fields import Dialect, Field, Notes, Table, nearest_word
from partage.codec.reader import Reader, parsed
from partage.codec.yaml_document import Value
from partage.edges.files.native_sharing import SHARING_READERS, read_mig
from partage.model.ids import parse_pci_address, parse_resource_name
from partage.model.node_labels import parse_label_key, parse_label_value
from partage.model.policy import (
    AllDevices,
    DesiredMig,
    DeviceListStrategy,
    Drain,
    Exclusive,
    GpuCriteria,
    GpuEntry,
    GpuSelector,
    LabelCondition,
    MigStrategy,
    Options,
    Policy,
    RemainingGpus,
    Sharing,
    SparedPods,
    WatchAction,
    clients_of,
)
from partage.model.strategy import Strategy, Via
from partage.units import parse_duration

T = TypeVar("T")

VERSION = "partage/v1"
FORMAT = "partage/v1"
MOST_ENTRIES = 512

_TOP = ("version", "gpus", "resources")
_STRATEGIES = tuple(strategy.value for strategy in Strategy)
_ENTRY = ("select", "when", "name", "guard", "watch", "change", "via", *_STRATEGIES)
_IN_SHARES = " or ".join(f"{key!r}" for key in SHARING_READERS)
_WHEN = ("label",)
_MOST_CONDITIONS = 16
_CRITERIA = ("index", "uuid", "model", "pci")
_RANGE = re.compile(r"(\d{1,2})\s*-\s*(\d{1,2})", re.ASCII)
_ENTRIES_HINT = "write each entry as an item: '- select: ...'"


def _device_list(field: Field) -> tuple[DeviceListStrategy, ...] | None:
    items = field.one_or_many()
    if items is not None and not items:
        field.error("has to name at least one way", "envvar is the usual one")
    ways = (item.choice(DeviceListStrategy) for item in items or ())
    return tuple(dict.fromkeys(way for way in ways if way is not None)) or None


def _path(field: Field) -> str | None:
    text = field.text()
    if text is not None and not text.startswith("/"):
        field.error("has to be an absolute path, beginning with '/'")
    return text


def _prefix(field: Field) -> str | None:
    text = field.text()
    if text == "":
        field.error("has to be text such as cdi.k8s.io/")
    return text


RESOURCES = Reader(
    Options,
    (
        "rename_shared", "fail_requests_greater_than_one", "mig_strategy", "allocation", "device_list",
        "device_ids", "device_specs", "cdi_annotation_prefix", "nvidia_ctk", "driver_root",
    ),
    named={
        "device_list": "device-list-strategy",
        "device_ids": "device-id-strategy",
        "device_specs": "pass-device-specs",
        "nvidia_ctk": "nvidia-ctk-path",
    },
    reads={"device_list": _device_list, "cdi_annotation_prefix": _prefix, "nvidia_ctk": _path},
)  # fmt: skip


DIALECT = Dialect(
    homes={
        **dict.fromkeys(RESOURCES.keys, "'resources', at the top"),
        **dict.fromkeys(_ENTRY, "an entry of 'gpus'"),
        **dict.fromkeys(_CRITERIA, "'select'"),
        "label": "'when'",
        "also": "'change', beside 'drain'",
        "memory": "'time-slicing', or a client of it or of 'mps'",
        "threads": "a client of 'mps'",
        "replicas": _IN_SHARES,
        "unit": _IN_SHARES,
        "placement": _IN_SHARES,
        "interval": "'time-slicing'",
        "clients": _IN_SHARES,
        "exclusive-process": "'mps'",
        "layout": "'mig'",
        "gpus": "the top",
        "resources": "the top",
    }
)


class WhenToChange(StrEnum):
    """When a GPU that is in use passes to another strategy: when its pods have ended, or been evicted."""

    WAIT = "wait"
    DRAIN = "drain"


def read_native(notes: Notes) -> Policy:
    """The policy in a document. Wrong things are noted; the caller decides with ``notes.finish()``."""
    table = notes.top().table(_TOP)
    if table is None:
        return Policy(source=notes.file)
    _version(table)
    options = _options(table.get("resources"))
    listed = table.get("gpus")
    fields = (listed.items(MOST_ENTRIES, _ENTRIES_HINT) if listed else None) or []
    read = [(field, entry) for field in fields if (entry := _entry(field)) is not None]
    _contradictions(read, options)
    return Policy(tuple(entry for _, entry in read), options, notes.file, FORMAT)


def _version(table: Table) -> None:
    field = table.required("version", f"the first line of a policy is 'version: {VERSION}'")
    if field is not None and field.value != VERSION:
        text = field.text()
        if text is not None:
            field.error(f"has to be {VERSION}, not {text[:60]!r}")


# --- resources ---------------------------------------------------------------------------------


def _options(field: Field | None) -> Options:
    table = field.table(RESOURCES.keys) if field else None
    if table is None:
        return Options()
    root = table.value("driver-root", _path, "/")
    return RESOURCES.fill(table, driver_root=root, dev_root=root)


# --- one entry ---------------------------------------------------------------------------------


def _entry(field: Field) -> GpuEntry | None:
    table = field.table(_ENTRY)
    if table is None:
        return None
    select = _select(table.required("select", "index, uuid, model, pci, all or rest: which GPUs are meant"))
    sharing, mig = _strategy(table)
    via = table.choice("via", Via.DEVICE_PLUGIN)
    if via is Via.CLAIMS:
        _not_by_claim(table, sharing, mig)
    elif mig is not None and mig.on_demand:
        table.whole.error("only claims get MIG devices that are made on demand", "add 'via: claims'")
    return GpuEntry(
        origin=field.place.path,
        select=select,
        sharing=sharing,
        mig=mig,
        name=table.value("name", parsed(parse_resource_name), None),
        guard=table.boolean("guard", default=False),
        watch=table.choice("watch", WatchAction.WARN),
        when=table.value("when", _when, ()),
        drain=table.value("change", _change, None),
        via=via,
    )


def _not_by_claim(table: Table, sharing: Sharing, mig: DesiredMig | None) -> None:
    """What a ResourceClaim cannot ask for."""
    if (name := table.get("name")) is not None:
        name.error(
            "claims ask for GPUs by a DeviceClass, not by this name", "remove 'name', or 'via: claims'"
        )
    if clients_of(sharing):
        hint = "'unit: 1Gi' gives each claim the amount that it asks for"
        table.whole.error("a claim cannot choose one of unequal clients", hint)
    if mig is not None and sharing.strategy.traits.in_shares:
        hint = "remove 'mps' or 'time-slicing' below 'mig', or 'via: claims'"
        table.whole.error("a claim gets a MIG device as a whole", hint)


def _change(field: Field) -> Drain | None:
    """``wait``, ``drain``, or ``{drain: 10m, also: [bare]}``. None for ``wait``."""
    if isinstance(field.value, dict):
        table = field.table(("drain", "also"), "{drain: 10m}")
        also = table.value("also", _also, ()) if table else ()
        limit_s = table.needed("drain", parsed(parse_duration, "10m")) if table else None
        return None if limit_s is None else Drain(limit_s, also)
    return Drain() if field.choice(WhenToChange) is WhenToChange.DRAIN else None


def _also(field: Field) -> tuple[SparedPods, ...]:
    """In the order of the enum, each once."""
    items = field.one_or_many()
    if items is not None and not items:
        field.error("names no pods", "bare, system-critical, or remove the key")
    named = {item.choice(SparedPods) for item in items or ()}
    return tuple(kind for kind in SparedPods if kind in named)


def _when(field: Field) -> tuple[LabelCondition, ...]:
    """``{label: {pool: inference, zone: [a, b]}}``, ordered by key."""
    table = field.table(_WHEN, "{label: {pool: inference}}")
    labels = table.required("label", "when: {label: {pool: inference}}") if table else None
    members = labels.mapping() if labels else None
    if labels is None or members is None:
        return ()
    if not members:
        labels.error("names no label", "name one, {pool: inference}, or remove 'when'")
    if len(members) > _MOST_CONDITIONS:
        labels.error(f"names {len(members)} labels, and at most {_MOST_CONDITIONS} are read")
    conditions = [_condition(key, member) for key, member in members.items()]
    return tuple(
        sorted(
            (condition for condition in conditions if condition is not None),
            key=lambda condition: condition.key,
        )
    )


def _condition(key: str, field: Field) -> LabelCondition | None:
    try:
        parse_label_key(key)
    except ValueError as error:
        field.error(str(error))
        return None
    items = field.one_or_many()
    if items is not None and not items:
        field.error("lists no value", "remove the label, or list at least one value")
    values = [value for item in items or () if (value := _label_value(item)) is not None]
    return LabelCondition(key, tuple(sorted(set(values))))


def _label_value(field: Field) -> str | None:
    if isinstance(field.value, bool | int | float):
        field.unfit("text", "a label's value is text: put it in quotes")
        return None
    return field.parsed(parse_label_value)


def _select(field: Field | None) -> GpuSelector:
    if field is None:
        return GpuCriteria()
    if isinstance(field.value, str):
        if field.value == "all":
            return AllDevices()
        if field.value == "rest":
            return RemainingGpus()
        kind = "uuid" if field.value.startswith("GPU-") else "model"
        near = nearest_word(field.value, ("all", "rest"))
        hint = f"did you mean {near!r}?" if near else f"write all, rest, or {{{kind}: {field.value[:60]}}}"
        field.error(f"{field.value[:60]!r} is not a selector", hint)
        return GpuCriteria()
    table = field.table(_CRITERIA, f"{{index: {_indexes_in(field.value) or [0]}}}")
    if table is None:
        return GpuCriteria()
    if not field.value:
        field.error("selects nothing: there is no criterion", f"give one of {', '.join(_CRITERIA)}")
    return GpuCriteria(
        index=_criterion(table, "index", _index),
        uuid=_criterion(table, "uuid", parsed(_gpu_uuid)),
        model=_criterion(table, "model", parsed(_model_pattern)),
        pci=_criterion(table, "pci", parsed(parse_pci_address, "0000:07:00.0")),
    )


def _indexes_in(value: Value) -> list[int]:
    """The GPU indexes that were meant by a number, or by a list of numbers."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if type(item) is int][:16]


def _index(field: Field) -> int | None:
    if field.value == "all":
        field.error("all is not an index", "write select: all")
        return None
    match = _RANGE.fullmatch(field.value) if isinstance(field.value, str) else None
    if match is not None and int(match[1]) < int(match[2]):
        field.error(
            f"{field.value!r} is not an index", f"write {list(range(int(match[1]), int(match[2]) + 1))}"
        )
        return None
    return field.integer(at_least=0)


def _criterion(table: Table, key: str, read: Callable[[Field], T | None]) -> tuple[T, ...]:
    """The values of one criterion: a single one, or a list."""
    field = table.get(key)
    items = field.one_or_many() if field else ()
    if field is not None and items is not None and not items:
        field.error("lists nothing", "remove it, or list at least one")
    values = [value for item in items or () if (value := read(item)) is not None]
    if field is not None and len(set(values)) < len(values):
        field.warn("lists something twice")
    return tuple(dict.fromkeys(values))


def _gpu_uuid(text: str) -> str:
    if text.startswith("MIG-"):
        raise ValueError(f"{text[:60]!r} is a MIG device; a policy selects GPUs")
    if not text.startswith("GPU-") or len(text) == len("GPU-"):
        raise ValueError(f"{text[:60]!r} is not the UUID of a GPU, which begins with GPU-")
    return text


def _model_pattern(text: str) -> str:
    if not text.strip():
        raise ValueError("has to name a product, A100-SXM4-40GB, or a pattern, *A100*")
    return text


def _strategy(table: Table) -> tuple[Sharing, DesiredMig | None]:
    """How the GPUs are shared: exactly one of the four keys."""
    given = [key for key in _STRATEGIES if key in table]
    if len(given) != 1:
        text = f"{' and '.join(given)} exclude each other" if given else "no strategy"
        table.whole.error(text, f"write exactly one of {', '.join(_STRATEGIES)}")
    read = [_one_strategy(table, key) for key in given]
    return read[0] if read else (Exclusive(), None)


def _one_strategy(table: Table, key: str) -> tuple[Sharing, DesiredMig | None]:
    field = table.here(key)
    if key == Strategy.MIG:
        return read_mig(field)
    if reader := SHARING_READERS.get(key):
        return reader(field), None
    field.table((), "{}")
    return Exclusive(), None


# --- contradictions ----------------------------------------------------------------------------


def _contradictions(read: list[tuple[Field, GpuEntry]], options: Options) -> None:
    """Contradictions that do not depend on a node. Entries with unlike ``when`` are judged on the node."""
    first: dict[tuple[str, object], list[GpuEntry]] = {}
    everything = [
        (at, gpu_entry) for at, (_, gpu_entry) in enumerate(read) if isinstance(gpu_entry.select, AllDevices)
    ]
    for position, (field, entry) in enumerate(read):
        others = (
            gpu_entry
            for at, gpu_entry in everything
            if at < position or not isinstance(entry.select, AllDevices)
        )
        if taken := next((gpu_entry for gpu_entry in others if _leaves_nothing(gpu_entry, entry)), None):
            field.error(
                f"{taken.origin} selects all GPUs already",
                f"write 'select: rest' in {taken.origin}: what no other entry selects",
            )
            continue
        for criterion in _sole_criterion(entry.select):
            before = first.setdefault(criterion, [])
            if owner := next((gpu_entry for gpu_entry in before if _meet(gpu_entry, entry)), None):
                field.error(
                    f"{criterion[0]} {criterion[1]} is selected by {owner.origin} already".replace("  ", " ")
                )
            before.append(entry)
        if entry.mig is not None and entry.mig.enabled and options.mig_strategy is MigStrategy.NONE:
            field.error(
                "a MIG layout under resources.mig-strategy none, which offers whole GPUs",
                "mig-strategy: mixed names MIG devices by profile, single calls them nvidia.com/gpu",
            )


def _meet(entry: GpuEntry, other: GpuEntry) -> bool:
    """There are certainly nodes on which both count."""
    return not entry.when or not other.when or entry.when == other.when


def _leaves_nothing(everything: GpuEntry, entry: GpuEntry) -> bool:
    """``entry`` can select no GPU. One for the rest may be there for the nodes on which ``everything`` does
    not count.
    """
    for_others = isinstance(entry.select, RemainingGpus) and everything.when and everything.when != entry.when
    return _meet(everything, entry) and not for_others


def _sole_criterion(select: GpuSelector) -> Iterator[tuple[str, object]]:
    """What an entry selects on every node. With several criteria that depends on the node."""
    match select:
        case RemainingGpus():
            yield "rest", ""
        case GpuCriteria(index=index, uuid=(), model=(), pci=()):
            yield from (("index", number) for number in index)
        case GpuCriteria(index=(), uuid=uuid, model=(), pci=()):
            yield from (("uuid", name) for name in uuid)
        case GpuCriteria(index=(), uuid=(), model=(), pci=pci):
            yield from (("pci", address) for address in pci)
        case _:
            return

"""How the GPUs of one entry of the native format are shared: ``time-slicing``, ``mps``, both with clients
or units, ``mig``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from partage.codec.fields import Field, Table
from partage.codec.reader import by_type, parsed
from partage.codec.yaml_document import Value
from partage.model.ids import parse_resource_name
from partage.model.layout import DISABLED, ENABLED, LayoutItem, parse_layout_name
from partage.model.policy import (
    DesiredMig,
    Exclusive,
    MemoryUnits,
    Mps,
    Sharing,
    SharingClient,
    TimeSlicing,
    UnitPlacement,
)
from partage.model.strategy import Interval
from partage.units import GIB, MIB, parse_bytes, parse_gpu_memory, parse_percent

MOST_ITEMS = 512
"""Limit for the clients of a GPU and the MIG devices of a layout, far above what is possible."""

_MOST_MEANT = 8
"""Limit for the MIG devices that a hint names."""

_UNITS = ("unit", "placement")
_SHARES = ("replicas", "clients", *_UNITS)
_TIME_SLICING = (*_SHARES, "interval", "memory")
_MPS = (*_SHARES, "exclusive-process", "users", "protocol")
_PROTOCOLS = (2, 3)
_SLICED_CLIENT = ("name", "memory")
_MPS_CLIENT = (*_SLICED_CLIENT, "threads")


class HeldMemory(StrEnum):
    """``memory``: whether the driver is to hold a time-sliced container to its share."""

    NONE = "none"
    HARD = "hard"


class MpsUsers(StrEnum):
    """``users``: whether the users of one MPS daemon share a server, or wait for each other."""

    SINGLE = "single"
    MULTI = "multi"


def read_time_slicing(field: Field) -> TimeSlicing:
    """The value of ``time-slicing``."""
    table = field.table(_TIME_SLICING, _replicas_example(field))
    if table is None:
        return TimeSlicing(2)
    shares = _shares(field, table, _SLICED_CLIENT)
    return TimeSlicing(
        shares.replicas,
        table.value("interval", by_type(Interval), None),
        shares.units,
        shares.clients,
        limited=table.choice("memory", HeldMemory.NONE) is HeldMemory.HARD,
    )


class _Shares(NamedTuple):
    """Into what a GPU is cut: equal shares, unequal ones, or units."""

    replicas: int
    clients: tuple[SharingClient, ...] = ()
    units: MemoryUnits | None = None


def _shares(field: Field, table: Table, client_keys: Sequence[str]) -> _Shares:
    """``replicas``, ``clients`` or ``unit``. field: of the whole table. client_keys: what a client can
    have.
    """
    units, replicas, clients = _units(table), table.get("replicas"), table.get("clients")
    given = [key for key in ("replicas", "clients", "unit") if key in table]
    if len(given) != 1:
        text = (
            f"{' and '.join(given)} exclude each other" if given else "neither replicas nor clients nor unit"
        )
        hint = "replicas: n for even shares, clients: [...] for unequal ones, unit: 1Gi for amounts of memory"
        field.error(text, hint)
    if units is not None:
        return _Shares(0, units=units)
    if clients is None:
        return _Shares(table.value("replicas", _replicas, 2))
    if replicas is not None:
        _replicas(replicas)
    read = _clients(clients, client_keys)
    return _Shares(max(2, len(read)), read)


def _units(table: Table) -> MemoryUnits | None:
    """Shares by amounts of memory: ``unit``, and ``placement`` beside it."""
    if "unit" not in table:
        if "placement" in table:
            table.here("placement").error(
                "says on which GPU amounts of memory are placed, and there is no unit",
                "for shares of fixed size: resources: {allocation: distributed}",
            )
        return None
    unit_bytes = table.value("unit", lambda field: _with_unit(field, _unit, "Gi"), GIB)
    return MemoryUnits(unit_bytes, table.choice("placement", UnitPlacement.BINPACK))


def _unit(text: str) -> int:
    amount = parse_bytes(text)
    if amount % MIB:
        raise ValueError(f"{text!r} is not in whole MiB: write 1Gi, 512Mi")
    return amount


def _replicas_example(field: Field) -> str:
    """What was meant by a number in place of a mapping."""
    return f"{{replicas: {field.value if type(field.value) is int and field.value >= 2 else 4}}}"


def _replicas(field: Field) -> int | None:
    return field.integer(at_least=2)


def read_mps(field: Field) -> Mps:
    """The value of ``mps``: equal shares, clients, or units of memory."""
    table = field.table(_MPS, _replicas_example(field))
    if table is None:
        return Mps(2)
    alone = table.boolean("exclusive-process", default=True)
    multi_user = None if "users" not in table else table.choice("users", MpsUsers.SINGLE) is MpsUsers.MULTI
    protocol = table.value("protocol", _protocol, _PROTOCOLS[0])
    if protocol >= 3 and multi_user is False:
        table.here("users").error(
            "single excludes protocol 3, whose server always has one user and would refuse all others",
            "leave 'users' out, or take 'protocol: 2'",
        )
    shares = _shares(field, table, _MPS_CLIENT)
    return Mps(shares.replicas, shares.clients, alone, multi_user, protocol, shares.units)


def _protocol(field: Field) -> int | None:
    """Version of the daemon's control interface; the new one only if the policy asks for it."""
    version = field.integer()
    if version is not None and version not in _PROTOCOLS:
        field.error(f"has to be 2 or 3, not {version}")
    return version


def _clients(field: Field, keys: Sequence[str]) -> tuple[SharingClient, ...]:
    items = field.items(MOST_ITEMS)
    if items is None:
        return ()
    if len(items) < 2:
        field.error(f"has to list 2 clients or more, not {len(items)}", "one client needs no sharing")
    clients = [(item, client) for item in items if (client := _client(item, keys)) is not None]
    _equal_under_one_name(clients)
    return tuple(client for _, client in clients)


def _client(field: Field, keys: Sequence[str]) -> SharingClient | None:
    table = field.table(keys)
    if table is None:
        return None
    client = SharingClient(
        name=table.value("name", parsed(_client_name), None),
        memory_bytes=table.value("memory", lambda found: _with_unit(found, _memory, "Gi"), None),
    )
    if "threads" not in keys:
        return client
    threads_percent = table.value("threads", lambda found: _with_unit(found, parse_percent, "%"), None)
    return replace(client, threads_percent=threads_percent)


def _with_unit(field: Field, parse: Callable[[str], int], unit: str) -> int | None:
    """An amount; a number without its unit is an error that says how to write it."""
    example = "8Gi" if unit == "Gi" else "20%"
    if type(field.value) is int and field.value > 0:
        field.unfit(f"text such as {example}", f"write {field.value}{unit}")
        return None
    return field.parsed(parse, example)


def _client_name(text: str) -> str:
    parse_resource_name(text if "/" in text else f"gpu.{text}")
    return text


def _memory(text: str) -> int:
    return parse_gpu_memory(text)  # 1 MiB is also the least that MPS and the driver can limit


def _equal_under_one_name(clients: list[tuple[Field, SharingClient]]) -> None:
    """A pod asks by name, so shares with one name must be equal."""
    first: dict[str | None, tuple[Field, SharingClient]] = {}
    for field, client in clients:
        known, like = first.setdefault(client.name, (field, client))
        if (like.memory_bytes, like.threads_percent) == (client.memory_bytes, client.threads_percent):
            continue
        called = f"is also called {client.name!r}" if client.name else "has no name either"
        field.error(
            f"differs from {known.place.path}, which {called}",
            "give unequal clients a 'name' each of their own",
        )


SHARING_READERS: Mapping[str, Callable[[Field], Sharing]] = {
    "time-slicing": read_time_slicing,
    "mps": read_mps,
}
"""The keys for a device in shares, and what reads their values."""

_MIG = ("layout", "on-demand", *SHARING_READERS)


def read_mig(field: Field) -> tuple[Sharing, DesiredMig]:
    """The value of ``mig``: how each MIG device is shared, and the layout."""
    table = field.table(_MIG, f"{{layout: {_meant_layout(field.value) or '[3g.40gb, 2g.20gb]'}}}")
    if table is None:
        return Exclusive(), DesiredMig()
    wanted = _on_demand(table) if "on-demand" in table else _fixed(table)
    given = [key for key in SHARING_READERS if key in table]
    if len(given) > 1:
        field.error(f"{' and '.join(given)} exclude each other", "keep one of the two")
    sharings = [SHARING_READERS[key](table.here(key)) for key in given]
    if any(isinstance(sharing, TimeSlicing) and sharing.limited for sharing in sharings):
        table.here("time-slicing").error(
            "memory: hard is for whole GPUs: the driver takes no limits for MIG devices",
            "leave 'memory' out, or give each tenant a MIG device of its own",
        )
    return (sharings[0] if sharings else Exclusive()), wanted


def _fixed(table: Table) -> DesiredMig:
    what = "the MIG devices that the GPU should have: [3g.40gb, 2g.20gb]"
    return table.needed("layout", _layout, what) or DesiredMig()


def _on_demand(table: Table) -> DesiredMig:
    """MIG devices that are made when claims ask for them."""
    field = table.here("on-demand")
    if "layout" in table:
        field.error("layout and on-demand exclude each other", "keep one of the two")
    elif not table.boolean("on-demand", default=True):
        field.error("is false", "write the MIG devices that the GPU should have: layout: [3g.40gb, 2g.20gb]")
    return DesiredMig(on_demand=True)


def _layout(field: Field) -> DesiredMig:
    """A list of MIG devices, or the name of a layout."""
    if isinstance(field.value, str):
        return _named_layout(field)
    meant = _meant_layout(field.value) or "[3g.40gb, 3g.40gb]"
    if isinstance(field.value, list) and any(isinstance(item, dict) for item in field.value):
        field.error("has to be a list of MIG profiles", f"write one item for each MIG device: {meant}")
        return DesiredMig()
    items = field.items(MOST_ITEMS, f"write one item for each MIG device: {meant}")
    if items is not None and not items:
        field.error("is empty", "for a GPU that is not shared write exclusive: {}")
    return DesiredMig(
        tuple(
            layout_item
            for item in items or ()
            if (layout_item := item.parsed(LayoutItem.parse, "3g.40gb")) is not None
        )
    )


def _named_layout(field: Field) -> DesiredMig:
    if (meant := _meant_layout(field.value)).startswith("["):
        text = "is a MIG device" if _is_item(field.value) else "are MIG devices"
        field.error(f"{field.value!r} {text}, not the name of a layout", f"write a list: {meant}")
        return DesiredMig()
    name = field.parsed(parse_layout_name)
    if name == DISABLED:
        return DesiredMig(enabled=False)
    return DesiredMig(named=None if name == ENABLED else name)


def _meant_layout(value: Value) -> str:
    """The layout that was meant by another way to write it: ``{3g.40gb: 2}``, ``3g.40gb, 2g.20gb``, a list of
    both; empty if that is not known.
    """
    parts = value if isinstance(value, list) else [value]
    names: list[str] = []
    for part in parts:
        if isinstance(part, str):
            names += [word for word in re.split(r"[\s,+]+(?!me|gfx)", part) if word]
        elif isinstance(part, dict):
            for name, count in part.items():
                names += [name] * (count if type(count) is int and 0 <= count <= _MOST_MEANT else 1)
        else:
            return ""
    if len(names) == 1 and names[0].startswith("all-") and isinstance(value, str):
        return names[0]
    fits = names and len(names) <= _MOST_MEANT and all(map(_is_item, names))
    return f"[{', '.join(names)}]" if fits else ""


def _is_item(value: object) -> bool:
    try:
        LayoutItem.parse(str(value))
    except ValueError:
        return False
    return True

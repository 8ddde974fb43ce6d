"""mig-parted's configuration file: named configurations of MIG layouts. As strict as mig-parted.

Entries select GPUs by index and by PCI device id. The last entry that matches a GPU counts.
"""

from __future__ import annotations

import re

from partage.codec.fields import Dialect, Field, Notes, Table, nearest_word
from partage.codec.yaml_document import describe
from partage.model.geometry import MigProfile
from partage.model.layout import LayoutItem
from partage.model.policy import AllDevices, DesiredMig, GpuCriteria, GpuEntry, GpuSelector, Options, Policy

FORMAT = "mig-parted/v1"
MOST_DEVICES = 512
"""Limit for lists and counts, far above any node."""

_TOP = ("version", "mig-configs")
_ENTRY = ("devices", "device-filter", "mig-enabled", "mig-devices")
_NUMBER = re.compile(r"\d[0-9A-Za-z_]*", re.ASCII)
_LEADING_ZERO = re.compile(r"\A0(?=[0-9_])", re.ASCII)

DIALECT = Dialect(homes=dict.fromkeys(_ENTRY, "an entry of a configuration"))


def read_mig_parted(notes: Notes, config: str | None) -> Policy:
    """The policy of one named configuration. Errors in all configurations are noted.

    config: its name; None if the file has only one.
    """
    table = notes.top().table(_TOP)
    configs = _configs(table) if table else {}
    entries = {name: _entries(field) for name, field in configs.items()}
    chosen = _choose(notes, list(configs), config)
    return Policy(entries.get(chosen, ()), Options(), notes.file, FORMAT, later_wins=True)


def _configs(table: Table) -> dict[str, Field]:
    version = table.required("version", "a file of mig-parted says 'version: v1'")
    if version is not None and version.value != "v1":
        version.error(f"has to be v1, not {describe(version.value)}")
    configs = table.needed("mig-configs", Field.mapping)
    if configs is not None and not configs:
        table.here("mig-configs").error("is empty", "name at least one configuration")
    return configs or {}


def _choose(notes: Notes, names: list[str], config: str | None) -> str:
    shown = ", ".join(name[:60] for name in names[:50]) + (", ..." if len(names) > 50 else "")
    top = notes.top()
    if config is None:
        if len(names) > 1:
            top.error(
                f"holds {len(names)} configurations, and none is chosen", f"--config takes one of: {shown}"
            )
        return names[0] if names else ""
    if names and config not in names:
        near = nearest_word(config, names)
        advice = f"did you mean {near[:60]!r}? " if near else ""
        top.error(f"has no configuration {config[:60]!r}", f"{advice}it has: {shown}")
    return config


def _entries(field: Field) -> tuple[GpuEntry, ...]:
    items = field.items(MOST_DEVICES)
    if items is not None and not items:
        field.error("is empty", "a configuration has at least one entry")
    return tuple(entry for item in items or () if (entry := _entry(item)) is not None)


def _entry(field: Field) -> GpuEntry | None:
    table = field.table(_ENTRY)
    if table is None:
        return None
    select = _select(table)
    enabled = table.needed("mig-enabled", Field.boolean, "true or false")
    wanted = table.get("mig-devices")
    items = _items(wanted) if wanted is not None else ()
    if enabled is True and wanted is None:
        field.error("'mig-devices' is missing, and mig-enabled is true", "write {} for no MIG devices")
    if enabled is False and wanted is not None and wanted.value:
        wanted.error("MIG devices where mig-enabled is false", "remove them, or set mig-enabled: true")
    return GpuEntry(origin=field.place.path, select=select, mig=DesiredMig(items, enabled is True))


def _select(table: Table) -> GpuSelector:
    devices = table.required("devices", "all, or a list of GPU indexes")
    index: tuple[int, ...] = ()
    if devices is not None and devices.value != "all":
        items = devices.items(MOST_DEVICES) if isinstance(devices.value, list) else None
        if items is None:
            devices.error(f"has to be all or a list of GPU indexes, not {describe(devices.value)}")
        elif not items:
            devices.error("lists no GPU", "all means every GPU")
        index = tuple(number for item in items or () if (number := item.integer(at_least=0)) is not None)
    filters = _filters(table.get("device-filter"))
    if not index and not filters:
        return AllDevices()
    return GpuCriteria(index=tuple(dict.fromkeys(index)), device_filter=filters)


def _filters(field: Field | None) -> tuple[str, ...]:
    """PCI device ids, lower case. An empty filter is ignored; other text matches no GPU, as in mig-parted.

    Tried with nvidia-mig-parted 0.15.0: with a filter like ``MODEL`` it passes over every GPU, and both its
    ``apply`` and its ``assert`` end with 0.
    """
    if field is None or field.value in (None, "", []):
        return ()
    filters: list[str] = []
    for item in field.one_or_many() or ():
        if (text := item.text()) is None:
            continue
        try:
            filters.append(_device_id(text))
        except ValueError:
            filters.append(text)
            item.warn(
                f"{text[:60]!r} is no PCI device id, and a filter can be nothing else: it selects no GPU",
                "write 0x20B010DE (device, then vendor), or with the id of the board, 0x20B010DE:0x134F10DE;"
                " version: partage/v1 can select by model (select: {model: ...})",
            )
    return tuple(filters)


def _device_id(text: str) -> str:
    """``0x20b010de``, or with the board ``0x20b010de:0x134f10de``. Raises ValueError where it is neither."""
    numbers = [_number(part) for part in text.split(":", 2)]
    if len(numbers) > 2:
        raise ValueError(text)
    return ":".join(f"{number:#010x}" for number in numbers)


def _number(text: str) -> int:
    """32 bits in any spelling that Go reads, as mig-parted does (``strconv.ParseUint(text, 0, 32)``).

    It takes ``590352606`` and ``0x2330_10DE`` for 0x233010DE, too. Raises ValueError.
    """
    if not _NUMBER.fullmatch(text):  # int() takes spaces, signs and other scripts' digits
        raise ValueError(text)
    number = int(_LEADING_ZERO.sub("0o", text, count=1), 0)
    if number >= 1 << 32:
        raise ValueError(text)
    return number


def _items(field: Field) -> tuple[LayoutItem, ...]:
    counts = field.mapping()
    if counts is None:
        return ()
    items: list[LayoutItem] = []
    for name, member in counts.items():
        count = member.integer(at_least=0) or 0
        try:
            profile = MigProfile.parse(name)
        except ValueError as error:
            member.error(str(error))
            continue
        if len(items) + count > MOST_DEVICES:
            member.error(f"{count} MIG devices on one GPU", "a GPU holds 7 at most")
            continue
        items.extend([LayoutItem(profile)] * count)
    if counts and all(member.value == 0 for member in counts.values()):
        field.error("asks for no MIG device", "write {} for no MIG devices")
    return tuple(items)

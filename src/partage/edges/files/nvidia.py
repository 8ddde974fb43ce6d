"""The configuration file of NVIDIA's device plugin, ``version: v1``, with its environment variables.

Read as NVIDIA's plugin reads it: keys match in any case, except where NVIDIA looks them up by their exact
name; unknown keys are warnings; a variable overrides the file. Keys that NVIDIA parses but ignores have an
effect here: ``resources`` patterns, and ``rename`` and ``devices`` of an item. Flags are read in
``nvidia_flags``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from partage.codec.fields import Dialect, Field, Notes, Place, Table
from partage.codec.yaml_document import Value, describe
from partage.edges.files.nvidia_flags import FLAGS, GFD, PLUGIN, read_flags
from partage.model.ids import (
    LONGEST_RESOURCE_NAME,
    VENDOR,
    ResourceName,
    parse_resource_name,
)
from partage.model.policy import (
    AllDevices,
    DeviceSelector,
    ListedDevices,
    LowestIndexes,
    MigStrategy,
    Mps,
    NamePattern,
    Options,
    Policy,
    ResourceEntry,
    TimeSlicing,
)
from partage.text import listed

FORMAT = "nvidia/v1"
MOST_ITEMS = 512

_TOP = ("version", "flags", "resources", "sharing", "imex")
TOP_KEYS = frozenset(_TOP)
_RESOURCES = ("gpus", "mig")
_PATTERN = ("pattern", "name")
_SHARING = ("timeSlicing", "mps")
_REPLICATED = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
_ITEM = ("name", "replicas", "rename", "devices")
_SUFFIX = ".shared"

DIALECT = Dialect(
    as_in_go=True,
    unknown="warning",
    ignored_by="NVIDIA's plugin",
    null_is_absent=True,
    homes={
        **dict.fromkeys(GFD, "flags.gfd"),
        **dict.fromkeys(PLUGIN, "flags.plugin"),
        **dict.fromkeys(FLAGS, "flags"),
        **dict.fromkeys(_ITEM, "an item of sharing.timeSlicing.resources or sharing.mps.resources"),
        **dict.fromkeys(_REPLICATED[:2], "sharing.timeSlicing or sharing.mps"),
        **dict.fromkeys(_SHARING, "sharing"),
        "channelIDs": "imex",
        "required": "imex",
    },
)


def read_nvidia(notes: Notes, env: Mapping[str, str]) -> Policy:
    """The policy in a document, overridden by variables. Errors are noted."""
    for twice in notes.document.duplicates:
        notes.note(
            Place(notes.file, twice.path), "warning", f"{twice.message}; the last one counts", twice.hint
        )
    if (foreign := _foreign(notes.document.value)) is not None:
        notes.top().error(*foreign)
        return Policy(source=notes.file)
    table = notes.top().table(_TOP)
    if table is None:
        return Policy(source=notes.file)
    options, mps_root = read_flags(table.get("flags"), table.get("imex"), notes, env)
    sharing = _table(table.get("sharing"), _SHARING)
    _shares_nothing(sharing)
    entries = (_time_slicing(sharing) + _mps(sharing)) if sharing else ()
    entries = _without_repeated(notes, entries)
    if sharing and "mps" in sharing:
        _mps_flags(sharing.here("mps"), options, mps_root)
    _overlaps(notes, entries)
    gpu_names, mig_names = _patterns(table)
    return Policy(entries, replace(options, gpu_names=gpu_names, mig_names=mig_names), notes.file, FORMAT)


_OTHER_FILES = {
    "hooks": "this is a hooks file of mig-parted, no policy: name the file with mig-configs;"
    " Partage runs no hooks",
    "systemd-services": "this is the GPU Operator's list of services to stop while MIG changes, no policy:"
    " name the file with mig-configs; Partage stops no service, so stop those that use a GPU yourself",
}
"""Files that begin with ``version: v1``, too, by a key of theirs."""


def _foreign(value: Value) -> tuple[str, str] | None:
    """What is wrong with a file of which NVIDIA's plugin would read nothing, and what to do.

    Read as it reads, such a file makes every GPU exclusive, whatever it says.
    """
    if not isinstance(value, dict):
        return None
    keys = {key.casefold() for key in value} - {"version"}
    whose = "version: v1 is the format of NVIDIA's device plugin"
    if "gpus" in keys:
        return f"{whose}, which has no 'gpus'", "for a strategy for each GPU write version: partage/v1"
    if keys and not keys & TOP_KEYS:
        known = next((_OTHER_FILES[key] for key in sorted(keys & _OTHER_FILES.keys())), "")
        known = known or f"its keys are {', '.join(_TOP)}; Partage's own format is version: partage/v1"
        return f"{whose}, and nothing here is a key of it: {_named(value)}", known
    return None


def _named(value: dict[str, Value]) -> str:
    return listed([key[:40] for key in sorted(value) if key.casefold() != "version"], 8)


def _table(field: Field | None, keys: tuple[str, ...]) -> Table | None:
    return field.table(keys) if field else None


def _shares_nothing(sharing: Table | None) -> None:
    """Says what is lost where no key of ``sharing`` is known: all of it, and not only that key."""
    if sharing and sharing.whole.value and not any(sharing.given(key) for key in _SHARING):
        sharing.whole.warn(
            "no key in it is known to NVIDIA's plugin, so no GPU is shared: every GPU is given out whole",
            f"its keys are {' and '.join(_SHARING)}",
        )


def _mps_flags(mps: Field, options: Options, mps_root: str) -> None:
    if options.mig_strategy is MigStrategy.MIXED:
        mps.error(
            "using migStrategy mixed is not supported with MPS", "take migStrategy none, or timeSlicing"
        )
    if not mps_root:
        mps.warn(
            "NVIDIA's plugin needs mpsRoot (or MPS_ROOT) with MPS",
            "here the directories lie below --run-dir, and mpsRoot has no effect",
        )


# --- names ---------------------------------------------------------------------------------------


def parse_nvidia_name(text: str) -> ResourceName:
    """A resource name by NVIDIA's rules: ``nvidia.com/`` is added, other domains are refused."""
    name = text.removeprefix(f"{VENDOR}/")
    if "/" in name:
        raise ValueError(f"{text[:80]!r} is not in {VENDOR}, the only domain that NVIDIA's format knows")
    return parse_resource_name(f"{VENDOR}/{name}")


def _name(field: Field) -> ResourceName | None:
    return field.parsed(parse_nvidia_name)


def _patterns(table: Table) -> tuple[tuple[NamePattern, ...], tuple[NamePattern, ...]]:
    resources = _table(table.get("resources"), _RESOURCES)
    if resources is None:
        return (), ()
    return _pattern_list(resources.get("gpus")), _pattern_list(resources.get("mig"))


def _pattern_list(field: Field | None) -> tuple[NamePattern, ...]:
    items = (field.items(MOST_ITEMS) if field else None) or []
    return tuple(pattern for item in items if (pattern := _pattern(item)) is not None)


def _pattern(field: Field) -> NamePattern | None:
    table = field.table(_PATTERN, exact=True)
    if table is None:
        return None
    what = "which products or profiles are meant; * matches any text"
    pattern = table.needed("pattern", Field.text, what)
    name = table.needed("name", _name, "what they are called")
    return NamePattern(pattern, name) if pattern is not None and name is not None else None


# --- sharing -------------------------------------------------------------------------------------


def _time_slicing(sharing: Table) -> tuple[ResourceEntry, ...]:
    """``timeSlicing: null`` is an error, and ``mps: null`` is ignored, as in NVIDIA's plugin."""
    field = sharing.given("timeSlicing")
    return _replicated(field, fail_by_default=False, mps=False) if field else ()


def _mps(sharing: Table) -> tuple[ResourceEntry, ...]:
    field = sharing.get("mps")
    return _replicated(field, fail_by_default=True, mps=True) if field else ()


def _replicated(field: Field, *, fail_by_default: bool, mps: bool) -> tuple[ResourceEntry, ...]:
    if field.value is None:
        field.error("no resources specified", "list them under 'resources', or remove the key")
        return ()
    table = field.table(_REPLICATED, exact=True)
    if table is None:
        return ()
    suffix = table.boolean("renameByDefault", default=False)
    fail = table.boolean("failRequestsGreaterThanOne", default=fail_by_default)
    if mps and not fail:
        table.here("failRequestsGreaterThanOne").warn(
            "a container gets MPS shares of one GPU only, and is refused if they are of two",
            "each GPU has an MPS daemon of its own here",
        )
    listed = table.get("resources")
    items = listed.items(MOST_ITEMS) if listed else []
    if items == []:
        table.here("resources").error(
            "no resources specified", "list at least one: {name: ..., replicas: ...}"
        )
    entries = (_item(item, suffix=suffix, fail=fail, mps=mps) for item in items or ())
    return tuple(entry for entry in entries if entry is not None)


def _item(field: Field, *, suffix: bool, fail: bool, mps: bool) -> ResourceEntry | None:
    table = field.table(_ITEM, exact=True)
    if table is None:
        return None
    resource = table.needed("name", _name, "the resource that is shared, nvidia.com/gpu")
    number = table.needed(
        "replicas", lambda it: it.integer(at_least=2), "how many shares a device is cut into"
    )
    rename = table.get("rename")
    renamed = rename.parsed(parse_nvidia_name) if rename and rename.value != "" else None
    devices = _devices(table.given("devices"))
    if resource is None or number is None:
        return None
    if suffix and not renamed and len(resource) + len(_SUFFIX) > LONGEST_RESOURCE_NAME:
        table.here("name").error(f"with {_SUFFIX} it is longer than {LONGEST_RESOURCE_NAME} characters")
    return ResourceEntry(
        origin=field.place.path,
        resource=resource,
        devices=devices,
        sharing=Mps(number) if mps else TimeSlicing(number),
        rename=renamed,
        shared_suffix=suffix,
        fail_requests_greater_than_one=fail,
    )


def _devices(field: Field | None) -> DeviceSelector:
    if field is None:
        return AllDevices()
    count = field.whole_number()
    if count is not None:
        if count <= 0:
            field.error(f"devices set as {count}, but a count of devices must be > 0")
        return LowestIndexes(max(count, 1))
    if isinstance(field.value, list):
        return _listed(field)
    if field.value != "all":
        field.error(
            f"unrecognized devices: {describe(field.value)}",
            'all, a count, or a list of indexes and UUIDs: [0, "0:1", "GPU-..."]',
        )
    return AllDevices()


def _listed(field: Field) -> ListedDevices:
    index: list[int] = []
    mig: list[tuple[int, int]] = []
    uuid: list[str] = []
    for item in field.items(MOST_ITEMS) or ():
        match _device(item):
            case int(number):
                index.append(number)
            case (int(gpu), int(device)):
                mig.append((gpu, device))
            case str(text):
                uuid.append(text)
            case _:
                item.error(
                    f"unsupported device: {describe(item.value)}",
                    'an index 0, "0:1", GPU-<uuid> or MIG-<uuid>',
                )
    if field.value == []:
        field.warn("selects no device")
    count = len(index) + len(mig) + len(uuid)
    listed = ListedDevices(*(tuple(dict.fromkeys(part)) for part in (index, mig, uuid)))  # type: ignore[arg-type]
    if len(listed.index) + len(listed.mig_index) + len(listed.uuid) < count:
        field.warn("lists a device twice")
    return listed


def _device(field: Field) -> int | tuple[int, int] | str | None:
    """An index, a MIG index or a UUID; None for anything else."""
    number, value = field.whole_number(), field.value
    if number is not None:
        return number if number >= 0 else None
    if not isinstance(value, str) or len(value) > 128:
        return None
    if value.startswith(("GPU-", "MIG-")):
        return value
    gpu, colon, device = value.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in (gpu, device or "0")):
        return None
    if not colon:
        return int(gpu)
    return (int(gpu), int(device)) if device else None


# --- contradictions ------------------------------------------------------------------------------


def _without_repeated(notes: Notes, entries: tuple[ResourceEntry, ...]) -> tuple[ResourceEntry, ...]:
    """One entry for each name that is shared several times in one way, on all devices: NVIDIA's plugin makes
    the replicas of each and counts equal ids once, so that the largest number counts.
    """
    kept: dict[object, ResourceEntry] = {}
    for entry in entries:
        same = (
            (entry.resource, type(entry.sharing), entry.rename)
            if entry.devices == AllDevices()
            else entry.origin
        )
        earlier = kept.setdefault(same, entry)
        if earlier is not entry:
            text = f"{entry.resource} is shared twice, also in {earlier.origin}; the larger number counts"
            notes.note(Place(notes.file, entry.origin), "warning", text, "remove one of the two")
            kept[same] = max(earlier, entry, key=lambda resource_entry: resource_entry.sharing.replicas)
    return tuple(kept.values())


def _overlaps(notes: Notes, entries: tuple[ResourceEntry, ...]) -> None:
    """Entries that claim the same device on every node. Other overlaps are found when the node is known."""
    claims: dict[ResourceName, _Claims] = {}
    for entry in entries:
        earlier = claims.setdefault(entry.resource, _Claims()).claim(entry)
        if earlier is None:
            continue
        kinds = entry.sharing.strategy is not earlier.sharing.strategy
        text = "one GPU cannot be shared by time-slicing and MPS" if kinds else "one device has one sharing"
        message = f"{entry.resource}: overlaps with {earlier.origin}; {text}"
        notes.note(Place(notes.file, entry.origin), "error", message, "give each its own 'devices'")


_Name = int | tuple[int, int] | str
"""A device in a list: index, MIG index, UUID."""


class _Claims:
    """Which entry claims which devices of one resource."""

    def __init__(self) -> None:
        self._all: ResourceEntry | None = None
        self._first: ResourceEntry | None = None
        self._count: tuple[int, ResourceEntry] | None = None
        self._named: dict[_Name, ResourceEntry] = {}

    def claim(self, entry: ResourceEntry) -> ResourceEntry | None:
        """Add an entry. Returns the earlier entry that claims some of the same devices, or None."""
        if entry.devices == ListedDevices():
            return None
        earlier = self._all or self._earlier(entry)
        self._first = self._first or entry
        match entry.devices:
            case AllDevices():
                self._all = self._all or entry
            case LowestIndexes(n=n):
                self._count = max(self._count or (0, entry), (n, entry), key=lambda row: row[0])
            case ListedDevices() as listed:
                for name in _names(listed):
                    self._named.setdefault(name, entry)
        return earlier

    def _earlier(self, entry: ResourceEntry) -> ResourceEntry | None:
        match entry.devices:
            case AllDevices():
                return self._first
            case LowestIndexes(n=n):
                low = (owner for name, owner in self._named.items() if isinstance(name, int) and name < n)
                return self._count[1] if self._count else next(low, None)
            case ListedDevices() as listed:
                if self._count and any(number < self._count[0] for number in listed.index):
                    return self._count[1]
                named = (self._named.get(name) for name in _names(listed))
                return next((owner for owner in named if owner is not None), None)


def _names(listed: ListedDevices) -> Iterator[_Name]:
    yield from listed.index
    yield from listed.mig_index
    yield from listed.uuid

"""What is wrong with slurm.conf and cgroup.conf, as far as GPUs are concerned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partage.slurm.decide import releases
from partage.slurm.decide.gres_lines import GresConf
from partage.slurm.decide.node_view import SHARED, NodeLine, gres_types
from partage.slurm.model import SlurmVersion
from partage.slurm.text.conf import ConfFile, ConfKind, ConfLine, Notebook

_ALWAYS = (
    "allowedramspace", "allowedswapspace", "cgroupmountpoint", "cgroupplugin", "constraincores",
    "constraindevices", "constrainramspace", "constrainswapspace", "ignoresystemd", "ignoresystemdonfailure",
    "maxrampercent", "maxswappercent", "memoryswappiness", "minramspace",
)  # fmt: skip

_KMEM = ("allowedkmemspace", "constrainkmemspace", "maxkmempercent", "minkmemspace")


class Settings:
    """The settings of all slurm.conf files, the last of each counts."""

    def __init__(self, files: Iterable[ConfFile]) -> None:
        self._found: dict[str, ConfLine] = {}
        for file in files:
            for line in file.lines:
                for key, _ in line.pairs:
                    if key.lower() not in ("nodename", "partitionname", "include"):
                        self._found[key.lower()] = line
                    else:
                        break

    def get(self, key: str) -> str | None:
        """The value; None if it is not set."""
        found = self._found.get(key.lower())
        return None if found is None else found.get(key)

    def place(self, key: str) -> ConfLine:
        """The line of a key that is set."""
        return self._found[key.lower()]

    @property
    def whole(self) -> bool:
        """This is a whole slurm.conf and not lines to take over."""
        return "slurmctldhost" in self._found or "controlmachine" in self._found


def check_slurm_conf(
    files: Sequence[ConfFile],
    nodes: Sequence[NodeLine],
    gres: GresConf | None,
    version: SlurmVersion,
    notes: Notebook,
) -> None:
    """All slurm.conf files together. gres: None without gres.conf."""
    _check_lines(files, notes)
    _check_once(nodes, notes)
    settings = Settings(files)
    used = {gres_count.name for node in nodes for gres_count in node.gres} | {
        gres_line.name for gres_line in (gres.records if gres else ())
    }
    shared = sorted(used & set(SHARED))
    _check_types(files, nodes, gres, version, notes)
    select = settings.get("SelectType")
    if (shared and (select or "").lower() not in ("select/cons_tres", "")) or (
        used and shared and select is None and settings.whole and version < releases.CONS_TRES_BY_DEFAULT
    ):
        at = settings.place("SelectType") if select else files[0].name
        notes.error(at, f"{' and '.join(shared)} need SelectType=select/cons_tres")
    accounted = settings.get("AccountingStorageTRES") or ""
    storage = (settings.get("AccountingStorageType") or "").lower()
    if "gres/" in accounted.lower() and settings.whole and storage != "accounting_storage/slurmdbd":
        message = "GRES are accounted for without slurmdbd: slurmctld does not start"
        notes.error(
            settings.place("AccountingStorageTRES"),
            message,
            "add AccountingStorageType=accounting_storage/slurmdbd, or leave this line out",
        )
    if shared and settings.whole:
        _check_sharing(settings, notes)


def _check_lines(files: Sequence[ConfFile], notes: Notebook) -> None:
    for line in (conf_line for file in files for conf_line in file.lines if conf_line.rest):
        message = f"{line.rest[:60]!r} is no key and value: slurmd does not start"
        notes.error(line, message, "write Key=value; a value with spaces in quotes")


def _check_once(nodes: Sequence[NodeLine], notes: Notebook) -> None:
    """As where the lines of ``partage slurm config`` are included beside those that were there."""
    seen: dict[str, NodeLine] = {}
    for node in nodes:
        twice = [name for name in node.names if name in seen]
        if twice:
            first = seen[twice[0]].at
            where = f"line {first.number} of {first.file}"
            message = f"node {twice[0]} is in {where} already: slurmd does not start"
            hint = "one line for each node: what else it says goes into --node-settings"
            notes.error(node.at, message, hint)
        seen |= dict.fromkeys(node.names, node)


def _check_types(
    files: Sequence[ConfFile],
    nodes: Sequence[NodeLine],
    gres: GresConf | None,
    version: SlurmVersion,
    notes: Notebook,
) -> None:
    found = gres_types(files)
    if found is None:
        known: tuple[str, ...] = ()
        for node in (node_line for node_line in nodes if node_line.gres):
            notes.error(node.at, "nodes have GRES, and there is no GresTypes", "add GresTypes=gpu")
            return
    else:
        line, known = found
        if upper := [kind for kind in known if kind != kind.lower()]:
            message = f"GresTypes has {upper[0]}: Slurm compares letter by letter"
            notes.error(line, message, f"write {upper[0].lower()}")
        if all(kind in known for kind in SHARED):
            message = "mps and shard are both in GresTypes: jobs get a wrong percentage, or no GPU"
            notes.error(
                line,
                message,
                "no version can do both; keep one of them for the whole cluster",
            )
    for node in nodes:
        for gres_count in node.gres:
            if known and gres_count.name not in known:
                message = f"{gres_count.name} is not in GresTypes: slurmd and slurmctld ignore it"
                notes.error(node.at, message, f"add it: GresTypes={','.join((*known, gres_count.name))}")
    for record in gres.records if gres else ():
        if known and record.name not in known:
            message = f"{record.name} is not in GresTypes: slurmd ignores this line"
            notes.error(record.at, message, f"GresTypes is {','.join(known)}")
    loaded = [kind for kind in SHARED if kind in known]
    first = next((gres_line for gres_line in (gres.records if gres else ()) if gres_line.multiple), None)
    if loaded and first is not None and version < releases.MIG_BESIDE_SHARES:
        message = (
            f"with {loaded[0]} in GresTypes Slurm {version} reads each file of this MIG device as one GPU"
        )
        hint = f"fixed in {releases.MIG_BESIDE_SHARES}; before, a cluster has MIG devices or shares, not both"
        notes.error(first.at, message, hint)
    if loaded and found is not None and (said := releases.double_booking(version)):
        notes.warn(found[0], *said)


def _check_sharing(settings: Settings, notes: Notebook) -> None:
    parameters = (settings.get("SelectTypeParameters") or "").lower()
    counts_memory = not parameters or "memory" in parameters
    if (
        parameters
        and counts_memory
        and not any(settings.get(key) for key in ("DefMemPerCPU", "DefMemPerGPU", "DefMemPerNode"))
    ):
        message = "a job without --mem takes all memory of its node, so no second one shares its GPU"
        notes.warn(settings.place("SelectTypeParameters"), message, "set DefMemPerCPU or DefMemPerGPU")


def check_cgroup_conf(
    files: Sequence[ConfFile], settings: Settings, version: SlurmVersion, notes: Notebook
) -> None:
    """cgroup.conf, with what it includes; no files: there is none."""
    constrains = False
    for line in (line for file in files for line in file.lines):
        if line.rest:
            notes.error(line, f"{line.rest[:60]!r} is no key and value: slurmd does not start")
        for key, value in line.pairs:
            _check_cgroup_key(line, key, version, notes)
            constrains |= key.lower() == "constraindevices" and value.lower() == "yes"
    if files and not constrains:
        message = "ConstrainDevices is not set: every job can open every GPU of its node"
        notes.warn(files[0].name, message, "add ConstrainDevices=yes")
    elif files and settings.whole:
        plugins = (settings.get("TaskPlugin") or "").lower()
        if "task/cgroup" not in plugins:
            message = "ConstrainDevices has no effect: TaskPlugin in slurm.conf has no task/cgroup"
            notes.warn(files[0].name, message, "TaskPlugin=task/cgroup,task/affinity")


def _check_cgroup_key(line: ConfLine, key: str, version: SlurmVersion, notes: Notebook) -> None:
    low = key.lower()
    remove = "remove this line"
    if low in _ALWAYS:
        return
    if low == "alloweddevicesfile":
        if version >= releases.NO_ALLOWED_FILE:
            notes.warn(line, f"{key} has no effect since {releases.NO_ALLOWED_FILE}", remove)
    elif low == "cgroupautomount":
        if version >= releases.NO_AUTOMOUNT:
            notes.warn(
                line, f"{key} has no effect since {releases.NO_AUTOMOUNT}, and is an error in the log", remove
            )
    elif low in _KMEM:
        if version >= releases.NO_KMEM:
            notes.error(line, f"Slurm {version} does not know {key}: slurmd does not start", remove)
    elif low == "cgroupreleaseagentdir":
        if version >= releases.NO_RELEASE_AGENT:
            notes.error(line, f"{key} has been removed from Slurm: slurmd does not start", remove)
    elif low not in releases.CGROUP_KEY_SINCE or version < releases.CGROUP_KEY_SINCE[low]:
        notes.error(line, f"Slurm {version} does not know {key}: slurmd does not start", remove)


def kinds(files: Iterable[ConfFile], kind: ConfKind) -> list[ConfFile]:
    """The files of one kind."""
    return [file for file in files if file.kind is kind]

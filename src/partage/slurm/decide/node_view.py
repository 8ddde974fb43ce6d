"""What Slurm knows of a node, of GPUs and shares: slurm.conf and gres.conf put together, as slurmd does.

What does not fit is said. What is wrong is what 22.05.8 and 24.11.5 did with it
(tests/slurm/test_check_agrees.py): a node with fewer GPUs than its line is drained (INVAL), with fewer shares
slurmd does not start, and what is too much is idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import field
from msgspec.structs import replace

from partage.slurm.decide import releases
from partage.slurm.decide.gres_lines import GresConf, GresLine, amount_of
from partage.slurm.model import LiveNode, SlurmVersion
from partage.slurm.text.conf import ConfFile, ConfLine, Notebook
from partage.slurm.text.hostlist import expand_hostlist, format_hostlist, split_list
from partage.values import Frozen

SHARED = ("mps", "shard")


class GresCount(Frozen):
    """``gpu:h200:8``: name, type (may be empty), count; None: not given."""

    name: str
    type: str = ""
    count: int | None = None


class SeenGpu(Frozen):
    """A GRES ``gpu`` of a node. files: () if only slurm.conf is known. record: where gres.conf has it."""

    type: str
    files: tuple[str, ...] = ()
    record: GresLine | None = None


class SlurmNodeView(Frozen):
    """One node. shares: ``mps`` or ``shard`` to the units of each GPU, in the order of ``gpus``.

    features: for ``--constraint``.
    """

    name: str
    gpus: tuple[SeenGpu, ...] = ()
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    features: tuple[str, ...] = ()


class NodeLine(Frozen):
    """A ``NodeName`` line of slurm.conf with GRES, or without (gres is () then). at: where."""

    at: ConfLine
    names: tuple[str, ...]
    gres: tuple[GresCount, ...]
    features: tuple[str, ...] = ()


def parse_gres(text: str) -> tuple[GresCount, ...]:
    """``gpu:h200:8,mps:200``; also with ``gres/`` or ``gres:`` in front of each. Raises ValueError."""
    return tuple(_one(part) for part in split_list(text))


def _one(part: str) -> GresCount:
    plain = re.sub(r"^gres[/:]", "", part)
    plain = re.sub(r"\(S:[^)]*\)$", "", plain)
    words = re.split(r"[:=]", plain)
    words = [word for word in words if word != "no_consume"]
    if not words[0] or len(words) > 3:
        raise ValueError(f"{part[:40]!r} is not a GRES such as gpu:h200:8")
    if len(words) == 1:
        return GresCount(words[0])
    amount = amount_of(words[-1])
    if len(words) == 3 and amount is None:
        raise ValueError(f"{words[-1][:20]!r} in {part[:40]!r} is not a number")
    return GresCount(words[0], words[1] if len(words) == 3 or amount is None else "", amount)


def node_lines(file: ConfFile, notes: Notebook) -> Iterator[NodeLine]:
    """The nodes of a slurm.conf."""
    for line in file.lines:
        names, text = line.get("NodeName"), line.get("Gres")
        if names is None or names.upper() == "DEFAULT":
            continue
        if text and re.search(r"gres[/:]|=", text):
            message = f"Gres={text[:60]} is written as in a job's request: Slurm does not read it so"
            notes.error(line, message, "write Gres=gpu:h200:8,mps:200")
        try:
            hosts, gres = tuple(expand_hostlist(names)), parse_gres(text or "")
            features = line.get("Features") or line.get("Feature") or ""
            yield NodeLine(line, hosts, gres, tuple(filter(None, features.split(","))))
        except ValueError as error:
            notes.error(line, str(error))


def gres_types(files: Sequence[ConfFile]) -> tuple[ConfLine, tuple[str, ...]] | None:
    """``GresTypes``, and where it is."""
    for file in files:
        for line in file.lines:
            if (text := line.get("GresTypes")) is not None:
                return line, tuple(text.split(","))
    return None


def live_view(node: LiveNode) -> SlurmNodeView:
    """From ``Gres=`` alone. The units of a type are shared out equally among its GPUs, as gres.conf does
    where it gives one count for several files; without types, among all GPUs.
    """
    try:
        counts = parse_gres(node.gres)
    except ValueError:
        counts = ()
    gpus = tuple(
        SeenGpu(count.type) for count in counts if count.name == "gpu" for _ in range(count.count or 1)
    )
    names = dict.fromkeys(count.name for count in counts if count.name in SHARED)
    shares = {name: _units(name, counts, gpus) for name in names}
    held = {name: units for name, units in shares.items() if any(units)}
    return SlurmNodeView(node.name, gpus, held, node.features)


def _units(name: str, counts: tuple[GresCount, ...], gpus: tuple[SeenGpu, ...]) -> tuple[int, ...]:
    """Of each GPU, in the order of ``gpus``."""
    units = [0] * len(gpus)
    for count in counts:
        places = [place for place, gpu in enumerate(gpus) if count.type in ("", gpu.type)]
        if count.name == name and places:
            for place in places:
                units[place] += (count.count or 0) // len(places)
    return tuple(units) or tuple(count.count or 0 for count in counts if count.name == name)


_INVALID = "Slurm drains the node (INVAL)"


def view_node(
    name: str,
    line: NodeLine | None,
    conf: GresConf | None,
    version: SlurmVersion,
    notes: Notebook,
    *,
    called: str = "",
) -> SlurmNodeView:
    """What Slurm makes of one node. line: None without slurm.conf; conf: None without gres.conf. called: in
    messages, where it stands for others that are alike.
    """
    records = () if conf is None else tuple(record for record in conf.records if record.of(name))
    all_written = conf is not None and not conf.detected(name)
    files = _NodeFiles(called or name, line, records, version, notes, all_written=all_written)
    return replace(files.view(), name=name)


class _NodeFiles:
    """name: in messages. records: of the node; all_written: it detects no more."""

    def __init__(
        self,
        name: str,
        line: NodeLine | None,
        records: Sequence[GresLine],
        version: SlurmVersion,
        notes: Notebook,
        *,
        all_written: bool,
    ) -> None:
        self._name, self._line, self._version, self._notes = name, line, version, notes
        self._records, self._all_written = records, all_written

    def view(self) -> SlurmNodeView:
        self._check_duplicates()
        found = [
            SeenGpu(record.type, files, record)
            for record in self._records
            if record.name == "gpu"
            for files in _each(record)
        ]
        gpus = self._merged(found)
        units = {kind: self._units(kind, gpus) for kind in SHARED}
        features = () if self._line is None else self._line.features
        return SlurmNodeView(self._name, gpus, {kind: one for kind, one in units.items() if one}, features)

    def _check_duplicates(self) -> None:
        seen: dict[str, GresLine] = {}
        for record in self._records:
            if record.name != "gpu" or record.multiple:
                continue
            for file in record.files:
                if file in seen:
                    message = f"{file} is in line {seen[file].at.number} already: slurmd does not start"
                    self._notes.error(record.at, message)
                seen.setdefault(file, record)

    # --- GPUs ---------------------------------------------------------------------------------

    def _merged(self, gpus: Sequence[SeenGpu]) -> tuple[SeenGpu, ...]:
        """Slurm's list: by type in the order of slurm.conf, then by line."""
        if self._line is None:
            return tuple(gpus)
        left, merged = list(gpus), []
        for wanted in (gres for gres in self._line.gres if gres.name == "gpu"):
            count = 1 if wanted.count is None else wanted.count
            taken = [gpu for gpu in left if not wanted.type or gpu.type == wanted.type][:count]
            left = [gpu for gpu in left if not any(gpu is other for other in taken)]
            if len(taken) < count and self._all_written:
                self._too_few(wanted, len(taken), left)
            if not wanted.type and any(gpu.type for gpu in taken):
                self._type_lost(wanted, taken[0].type)
            merged += [SeenGpu(wanted.type, gpu.files, gpu.record) for gpu in taken]
            if not self._all_written:
                merged += [SeenGpu(wanted.type)] * (count - len(taken))
        for gpu in left:
            self._too_many(gpu)
        return tuple(merged)

    def _too_few(self, wanted: GresCount, found: int, left: Sequence[SeenGpu]) -> None:
        assert self._line is not None
        asked = ":".join(part for part in ("gpu", wanted.type) if part)
        has = f"node {self._name} has {wanted.count or 1} x {asked} here"
        types = sorted({gpu.type or "no type" for gpu in left})
        hint = f"gres.conf has {', '.join(types)} for it" if types else "make the counts equal"
        if wanted.type.lower() in (kind.lower() for kind in types):
            hint = f"types are compared letter by letter: write {wanted.type} in both files"
        self._notes.error(self._line.at, f"{has}, and gres.conf has {found}: {_INVALID}", hint)

    def _type_lost(self, wanted: GresCount, kind: str) -> None:
        assert self._line is not None
        message = f"node {self._name} has no type here, so that of gres.conf is lost: gpu:{kind}:1 is refused"
        hint = f"write Gres=gpu:{kind}:{wanted.count or 1}"
        self._notes.warn(self._line.at, message, hint)

    def _too_many(self, gpu: SeenGpu) -> None:
        if gpu.record is None or self._line is None:
            return
        of = ":".join(part for part in ("gpu", gpu.type) if part)
        message = f"node {self._name} has more {of} here than in slurm.conf: no job gets them"
        hint = f"{self._line.at.file}, line {self._line.at.number}, has the counts"
        self._notes.warn(gpu.record.at, message, hint)

    # --- shares -------------------------------------------------------------------------------

    def _units(self, kind: str, gpus: Sequence[SeenGpu]) -> tuple[int, ...]:
        """The units of each GPU; () where the node has none."""
        mine = [record for record in self._records if record.name == kind]
        gres_count = (
            None
            if self._line is None
            else next((gres for gres in self._line.gres if gres.name == kind), None)
        )
        where = mine[0] if mine else self._line
        if where is None or (not mine and gres_count is None):
            return ()
        if gres_count is None and self._line is not None:
            message = f"{kind} is not in Gres= of node {self._name}: no job gets it"
            hint = f"add it in {self._line.at.file}, line {self._line.at.number}"
            self._notes.warn(where.at, message, hint)
            return ()
        if not gpus:
            if self._all_written:
                message = f"node {self._name} has {kind}, and no gpu: slurmd does not start"
                self._notes.error(where.at, message, "add a line Name=gpu")
            return ()
        units = self._placed(kind, mine, gres_count, gpus)
        if gres_count is not None and self._line is not None:
            self._check_sum(kind, gres_count.count or 1, sum(units))
        if kind == "mps" and sum(amount > 0 for amount in units) > 1:
            self._check_spread(where, mine, [gpu for gpu, n in zip(gpus, units, strict=True) if not n])
        return units

    def _check_spread(
        self, where: GresLine | NodeLine, mine: Sequence[GresLine], others: Sequence[SeenGpu]
    ) -> None:
        """``mps`` is of one GPU at a time, unless a flag says otherwise. others: GPUs without mps."""
        flagged = [releases.ALL_SHARING in record.flags for record in mine]
        strict = self._version >= releases.ALL_SHARING_EVERYWHERE
        message = f"node {self._name} has mps on several GPUs, and only one of them is used at a time"
        if not any(flagged) or (strict and not all(flagged)):
            hint = f"add Flags={releases.ALL_SHARING} to the lines of mps (since {releases.SHARD})"
            self._notes.warn(where.at, message, hint)
        elif strict:
            named = {file for record in mine for file in record.files}
            left = [gpu.files for gpu in others if not named.issuperset(gpu.files)]
            if any(len(files) > 1 for files in left):
                about = f"node {self._name}: {releases.MIG_BESIDE_MPS}"
                self._notes.warn(where.at, about, releases.MIG_BESIDE_MPS_HINT)
            elif left:
                files = format_hostlist(file for gpu_files in left for file in gpu_files)
                why = f"{message}, because other GPUs have no line of mps"
                hint = f"add a line Name=mps Count=0 File={files} Flags={releases.ALL_SHARING}"
                self._notes.warn(where.at, why, hint)

    def _check_sum(self, kind: str, said: int, placed: int) -> None:
        assert self._line is not None
        message = f"node {self._name} has {said} {kind} here, and gres.conf has {placed}"
        hint = f"make the counts equal: {kind}:{placed}"
        if placed < said:
            self._notes.error(self._line.at, f"{message}: slurmd does not start", hint)
        elif placed > said:
            self._notes.warn(self._line.at, f"{message}: no job gets the rest", hint)

    def _placed(
        self, kind: str, mine: Sequence[GresLine], gres: GresCount | None, gpus: Sequence[SeenGpu]
    ) -> tuple[int, ...]:
        by_file, even = [line for line in mine if line.files], [line for line in mine if not line.files]
        if by_file and even:
            message = f"some lines of {kind} have File, and this one has none: slurmd does not start"
            self._notes.error(even[0].at, message, "File on all of them, or one line without")
        if not by_file:
            total = sum(line.count or 0 for line in even) or (gres.count or 0 if gres else 0)
            each, rest = divmod(total, len(gpus))
            return tuple(each + (at < rest) for at in range(len(gpus)))
        units = [0] * len(gpus)
        seen: dict[str, int] = {}
        for record in by_file:
            for file in record.files:
                if file in seen:
                    message = f"{file} has {kind} in line {seen[file]} already: 24.11 discards these"
                    self._notes.warn(record.at, message, "one line of each GPU, with the sum")
                seen.setdefault(file, record.at.number)
                at = self._place(kind, record, file, gpus)
                if at is not None:
                    units[at] += (record.count or 0) // len(record.files)
        return tuple(units)

    def _place(self, kind: str, record: GresLine, file: str, gpus: Sequence[SeenGpu]) -> int | None:
        """The GPU of a file; None, with the reason noted, if Slurm discards its shares."""
        whole = next((n for n, gpu in enumerate(gpus) if gpu.files == (file,)), None)
        if whole is not None:
            return whole
        if any(file in gpu.files for gpu in gpus):
            message = f"{file} belongs to MIG devices: Slurm discards these {kind}"
            hint = f"one line without File gives every device of the node the same {kind}"
            if self._version < releases.MIG_BESIDE_SHARES:
                hint = f"shares beside MIG devices take Slurm {releases.MIG_BESIDE_SHARES} or newer"
        else:
            message = f"{file} is no gpu of the node: Slurm discards these {kind}"
            hint = "name a file that a line Name=gpu has"
        self._notes.error(record.at, message, hint)
        return None


def _each(record: GresLine) -> Sequence[tuple[str, ...]]:
    """The files of each GRES of a record; none for one that has no file, which Slurm does not count, unless
    a flag says that it is counted only."""
    if record.multiple:
        return [record.files]
    if not record.files and "countonly" in record.flags:
        return [()] * (record.count or 1)
    return [(file,) for file in record.files]

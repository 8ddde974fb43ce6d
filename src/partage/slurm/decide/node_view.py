"""What Slurm knows of a node: its GPUs and the shares of each; and how ``gpu:h200:8`` is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import field

from partage.slurm.decide.gres_lines import GresLine
from partage.slurm.decide.notebook import Notebook
from partage.slurm.model.live import LiveNode
from partage.slurm.text.conf import ConfFile, ConfLine
from partage.slurm.text.hostlist import expand_hostlist, split_list
from partage.values import Frozen

SHARED = ("mps", "shard")
_AMOUNT = re.compile(r"(\d{1,15})([kmgtp]?)", re.ASCII | re.IGNORECASE)
_SCALES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}


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
    """A ``NodeName`` line of slurm.conf with GRES, or without (gres is () then)."""

    file: str
    line: int
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
    match = _AMOUNT.fullmatch(words[-1])
    if len(words) == 3 and match is None:
        raise ValueError(f"{words[-1][:20]!r} in {part[:40]!r} is not a number")
    if match is None:
        return GresCount(words[0], words[1])
    return GresCount(words[0], words[1] if len(words) == 3 else "", int(match[1]) * _SCALES[match[2].lower()])


def node_lines(file: ConfFile, notes: Notebook) -> Iterator[NodeLine]:
    """The nodes of a slurm.conf."""
    for line in file.lines:
        names, text = line.get("NodeName"), line.get("Gres")
        if names is None or names.upper() == "DEFAULT":
            continue
        if text and re.search(r"gres[/:]|=", text):
            message = f"Gres={text[:60]} is written as in a job's request: Slurm does not read it so"
            notes.error(file.name, line.number, message, "write Gres=gpu:h200:8,mps:200")
        try:
            hosts, gres = tuple(expand_hostlist(names)), parse_gres(text or "")
            features = line.get("Features") or line.get("Feature") or ""
            yield NodeLine(file.name, line.number, hosts, gres, tuple(filter(None, features.split(","))))
        except ValueError as error:
            notes.error(file.name, line.number, str(error))


def gres_types(files: Sequence[ConfFile]) -> tuple[ConfFile, ConfLine, tuple[str, ...]] | None:
    """``GresTypes``, and where it is."""
    for file in files:
        for line in file.lines:
            if (text := line.get("GresTypes")) is not None:
                return file, line, tuple(text.split(","))
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

"""Slurm's configuration as text: gres.conf, the lines of slurm.conf, cgroup.conf.

The same values give the same text, so that two answers can be compared with ``diff``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from partage.slurm.model import GresName, GresRecord, NodeGres, SlurmConfig, SlurmNode
from partage.slurm.text.hostlist import format_hostlist
from partage.text import printable
from partage.values import grouped

MARK = "# Written by 'partage slurm config'"
"""How every file begins; a file that begins otherwise is somebody's own."""

GRES_CONF, SLURM_CONF, CGROUP_CONF = "gres.conf", "slurm.conf", "cgroup.conf"
ALLOWED_FILE = "cgroup_allowed_devices_file.conf"

_EVERY_JOB = ("/dev/null", "/dev/urandom", "/dev/zero", "/dev/sda*", "/dev/cpu/*/*", "/dev/pts/*")
"""Device files of the example in Slurm's documents."""


def config_files(config: SlurmConfig) -> dict[str, str]:
    """The files by name."""
    files = {
        GRES_CONF: gres_conf(config),
        SLURM_CONF: slurm_conf(config),
        CGROUP_CONF: cgroup_conf(config),
    }
    if config.constrained_files:
        files[ALLOWED_FILE] = _text(config, (), (*_EVERY_JOB, *config.constrained_files))
    return files


def gres_conf(config: SlurmConfig) -> str:
    """The whole of gres.conf; nodes that are alike are one block."""
    about = (
        "The order of the lines is the order of the GPUs in a job's CUDA_VISIBLE_DEVICES: do not sort them.",
    )
    return _text(config, about, _gres_lines(config))


def _gres_lines(config: SlurmConfig) -> Iterator[str]:
    blocks: dict[tuple[object, ...], list[SlurmNode]] = {}
    for node in config.nodes:
        key = tuple((_fields(record), record.count) for record in node.gres.records)
        blocks.setdefault((*key, node.gres.absent), []).append(node)
    for alike in blocks.values():
        gres = alike[0].gres
        names = format_hostlist(node.name for node in alike)
        yield ""
        for sentence in gres.absent:
            yield f"# {names}: {printable(sentence)}"
        off = "AutoDetect=off "
        for records in _lines(gres):
            for record in records:
                if record.remark and (len(alike) == 1 or record.name is not GresName.GPU):
                    yield f"# {record.remark}"
            yield f"NodeName={names} {off}{_joined(records)}"
            off = ""


def _lines(gres: NodeGres) -> Iterator[Sequence[GresRecord]]:
    """The records of each line: whole GPUs of one type in one line."""

    def key(record: GresRecord) -> tuple[object, ...]:
        alone = record.multiple or record.name is not GresName.GPU
        return (record.files if alone else (), record.name, record.type, record.flags)

    for _, records in groupby(gres.records, key):
        yield tuple(records)


def _joined(records: Sequence[GresRecord]) -> str:
    first = records[0]
    files = tuple(file for record in records for file in record.files)
    return " ".join(f"{key}={value}" for key, value in _pairs(first, files))


def _fields(record: GresRecord) -> str:
    return " ".join(f"{key}={value}" for key, value in _pairs(record, record.files))


def _pairs(record: GresRecord, files: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "Name", record.name.value
    if record.type:
        yield "Type", record.type
    if record.count is not None:
        yield "Count", str(record.count)
    if record.multiple:
        yield "MultipleFiles", ",".join(files)
    elif files:
        yield "File", format_hostlist(files)
    if record.flags:
        yield "Flags", ",".join(record.flags)


def gres_value(counts: Mapping[tuple[GresName, str], int]) -> str:
    """``gpu:h200:8,mps:200``."""
    return ",".join(
        ":".join(part for part in (name, kind, str(n)) if part) for (name, kind), n in counts.items()
    )


def slurm_conf(config: SlurmConfig) -> str:
    """The lines of slurm.conf that concern GPUs."""
    # By its name alone: the slurmctld of a configless cluster does not send a file that is included with its
    # path, and slurmd ends after a minute (seen on 22.05.8 and 24.11.5).
    about = ("Lines of slurm.conf: copy them to gpus.conf beside it, and add there: Include gpus.conf",)
    return _text(config, about, _slurm_lines(config))


def _slurm_lines(config: SlurmConfig) -> Iterator[str]:
    yield ""
    yield f"GresTypes={','.join(config.gres_types)}"
    yield "SelectType=select/cons_tres"
    yield "# cgroup.conf has an effect only with these two:"
    yield "# ProctrackType=proctrack/cgroup"
    yield "# TaskPlugin=task/cgroup,task/affinity"
    if len(config.gres_types) > 1:
        yield "# A job without --mem takes all memory of its node, and then nothing shares its GPU, unless"
        yield "# DefMemPerCPU or DefMemPerGPU is set (or only cores count: SelectTypeParameters=CR_Core)."
        yield "# One share needs one core at least."
    yield "# With slurmdbd, to account for GPUs (without slurmdbd slurmctld does not start with this line):"
    yield f"# AccountingStorageTRES={','.join(_tres(config.nodes))}"
    yield ""
    for names, node in _alike(config.nodes):
        features = "" if _has_features(node.settings) else f" Features={','.join(node.gres.features)}"
        settings = f" {node.settings}" if node.settings else ""
        gres = f" Gres={gres_value(node.gres.counts)}" if node.gres.counts else ""
        yield f"NodeName={names}{settings}{gres}{features if node.gres.features else ''}"


def _has_features(settings: str) -> bool:
    return any(word.lower().startswith(("feature=", "features=")) for word in settings.split())


def _tres(nodes: Iterable[SlurmNode]) -> list[str]:
    names: dict[str, None] = {"gres/gpu": None}
    for node in nodes:
        for name, kind in node.gres.counts:
            names[f"gres/{name}:{kind}" if kind else f"gres/{name}"] = None
    return list(names)


def _alike(nodes: Iterable[SlurmNode]) -> Iterator[tuple[str, SlurmNode]]:
    """Nodes with the same line, under one name."""
    groups = grouped(
        ((node.settings, tuple(node.gres.counts.items()), node.gres.features), node) for node in nodes
    )
    for group in groups.values():
        yield format_hostlist(node.name for node in group), group[0]


def cgroup_conf(config: SlurmConfig) -> str:
    """The lines of cgroup.conf that keep a job from GPUs that are not its own."""
    lines = ["", "ConstrainDevices=yes"]
    if config.constrained_files:
        lines += ["CgroupAutomount=yes", f"AllowedDevicesFile=/etc/slurm/{ALLOWED_FILE}"]
    about = ("Only GPUs that gres.conf lists are kept from jobs that were not given them.",)
    return _text(config, about, lines)


def _text(config: SlurmConfig, about: Iterable[str], lines: Iterable[str]) -> str:
    head = [f"{MARK} for Slurm {config.version}.", *(f"# {sentence}" for sentence in about)]
    return "\n".join((*head, *lines)) + "\n"

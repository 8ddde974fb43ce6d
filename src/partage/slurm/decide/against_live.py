"""Compares the files with what a running Slurm has read, and says who has to read what anew. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from partage.errors import Problem
from partage.slurm.decide import releases
from partage.slurm.decide.conf_checks import kinds
from partage.slurm.decide.next_move import MARK, counts_differ
from partage.slurm.decide.node_view import NodeLine, gres_types, node_lines
from partage.slurm.model import LiveNode, LiveSettings, SlurmVersion
from partage.slurm.text.conf import ConfFile, ConfKind, Notebook
from partage.slurm.text.hostlist import format_hostlist
from partage.values import Frozen, grouped


class LiveCluster(Frozen):
    """What slurmctld knows. nodes: by name. own: this host's name there, and when its gres.conf was written
    (seconds since 1970); None: not known."""

    settings: LiveSettings
    nodes: Mapping[str, LiveNode]
    own: tuple[str, float] | None = None


def check_live(
    files: Sequence[ConfFile], live: LiveCluster, version: SlurmVersion, only: str | None = None
) -> tuple[Problem, ...]:
    """What differs. version: that the files were checked for. only: the one node that is compared."""
    notes = Notebook()
    slurm_files = kinds(files, ConfKind.SLURM)
    _check_settings(files, slurm_files, live, version, notes)
    ignored = Notebook()
    found = grouped(
        ((wrong, line.at, message, hint), name)
        for line in (line for file in slurm_files for line in node_lines(file, ignored))
        for name in line.names
        if line.gres and only in (None, name)
        for wrong, message, hint in _of_node(name, line, live)
    )
    for (wrong, at, message, hint), names in found.items():
        note = notes.error if wrong else notes.warn
        which = f"node{'s' if len(names) > 1 else ''} {format_hostlist(names)}"
        note(at, message.format(which=which), hint.format(names=format_hostlist(names)))
    return notes.problems


def _check_settings(
    files: Sequence[ConfFile],
    slurm_files: Sequence[ConfFile],
    live: LiveCluster,
    version: SlurmVersion,
    notes: Notebook,
) -> None:
    now = live.settings
    place = slurm_files[0].name if slurm_files else files[0].name
    if (version.year, version.month) != (now.version.year, now.version.month):
        notes.warn(place, f"checked for Slurm {version}, and slurmctld is {now.version}")
    if now.differs:
        message = "this host has another slurm.conf than slurmctld"
        notes.warn(place, message, "give all hosts the same, then " + _read_anew(now.version))
    said = gres_types(slurm_files)
    missing = [kind for kind in said[1] if kind not in now.gres_types] if said else []
    if said and missing:
        message = (
            f"slurmctld has GresTypes={','.join(now.gres_types) or '(none)'}: without {', '.join(missing)}"
        )
        notes.error(said[0], message, _read_anew(now.version))


def _of_node(name: str, line: NodeLine, live: LiveCluster) -> list[tuple[bool, str, str]]:
    """Whether it is an error, message and hint of each difference; ``{which}`` is the node."""
    version, node = live.settings.version, live.nodes.get(name)
    if node is None:
        return [(True, "slurmctld has no {which}", _read_anew(version))]
    wanted = ",".join(
        ":".join(
            part for part in (gres.name, gres.type, str(1 if gres.count is None else gres.count)) if part
        )
        for gres in line.gres
    )
    found = []
    other = counts_differ(node.gres, wanted)
    if other:
        message = f"slurmctld has Gres={_escaped(node.gres or '(none)')} for {{which}}, and not what is here"
        found.append((True, message, f"drain {{names}}, wait for the jobs there, then {_read_anew(version)}"))
    if node.invalid:
        why = _escaped(node.reason.removeprefix(MARK)) or "slurmd has less than slurm.conf says"
        hint = "have slurmd read gres.conf (" + _slurmd(version) + "), then scontrol update nodename={names} "
        found.append((True, f"Slurm calls {{which}} invalid: {why}", hint + "state=resume"))
    elif node.drained:
        found.append((False, f"{{which}} is drained: {_escaped(node.reason) or 'no reason'}", _undrain(node)))
    if node.away:
        found.append((False, "slurmd of {which} does not answer slurmctld", "is slurmd running there?"))
    if live.own is not None and live.own[0] == name and not other and _is_older(node, live.own[1]):
        message = "gres.conf is newer than slurmd of {which}, which has still to read it"
        found.append((False, message, f"drain {{names}}, wait for the jobs there, then {_slurmd(version)}"))
    return found


def _is_older(node: LiveNode, written_s: float) -> bool:
    return node.started_s is not None and node.started_s < math.floor(written_s)


def _undrain(node: LiveNode) -> str:
    if node.reason.startswith(MARK):
        return "Partage's agent there resumes it"
    return "once the reason is gone: scontrol update nodename={names} state=resume"


def _read_anew(version: SlurmVersion) -> str:
    if version >= releases.RECONFIGURE_APPLIES:
        return "scontrol reconfigure"
    return "restart slurmctld and slurmd: on reconfigure they keep the GRES that they have"


def _slurmd(version: SlurmVersion) -> str:
    return "scontrol reconfigure" if version >= releases.RECONFIGURE_APPLIES else "systemctl restart slurmd"


def _escaped(text: str) -> str:
    """For ``str.format``."""
    return text.replace("{", "{{").replace("}", "}}")

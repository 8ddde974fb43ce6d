"""Checks gres.conf, slurm.conf and cgroup.conf together, and against the GPUs of a node. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from partage.errors import Problem
from partage.model.gpu import Gpu, Inventory, MigDevice
from partage.slurm.decide.conf_checks import Settings, check_cgroup_conf, check_slurm_conf, kinds
from partage.slurm.decide.gres_lines import GresConf, read_gres_conf
from partage.slurm.decide.node_view import NodeLine, SeenGpu, SlurmNodeView, gres_types, node_lines, view_node
from partage.slurm.model import SlurmVersion
from partage.slurm.text.conf import ConfFile, ConfKind, Notebook
from partage.slurm.text.hostlist import format_hostlist
from partage.values import Frozen, grouped

THIS_NODE = "this node"
"""The name of the node where no file names one."""


class Checked(Frozen):
    """problems: of the files. differences: from the GPUs of the node. nodes: what Slurm makes of each.

    types: GresTypes. spread: a job may have shares of several GPUs (MULTIPLE_SHARING_GRES_PJ).
    """

    problems: tuple[Problem, ...]
    differences: tuple[Problem, ...]
    nodes: tuple[SlurmNodeView, ...]
    types: tuple[str, ...]
    spread: bool


def check_files(
    files: Sequence[ConfFile],
    version: SlurmVersion,
    inventory: Inventory | None = None,
    node: str | None = None,
) -> Checked:
    """Check the files of a cluster. inventory: the GPUs of ``node``, or of every node if that is None."""
    notes = Notebook()
    slurm_files = kinds(files, ConfKind.SLURM)
    gres = _gres(kinds(files, ConfKind.GRES), version, notes)
    lines = [line for file in slurm_files for line in node_lines(file, notes)]
    if slurm_files:
        check_slurm_conf(slurm_files, lines, gres, version, notes)
    settings = Settings(slurm_files)
    check_cgroup_conf(kinds(files, ConfKind.CGROUP), settings, version, notes)
    names = _names(lines, gres, node, whole=bool(slurm_files))
    by_name = {name: line for line in lines for name in line.names}
    views = _views(names, by_name, gres, version, notes)
    differences = Notebook()
    if inventory is not None and gres is not None:
        gres_file = kinds(files, ConfKind.GRES)[0].name
        for view in views:
            if node is None or view.name == node:
                check_against(view, inventory, gres_file, differences)
    found = gres_types(slurm_files)
    types = found[1] if found else tuple(dict.fromkeys(_used(views)))
    spread = "multiple_sharing_gres_pj" in (settings.get("SelectTypeParameters") or "").lower()
    return Checked(notes.problems, differences.problems, views, types, spread)


def _views(
    names: Sequence[str],
    lines: Mapping[str, NodeLine],
    gres: GresConf | None,
    version: SlurmVersion,
    notes: Notebook,
) -> tuple[SlurmNodeView, ...]:
    """In the order of ``names``. Nodes that have the same lines are looked at once, under a short name."""
    of_node = grouped(
        (name, at) for at, record in enumerate(gres.records if gres else ()) for name in record.nodes or ()
    )
    alike: dict[tuple[object, ...], list[str]] = {}
    for name in names:
        detected = "" if gres is None else gres.detected(name)
        key = (id(lines.get(name)), tuple(of_node.get(name, ())), detected)
        alike.setdefault(key, []).append(name)
    views: dict[str, SlurmNodeView] = {}
    for group in alike.values():
        view = view_node(group[0], lines.get(group[0]), gres, version, notes, called=format_hostlist(group))
        views |= {name: replace(view, name=name) for name in group}
    return tuple(views[name] for name in names)


def _gres(files: Sequence[ConfFile], version: SlurmVersion, notes: Notebook) -> GresConf | None:
    if not files:
        return None
    found = [read_gres_conf(file, version, notes) for file in files]
    return GresConf(
        tuple(record for conf in found for record in conf.records),
        tuple(detection for conf in found for detection in conf.detections),
    )


def _names(lines: Sequence[NodeLine], gres: GresConf | None, node: str | None, *, whole: bool) -> list[str]:
    """The nodes with GRES: those of slurm.conf, else of gres.conf, else the one that was meant."""
    named = [name for line in lines if line.gres for name in line.names]
    if not whole and gres is not None:
        named = [name for record in gres.records for name in record.nodes or ()]
        if any(record.nodes is None for record in gres.records):
            named.append(node or THIS_NODE)
    return list(dict.fromkeys(named))


def _used(views: Sequence[SlurmNodeView]) -> list[str]:
    used = ["gpu"] if any(view.gpus for view in views) else []
    return [*used, *(kind for view in views for kind in view.shares)]


_NODE = re.compile(r"nvidia(\d+)$", re.ASCII)
_PROFILE = re.compile(r"\d+g\.\d+gb", re.ASCII)


def check_against(view: SlurmNodeView, inventory: Inventory, gres_file: str, notes: Notebook) -> None:
    """What differs between a node and its GPUs."""
    by_minor = {gpu.minor: gpu for gpu in inventory}
    named: set[int] = set()
    instances: set[str] = set()
    for seen in view.gpus:
        if not seen.files or seen.record is None:
            continue
        minor = _minor(seen)
        if minor is None:
            instances |= set(seen.files)
            continue
        named.add(minor)
        gpu = by_minor.get(minor)
        if gpu is None:
            _say(
                seen,
                f"the node has no GPU /dev/nvidia{minor}: slurmd waits for the file, and then ends",
                notes,
            )
        elif len(seen.files) > 1:
            instances |= set(seen.files[1:])
            _check_mig(seen, gpu, notes)
        elif gpu.mig_enabled:
            _say(
                seen,
                f"GPU {gpu.index} is in MIG mode, and is given to jobs as a whole: nothing runs on it",
                notes,
                "name its MIG devices with MultipleFiles, or turn MIG mode off",
            )
    _check_left_out(inventory, named, instances, gres_file, notes)


def _minor(seen: SeenGpu) -> int | None:
    found = [match for file in seen.files if (match := _NODE.search(file))]
    return int(found[0][1]) if found else None


def _check_mig(seen: SeenGpu, gpu: Gpu, notes: Notebook) -> None:
    caps = {file.rpartition("/")[2] for file in seen.files[1:]}
    device = next((mig for mig in gpu.mig_devices if _caps(mig) == caps), None)
    if device is None:
        listed = "; ".join(
            f"{mig.profile}: {','.join(mig.capability_files)}"
            for mig in gpu.mig_devices
            if mig.capability_files
        )
        hint = f"its MIG devices: {listed}" if listed else "it has no MIG devices now"
        _say(seen, f"no MIG device of GPU {gpu.index} has the files {','.join(seen.files[1:])}", notes, hint)
        return
    match = _PROFILE.search(seen.type)
    if match is not None and not device.profile.startswith(match[0]) and match[0] not in device.profile:
        _say(seen, f"type {seen.type} is a MIG device {device.profile} of GPU {gpu.index}", notes)


def _caps(device: MigDevice) -> set[str]:
    return {file.rpartition("/")[2] for file in device.capability_files}


def _check_left_out(
    inventory: Inventory, named: set[int], instances: set[str], gres_file: str, notes: Notebook
) -> None:
    for gpu in inventory:
        known = {file.rpartition("/")[2] for file in instances}
        if gpu.mig_enabled:
            for device in gpu.mig_devices:
                if not _caps(device) & known:
                    which = f"MIG device {gpu.index}:{device.index} ({device.profile})"
                    message = f"{which} is not listed: every job can open it"
                    notes.warn(gres_file, message, "list all of them, also those that no job is to get")
        elif gpu.minor not in named:
            message = f"GPU {gpu.index} (/dev/nvidia{gpu.minor}) is not listed: every job can open it"
            notes.warn(gres_file, message, "list all GPUs, also those that no job is to get")


def _say(seen: SeenGpu, message: str, notes: Notebook, hint: str = "") -> None:
    assert seen.record is not None
    notes.error(seen.record.at, message, hint)

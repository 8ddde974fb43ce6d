"""Compares what Slurm was told of a node with the GPUs that the node has."""

from __future__ import annotations

import re

from partage.model.gpu import Gpu, Inventory, MigDevice
from partage.slurm.decide.node_view import SeenGpu, SlurmNodeView
from partage.slurm.decide.notebook import Notebook

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
    said = _PROFILE.search(seen.type)
    if said is not None and not device.profile.startswith(said[0]) and said[0] not in device.profile:
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
                    notes.warn(gres_file, 0, message, "list all of them, also those that no job is to get")
        elif gpu.minor not in named:
            message = f"GPU {gpu.index} (/dev/nvidia{gpu.minor}) is not listed: every job can open it"
            notes.warn(gres_file, 0, message, "list all GPUs, also those that no job is to get")


def _say(seen: SeenGpu, message: str, notes: Notebook, hint: str = "") -> None:
    assert seen.record is not None
    notes.error(seen.record.file, seen.record.line, message, hint)

"""Checks of the GPUs themselves: lost ones, resets that are due, MIG, persistence, compute modes. Pure."""

from __future__ import annotations

from partage.doctor.decide.finding import Check, Finding, error, warning
from partage.doctor.decide.observation import MpsState, Observation, ObservedPolicy
from partage.model.gpu import ComputeMode, RecoveryAction
from partage.model.health import GpuCondition
from partage.model.ids import GpuUuid
from partage.plan.reconcile.draft import without_files
from partage.text import gpus, listed

_SHOWN = 8
_REBOOT = (RecoveryAction.NODE_REBOOT, RecoveryAction.SYSTEM_REBOOT)


def _lost(now: Observation) -> Finding | None:
    lost = now.inventory.lost
    if not lost:
        return None
    return error(
        "gpu-lost",
        f"{gpus(gpu.index for gpu in lost)} does not answer"
        if len(lost) == 1
        else f"{gpus(gpu.index for gpu in lost)} do not answer",
        (
            f"GPU {gpu.index}{f', {gpu.pci_bus_id}' if gpu.pci_bus_id else ''}: {gpu.reason}"
            for gpu in lost[:_SHOWN]
        ),
        "Look at dmesg for Xid lines of that address, end its pods or jobs, then reset the GPU (nvidia-smi "
        "--gpu-reset -i N) or reboot the node. If it is lost again, have the GPU replaced",
    )


def _due(now: Observation) -> dict[int, str]:
    """GPUs that need a reset or a reboot, and why."""
    conditions = _conditions(now)
    due: dict[int, str] = {}
    for gpu in now.inventory:
        condition = conditions.get(gpu.uuid)
        action = gpu.recovery if condition is None or condition.recovery is None else condition.recovery
        if action not in (None, RecoveryAction.NONE):
            due[gpu.index] = f"the driver says what it needs: {action.word}"
        elif condition is not None and condition.rows_pending:
            due[gpu.index] = "remapped memory rows wait for a reset"
    return due


def _needs_reset(now: Observation) -> Finding | None:
    due = _due(now)
    if not due:
        return None
    reboot = any(gpu.recovery in _REBOOT for gpu in now.inventory)
    what = (
        "reboot the node"
        if reboot
        else "reset it: nvidia-smi --gpu-reset -i N (it must be idle), or reboot the node"
    )
    return error(
        "gpu-needs-reset",
        f"{gpus(due)}: a fault has happened that only a {'reboot' if reboot else 'reset'} clears",
        (f"GPU {index}: {why}" for index, why in due.items()),
        f"End its pods or jobs (partage cordon N keeps new ones off), then {what}",
    )


def _damaged(now: Observation) -> list[int]:
    conditions = _conditions(now)
    known = ((gpu.index, conditions.get(gpu.uuid)) for gpu in now.inventory)
    return [index for index, condition in known if condition is not None and condition.rows_failed]


def _rows_failed(now: Observation) -> Finding | None:
    bad = _damaged(now)
    if not bad:
        return None
    return error(
        "memory-rows-failed",
        f"The memory of {gpus(bad)} is damaged, and the GPU has no spare rows left",
        f"NVML: remapping a memory row has failed on {gpus(bad)}",
        "Keep work off it (partage cordon N), and have the GPU replaced",
    )


def _apart(now: Observation) -> list[int]:
    """GPUs without their fabric. In MIG mode they do not need it."""
    conditions = _conditions(now)
    known = ((gpu.index, conditions.get(gpu.uuid)) for gpu in now.inventory)
    return [
        index
        for index, condition in known
        if condition is not None and condition.fabric_ok is False and not condition.mig_mode
    ]


def _fabric(now: Observation) -> Finding | None:
    out = _apart(now)
    if not out:
        return None
    return error(
        "fabric-not-ready",
        f"{gpus(out)} did not join the NVLink fabric: CUDA does not start there",
        f"NVML: the state of the fabric is not 'completed' on {gpus(out)}",
        "Is the fabric manager running, in the same version as the driver? systemctl status "
        "nvidia-fabricmanager; its log is /var/log/fabricmanager.log",
    )


def named_gpus(now: Observation) -> frozenset[int]:
    """GPUs of which these checks say that they are not healthy."""
    lost = (gpu.index for gpu in now.inventory.lost)
    return frozenset((*lost, *_due(now), *_damaged(now), *_apart(now)))


def _mig_files(now: Observation) -> Finding | None:
    missing = sorted(
        {device.missing_file for gpu in now.inventory for device in gpu.mig_devices if device.missing_file}
    )
    if not missing:
        return None
    return error(
        "mig-file-missing",
        f"{len(without_files(now.inventory))} MIG devices cannot be opened: their device files are missing",
        (f"{path} does not exist" for path in missing[:_SHOWN]),
        "Run nvidia-modprobe -f /proc/driver/nvidia/capabilities/mig/config, or nvidia-smi as root; both "
        "make the files of all MIG devices",
    )


def _mig_empty(now: Observation) -> Finding | None:
    """MIG mode without a MIG device: CUDA finds nothing to run on."""
    empty = [
        gpu.index for gpu in now.inventory if gpu.mig_enabled and not gpu.mig_devices and not gpu.mig_hidden
    ]
    if not empty:
        return None
    return warning(
        "mig-without-devices",
        f"{gpus(empty)}: MIG mode is on, and there is no MIG device: no program can use the GPU",
        (f"GPU {index}: MIG mode is on, MIG devices: none" for index in empty[:_SHOWN]),
        "Give it MIG devices in the policy, mig: {layout: all-balanced}, or switch the mode off there, mig: "
        "{layout: all-disabled}. By hand, while nothing uses it: nvidia-smi -i N -mig 0",
    )


def _mig_pending(now: Observation) -> Finding | None:
    waiting = {
        gpu.index: gpu.mig_mode
        for gpu in now.inventory
        if gpu.mig_mode is not None and gpu.mig_mode.current != gpu.mig_mode.pending
    }
    if not waiting:
        return None
    return warning(
        "mig-mode-pending",
        f"{gpus(waiting)}: the MIG mode was changed, and the change waits for a reset",
        (
            f"GPU {index}: MIG mode is {_on(mode.current)}, after a reset it is {_on(mode.pending)}"
            for index, mode in waiting.items()
        ),
        "Reset the GPU while nothing uses it (nvidia-smi --gpu-reset -i N), or reboot the node. If nobody "
        "wanted the change, take it back: nvidia-smi -i N -mig 0 or 1",
    )


def _persistence(now: Observation) -> Finding | None:
    cold = [gpu.index for gpu in now.inventory if gpu.persistence is False]
    if not cold:
        return None
    return warning(
        "persistence-off",
        f"Persistence mode is off on {gpus(cold)}: each first program on an idle GPU waits 1 to 3 seconds, "
        "and settings of the GPU are lost when the last one ends",
        f"NVML: persistence mode is off on {gpus(cold)}",
        "Start NVIDIA's daemon, also at every boot: systemctl enable --now nvidia-persistenced",
    )


def _compute_mode(now: Observation) -> Finding | None:
    """A compute mode without the MPS daemon that it was set for."""
    assert isinstance(now.mps, MpsState)
    served = {directory.device for directory in now.mps.directories if directory.alive} | {
        part for process in now.mps.processes for part in process.pipe.split("/")
    }
    wanted = now.policy.mps if isinstance(now.policy, ObservedPolicy) else ()
    # A daemon with no pipe directory of a GPU, as NVIDIA's, may serve any of them.
    other = any(not process.pipe.startswith(now.mps.below) for process in now.mps.processes)
    left = [
        gpu
        for gpu in now.inventory
        if gpu.compute_mode is not ComputeMode.DEFAULT
        and gpu.uuid not in served
        and gpu.uuid not in wanted
        and not other
    ]
    if not left:
        return None
    indexes = [gpu.index for gpu in left]
    nobody = all(gpu.compute_mode is ComputeMode.PROHIBITED for gpu in left)
    may = (
        "no program may use the GPU"
        if nobody
        else "only one program at a time may use the GPU, as MPS leaves it, and no MPS daemon runs there"
    )
    return error(
        "compute-mode-left",
        f"{gpus(indexes)}: {may}",
        (f"GPU {gpu.index}: compute mode {gpu.compute_mode.word}" for gpu in left[:_SHOWN]),
        "If nobody wants that, set it back while the GPU is idle: "
        + listed([f"nvidia-smi -i {index} -c DEFAULT" for index in indexes], 3)
        + ". A running agent of Partage does this",
    )


def _conditions(now: Observation) -> dict[GpuUuid, GpuCondition]:
    return (
        {condition.gpu: condition for condition in now.conditions}
        if isinstance(now.conditions, tuple)
        else {}
    )


def _on(mode: bool) -> str:
    return "on" if mode else "off"


_GPUS = "the GPUs"

CHECKS = (
    Check("gpu-lost", _GPUS, (), _lost, frozenset({"labels-stale", "slurm-gpus-differ"})),
    Check("gpu-needs-reset", _GPUS, (), _needs_reset),
    Check("memory-rows-failed", "the GPUs' memory", ("conditions",), _rows_failed),
    Check("fabric-not-ready", "the NVLink fabric", ("conditions",), _fabric),
    Check("mig-file-missing", "MIG devices", (), _mig_files, frozenset({"agent:device-file-missing"})),
    Check("compute-mode-left", "compute modes and MPS daemons", ("mps",), _compute_mode,
          frozenset({"gpus-differ"})),
    Check("mig-mode-pending", "MIG modes", (), _mig_pending, frozenset({"mig-without-devices"})),
    Check("mig-without-devices", "MIG devices", (), _mig_empty),
    Check("persistence-off", "persistence mode", (), _persistence, frozenset({"agent:persistence-off"})),
)  # fmt: skip

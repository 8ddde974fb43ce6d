"""Faults of a story: read with ``sim.node.files.fault_syntax``, and put into words."""

from __future__ import annotations

from partage.codec.fields import Field
from partage.lab.stories.model import FaultStep
from partage.model.layout import LayoutItem
from partage.model.mps import DaemonPhase
from partage.sim.node import faults
from partage.sim.node.files.fault_syntax import read_fault


def read_fault_step(place: Field) -> FaultStep | None:
    """The fault that is written there."""
    fault = read_fault(place)
    return FaultStep(fault, sentence(fault)) if fault else None


_TURNS = {
    DaemonPhase.DEAD: "dies",
    DaemonPhase.FAULT: "faults",
    DaemonPhase.SILENT: "hangs",
    DaemonPhase.SERVING: "takes clients again",
    DaemonPhase.STARTING: "has no limits in force",
}


def sentence(fault: faults.Fault) -> str:
    """The fault in words."""
    match fault:
        case faults.LoseGpu(gpu):
            return f"GPU {gpu} does not answer any more"
        case faults.GpuReturns(gpu):
            return f"GPU {gpu} answers again"
        case faults.RaiseXid(gpu, code):
            return f"XID {code}" + ("" if gpu is None else f" on GPU {gpu}")
        case faults.SetCondition(gpu):
            return f"the driver reports an ailment of GPU {gpu}"
        case faults.ResetGpu(gpu):
            return f"GPU {gpu} is reset"
        case faults.Occupy(gpu, name):
            return f"{name} opens GPU {gpu}"
        case faults.Vacate(gpu, name):
            return f"{name or 'every process'} closes GPU {gpu}"
        case faults.SetDaemonPhase(gpu, phase):
            return f"the MPS daemon of GPU {gpu} {_TURNS.get(phase, phase)}"
        case faults.LoseNodes(gpu, missing):
            return f"the device files of GPU {gpu}'s MIG devices {'are gone' if missing else 'are there'}"
        case faults.SetMig(gpu, layout):
            return f"an administrator {_laid_out(layout)} on GPU {gpu}"
        case _:
            return _of_the_node(fault)


def _of_the_node(
    fault: faults.Reboot
    | faults.DriverGone
    | faults.DriverLoaded
    | faults.FailCall
    | faults.HangCall
    | faults.HealCall
    | faults.HideProcesses,
) -> str:
    match fault:
        case faults.HideProcesses(on):
            return f"the node's processes {'are hidden' if on else 'can be seen'}"
        case faults.Reboot():
            return "the node reboots"
        case faults.DriverGone():
            return "the driver is unloaded"
        case faults.DriverLoaded(version):
            return f"driver {version} is loaded" if version else "the driver is loaded"
        case faults.FailCall(call):
            return f"the driver's answer to '{call}' is an error"
        case faults.HangCall(call):
            return f"the driver hangs at '{call}'"
        case faults.HealCall(call):
            return f"the driver answers '{call}' again"


def _laid_out(layout: tuple[LayoutItem, ...] | None) -> str:
    if layout is None:
        return "switches MIG off"
    return f"lays out {', '.join(map(str, layout)) or 'nothing'}"

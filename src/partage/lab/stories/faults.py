"""Faults of a story: read as the simulation writes them (``sim.fault_words``), and put into a sentence."""

from __future__ import annotations

from partage.edges.files.fields import Field
from partage.lab.stories.model import FaultStep
from partage.model.layout import LayoutItem
from partage.model.mps import Phase
from partage.sim.fault_words import parse_fault
from partage.sim.faults import (
    Ailing,
    Blind,
    DriverGone,
    DriverLoaded,
    FailCall,
    Fault,
    GpuReturns,
    HangCall,
    HealCall,
    LoseGpu,
    MpsTurns,
    Occupy,
    RaiseXid,
    Reboot,
    ResetGpu,
    SetMig,
    Vacate,
)


def read_fault(place: Field) -> FaultStep | None:
    """The fault that is written there."""
    if not isinstance(place.value, dict):
        place.error("has to be a mapping such as {gpu: 2, xid: 79}")
        return None
    try:
        fault = parse_fault(place.value)
    except ValueError as error:
        place.error(str(error))
        return None
    return FaultStep(fault, sentence(fault))


_TURNS = {
    Phase.DEAD: "dies",
    Phase.FAULT: "faults",
    Phase.SILENT: "hangs",
    Phase.SERVING: "takes clients again",
}


def sentence(fault: Fault) -> str:
    """The fault in words."""
    match fault:
        case LoseGpu(gpu):
            return f"GPU {gpu} does not answer any more"
        case GpuReturns(gpu):
            return f"GPU {gpu} answers again"
        case RaiseXid(gpu, code):
            return f"XID {code}" + ("" if gpu is None else f" on GPU {gpu}")
        case Ailing(gpu):
            return f"the driver reports an ailment of GPU {gpu}"
        case ResetGpu(gpu):
            return f"GPU {gpu} is reset"
        case Occupy(gpu, name):
            return f"{name} opens GPU {gpu}"
        case Vacate(gpu, name):
            return f"{name or 'every process'} closes GPU {gpu}"
        case MpsTurns(gpu, phase):
            return f"the MPS daemon of GPU {gpu} {_TURNS.get(phase, phase)}"
        case SetMig(gpu, layout):
            return f"an administrator {_laid_out(layout)} on GPU {gpu}"
        case _:
            return _of_the_node(fault)


def _of_the_node(fault: Reboot | DriverGone | DriverLoaded | FailCall | HangCall | HealCall | Blind) -> str:
    match fault:
        case Blind(on):
            return f"the node's processes {'are hidden' if on else 'can be seen'}"
        case Reboot():
            return "the node reboots"
        case DriverGone():
            return "the driver is unloaded"
        case DriverLoaded(version):
            return f"driver {version} is loaded" if version else "the driver is loaded"
        case FailCall(call):
            return f"the driver's answer to '{call}' is an error"
        case HangCall(call):
            return f"the driver hangs at '{call}'"
        case HealCall(call):
            return f"the driver answers '{call}' again"


def _laid_out(layout: tuple[LayoutItem, ...] | None) -> str:
    if layout is None:
        return "switches MIG off"
    return f"lays out {', '.join(map(str, layout)) or 'nothing'}"

"""Make one change through NVML and read the GPU again: what is there afterwards counts, not the return code.

NVML has one code for several causes, and a call that fails may still have changed something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from partage.edges.hardware.host import Host
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.hardware.running_processes import uses
from partage.errors import GpuInUse, HardwareError, StateMismatch
from partage.model.step import Step

T = TypeVar("T")


def change_and_check(
    nvml: Nvml,
    host: Host,
    step: Step,
    change: Callable[[], object],
    result: Callable[[], T | None],
    *,
    explain: Callable[[], HardwareError | None] = lambda: None,
    refused: tuple[type[HardwareError], ...] = (),
) -> T:
    """Call ``change``, then return what ``result`` reads from the GPU.

    result: None if the change is not there. explain: the error for what blocks the change, read from the GPU;
    None if nothing is found. refused: errors of the driver that say that nothing was changed; what ``result``
    would find then, somebody else has made. Raises HardwareError.
    """
    refusal: HardwareError | None = None
    try:
        change()
    except HardwareError as error:
        refusal = error
    try:
        outcome = None if isinstance(refusal, refused) else result()
        known = explain() if outcome is None else None
    except HardwareError as error:
        raise (refusal or error) from None
    if outcome is not None:
        return outcome
    raise known or step_error(nvml, host, step, refusal, "the GPU is unchanged") from refusal


def step_error(
    nvml: Nvml, host: Host, step: Step, refusal: HardwareError | None, state: str
) -> HardwareError:
    """The error of a step that had no effect. refusal: the driver's error, if it reported one.

    state: how the GPU is now, in words. A GpuInUse names the processes that use the GPU.
    """
    if refusal is None:
        return StateMismatch(f"the driver reported success for: {step}; read again, {state}")
    message = f"cannot {step}: {refusal.problems[0].message}; {state}"
    if not isinstance(refusal, GpuInUse):
        return type(refusal)(message, refusal.problems[0].hint)
    gpu = getattr(step, "gpu", "")
    users = tuple(str(use) for use in uses(nvml, host) if use.gpu == gpu)
    by = f"{message}; used by {', '.join(users) or 'no visible process'}"
    return GpuInUse(by, "" if users else host.unseen_holder(), uses=users)

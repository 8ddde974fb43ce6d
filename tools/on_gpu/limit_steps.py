"""Steps with the driver's memory limits of cgroups: whether it has them, and whether they hold."""

from __future__ import annotations

from msgspec.structs import replace

from partage.lab.prove.slicing import OF_LIMITS
from partage.model.driver_limit import LimitSupport
from partage.plan.offer.driver_limits import why_unlimited
from tools.on_gpu.notes import Notes, StepPlace
from tools.on_gpu.put_back import found, opened
from tools.on_gpu.tenant_steps import prove

_HARD = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 4, memory: hard}}]\n"


async def limits(place: StepPlace, notes: Notes) -> None:
    """The probe: that the library has the functions, and a get or the kernel answers."""
    if (support := await _support(place, notes, "limits")) is not None:
        notes.seen("limits", f"the memory of a cgroup can be limited; {support.backend} counts it")


async def limits_hold(place: StepPlace, notes: Notes) -> None:
    """All attacks of ``partage prove``, in a cgroup of its own that is removed afterwards."""
    if await _support(place, notes, "limits-hold") is None:
        return
    policy = place.work / "hard.yaml"
    policy.write_text(_HARD, encoding="utf-8")
    names = ",".join(attack.name for attack in OF_LIMITS)
    await prove(
        place, notes, "limits-hold", "--policy", str(policy), "--only", names, "--engine", "cuda",
        expected=len(OF_LIMITS) - 2,  # managed memory, and what is counted, a driver may not show
    )  # fmt: skip


async def _support(place: StepPlace, notes: Notes, row: str) -> LimitSupport | None:
    """What the probe says of the GPU. None: there are no limits, and the row says what it takes."""
    async with opened(place.driver_root, place.run_dir) as hardware:
        inventory = await hardware.observe()
        gpu = await found(hardware, place.gpu)
    notes.keep("limits", gpu.limits)
    if why := why_unlimited(gpu, replace(inventory, limits_by=None)):  # whoever would set them
        notes.not_here(row, f"a driver and a kernel that have them: {why}")
        return None
    return gpu.limits

"""Steps that change settings of the GPU. The runner has noted how it was, and puts it back after each of
them.

They end where the setting is made and looked at: that they put nothing back themselves is what makes a killed
step no different from one that ends.
"""

from __future__ import annotations

import os
import sys

from partage.edges.files import catalogue
from partage.errors import HardwareError, Unsupported
from partage.lab.tenant import OK, TenantFailed
from partage.model.gpu import ComputeMode, Gpu
from partage.model.step import SetComputeMode, SetTimeSlice
from partage.model.strategy import Interval
from tools.on_gpu.look_steps import smi
from tools.on_gpu.notes import Notes, StepPlace, ask, partage
from tools.on_gpu.put_back import found, opened

_NOBODY = 65534
_APPLY_S = 100.0
_BECOME = """
import os, sys
os.setgroups([])
os.setgid({0})
os.setuid({0})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


async def change_mode(place: StepPlace, notes: Notes) -> None:
    """Exclusive-process mode with one process, then a second; then what is left of the mode without any."""
    async with opened(place.driver_root, place.run_dir) as hardware:
        gpu = await found(hardware, place.gpu)
        await hardware.perform(SetComputeMode(gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS, gpu.compute_mode))
        try:
            first = await place.tenant()
        except TenantFailed as error:
            notes.not_here("exclusive-process", f"CUDA programs that work: {error}")
        else:
            try:
                second = await place.tenant()
            except TenantFailed as error:
                notes.seen("exclusive-process", f"a second process: {error}")
            else:
                await second.end()
                notes.contradicted("exclusive-process", "a second process got a context, too")
            finally:
                await first.end()
    if gpu.persistence is not False:
        notes.not_here("mode-lost", "a GPU without persistence mode")
        return
    mode = await smi(place, "--query-gpu=compute_mode", "--format=csv,noheader", "-i", place.gpu)
    notes.judge("mode-lost", mode.startswith("Default"), f"after the last session of NVML had ended: {mode}")


async def change_slices(place: StepPlace, notes: Notes) -> None:
    """Each length in turn, read back by the step itself."""
    read: list[str] = []
    async with opened(place.driver_root, place.run_dir) as hardware:
        assert place.original is not None, "the runner notes it"
        now = place.original.interval
        if now is None:
            slices = {one.gpu: one.reason for one in await hardware.time_slices()}
            notes.not_here(
                "slices-set", f"a GPU and driver with time slices: {slices.get(place.gpu, 'no answer')}"
            )
            return
        try:
            for interval in Interval:
                await hardware.perform(SetTimeSlice(place.gpu, interval, now))
                now = interval
                read.append(f"{interval}: {await smi(place, 'compute-policy', '-i', place.gpu, '--list')}")
                notes.keep("lists", read)
        except Unsupported as error:
            notes.not_here("slices-set", f"a GPU and driver with time slices that can be set: {error}")
        except HardwareError as error:
            notes.contradicted("slices-set", str(error))
        else:
            notes.seen("slices-set", f"{', '.join(Interval)} set and read back")


async def change_mig(place: StepPlace, notes: Notes) -> None:
    """Two of the smallest devices, by ``partage apply``; a process on each; what others can read of them."""
    rows = ("mig-change", "mig-files", "mig-processes", "mig-unprivileged")
    async with opened(place.driver_root, place.run_dir) as hardware:
        gpu = await found(hardware, place.gpu)
        alone = len((await hardware.observe()).gpus) == 1
    if not alone:
        for row in rows:
            notes.not_here(row, "a machine with one GPU: a policy is for all of them")
        return
    if gpu.mig_mode is None or gpu.mig_enabled or gpu.mig_mode.pending:
        for row in rows:
            notes.not_here(row, f"a GPU with MIG, whose MIG mode is off: {gpu.product}")
        return
    profile = _smallest(gpu)
    if profile is None or gpu.compute_capability < (9, 0):
        takes = "a GPU whose MIG mode changes without a reset (Hopper or newer)"
        for row in rows:
            notes.not_here(
                row, takes if profile else f"a GPU whose MIG profiles are known: {gpu.product} is not"
            )
        return
    policy = place.work / "mig.yaml"
    policy.write_text(
        "version: partage/v1\ngpus:\n"
        f"- {{select: {{uuid: [{place.gpu}]}}, mig: {{layout: [{profile}, {profile}]}}}}\n"
        "- {select: rest, exclusive: {}}\n",
        encoding="utf-8",
    )
    where = (
        "--policy",
        str(policy),
        "--state-dir",
        str(place.work / "state"),
        "--run-dir",
        str(place.run_dir),
    )
    applied = await partage(place, "apply", *where, "--pod-resources", "none", limit_s=_APPLY_S)
    notes.keep("apply", {"code": applied.code, "out": applied.out, "err": applied.err})
    async with opened(place.driver_root, place.run_dir) as hardware:
        gpu = await found(hardware, place.gpu)
        devices = gpu.mig_devices
        notes.keep("devices", devices)
        good = applied.code == 0 and [device.profile for device in devices] == [profile, profile]
        made = ", ".join(device.profile for device in devices) or "no device"
        notes.judge("mig-change", good, made if good else f"{made}; partage apply: {applied.words}")
        if not devices:
            return
        await _on_devices(place, notes, gpu)
    await _as_nobody(place, notes)


def _smallest(gpu: Gpu) -> str | None:
    """The smallest profile without attributes of which two fit; None where the GPU is not known."""
    geometry = gpu.geometry or catalogue.geometry_of(gpu)
    if geometry is None:
        return None
    fitting = [spec for spec in geometry.profiles if spec.max_count >= 2 and not spec.profile.attributes]
    return str(min(fitting, key=lambda spec: (spec.compute_slices, spec.size)).profile) if fitting else None


async def _on_devices(place: StepPlace, notes: Notes, gpu: Gpu) -> None:
    """A process on each device, and who sees it."""
    missing = [device.missing_file for device in gpu.mig_devices if device.missing_file]
    tenants = []
    try:
        try:
            for device in gpu.mig_devices:
                tenants.append(await place.tenant(device=device.uuid))  # noqa: PERF401 - those before are ended
            answers = [await tenant.attempt("launch") for tenant in tenants]
        except TenantFailed as error:
            notes.contradicted("mig-files", f"{error}; missing: {', '.join(missing) or 'nothing'}")
            return
        good = not missing and set(answers) == {OK}
        notes.judge(
            "mig-files",
            good,
            f"kernels on {len(answers)} devices: {', '.join(answers)}; "
            f"missing: {', '.join(missing) or 'no file'}",
        )
        async with opened(place.driver_root, place.run_dir) as hardware:
            rows = [row for row in (await hardware.processes()).rows if row.gpu == gpu.uuid]
        notes.keep("processes", rows)
        ours = {tenant.pid for tenant in tenants}
        listed = ours & {row.pid for row in rows}
        notes.judge("mig-processes", listed == ours, f"{len(listed)} of {len(ours)} processes were listed")
    finally:
        for tenant in tenants:
            await tenant.end()


async def _as_nobody(place: StepPlace, notes: Notes) -> None:
    """``partage show`` by a user without rights."""
    if os.geteuid() != 0:
        notes.not_here("mig-unprivileged", "root, to become another user")
        return
    become = (sys.executable, "-P", "-c", _BECOME.format(_NOBODY), "-P", "-m", "partage")
    can = await ask(*become, "--version", limit_s=60.0)
    if can.code:
        notes.not_here("mig-unprivileged", "a Python, and a folder with Partage, that other users may read")
        return
    said = await ask(*become, "show", "--driver-root", str(place.driver_root), "-o", "json", limit_s=60.0)
    notes.keep("show as nobody", said)
    if said.code:
        notes.contradicted("mig-unprivileged", f"partage show as user {_NOBODY}: {said.words}")
    else:
        notes.seen("mig-unprivileged", "partage show answers; what it says is kept")

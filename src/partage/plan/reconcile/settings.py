"""What a GPU has to be set to before its shares mean what is said of them: MPS daemons, compute mode, slices.

A setting is taken back when nobody wants it any more, to what it was before we changed it. What was there
before, or was changed by others since, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from partage.model.gpu import ComputeMode, Gpu, MigDevice
from partage.model.mps import DaemonPhase, DaemonSpec, DaemonState
from partage.model.policy import Interval, Mps, TimeSlicing
from partage.model.step import SetComputeMode, SetTimeSlice, StartDaemon, Step, StopDaemon
from partage.plan.offer.assign import Target
from partage.plan.offer.mps_shares import Portions, limits_clients, portions
from partage.units import MIB

_EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """What one GPU shall be set to.

    daemons: one for the GPU, or one for each of its MIG devices. interval: None: whatever it is.
    """

    daemons: tuple[DaemonSpec, ...] = ()
    exclusive_process: bool = False
    interval: Interval | None = None


NOTHING = GpuSettings()


@dataclass(frozen=True, slots=True)
class OriginalSettings:
    """What a GPU was set to before we changed it. None: we did not."""

    mode: ComputeMode | None = None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class SettingsSteps:
    """The way to a setting.

    end:  what has to end first: nobody may hold a share of the GPU.
    make: what has to be made, or made again. Shares that are in use need it as much as new ones.
    """

    end: tuple[Step, ...] = ()
    make: tuple[Step, ...] = ()

    @property
    def settled(self) -> bool:
        """There is nothing to do."""
        return not (self.end or self.make)


def settings_of(targets: Iterable[Target]) -> dict[str, GpuSettings]:
    """What the targets of an assignment need, by GPU UUID; GPUs that need nothing are left out."""
    settings: dict[str, GpuSettings] = {}
    for target in targets:
        now = settings.get(target.gpu.uuid, NOTHING)
        sharing = target.sharing
        if isinstance(sharing, Mps) and (spec := _daemon(target, sharing)) is not None:
            alone = sharing.exclusive_process and target.mig is None
            now = replace(now, daemons=(*now.daemons, spec), exclusive_process=alone)
        if isinstance(sharing, TimeSlicing) and sharing.interval is not None:
            now = replace(now, interval=sharing.interval)
        if now != NOTHING:
            settings[target.gpu.uuid] = now
    return settings


def _daemon(target: Target, sharing: Mps) -> DaemonSpec | None:
    """The daemon of a device, with the limits of its shares. None for a device that does not exist yet."""
    gpu, mig = target.gpu, target.mig
    if mig is not None and not isinstance(mig, MigDevice):
        return None
    device, memory_bytes = (gpu.uuid, gpu.memory_bytes) if mig is None else (mig.uuid, _memory(gpu, mig))
    shares = portions(sharing, memory_bytes)
    if not limits_clients(gpu) or not isinstance(shares, Portions):
        return DaemonSpec(gpu.uuid, device, multi_user=sharing.multi_user)
    return DaemonSpec(gpu.uuid, device, *shares.outside, sharing.multi_user, shares.namespaces)


def _memory(gpu: Gpu, mig: MigDevice) -> int:
    """What a MIG device has: an even part where several live in one GPU instance."""
    holders = sum(one.gi_id == mig.gi_id for one in gpu.mig_devices)
    return mig.memory_bytes if holders == 1 else mig.memory_bytes // holders // MIB * MIB


def settle(
    gpu: Gpu, want: GpuSettings, daemons: Sequence[DaemonState], before: OriginalSettings
) -> SettingsSteps:
    """The way of one GPU to ``want``. daemons: those of ours on it, dead ones too. Time slices aside."""
    end: list[Step] = []
    make: list[Step] = []
    wanted = {spec.device: spec for spec in want.daemons}
    standing = {one.device: one for one in daemons}
    for device, one in standing.items():
        if device not in wanted or not _is_as_asked(one, wanted[device]):
            end.append(StopDaemon(gpu.uuid, device, _spec(one)))
    going = {step.device for step in end if isinstance(step, StopDaemon)}
    if want.exclusive_process and gpu.compute_mode is not _EXCLUSIVE:
        make.append(SetComputeMode(gpu.uuid, _EXCLUSIVE, gpu.compute_mode))
    elif not want.exclusive_process and _is_ours(gpu, before):
        assert before.mode is not None
        end.append(SetComputeMode(gpu.uuid, before.mode, gpu.compute_mode))
    for device, spec in wanted.items():
        if device in going or not _stands(standing.get(device)):
            make.append(StartDaemon(gpu.uuid, spec))
    return SettingsSteps(tuple(end), tuple(make))


def _is_ours(gpu: Gpu, before: OriginalSettings) -> bool:
    """The compute mode is the one that we set: nobody has changed it since."""
    return before.mode not in (None, _EXCLUSIVE) and gpu.compute_mode is _EXCLUSIVE


def _is_as_asked(one: DaemonState, spec: DaemonSpec) -> bool:
    """A daemon that does not run, or does not say, is made anew as it is wanted."""
    if one.phase in (DaemonPhase.DEAD, DaemonPhase.STARTING, DaemonPhase.SILENT):
        return True
    users = spec.multi_user is None or spec.multi_user is one.multi_user
    return users and one.limits == spec.limits


def _stands(one: DaemonState | None) -> bool:
    """Nothing has to be started. One that is silent runs: its clients may be working."""
    return one is not None and one.phase not in (DaemonPhase.DEAD, DaemonPhase.STARTING)


def _spec(one: DaemonState) -> DaemonSpec | None:
    """What brings a daemon back; None where it does not say."""
    if one.phase in (DaemonPhase.DEAD, DaemonPhase.SILENT):
        return None
    limits = one.limits
    multi_user = one.multi_user or None
    return DaemonSpec(
        one.gpu, one.device, limits.memory_bytes, limits.threads_percent, multi_user, limits.namespaces
    )


def unwell(want: GpuSettings, daemons: Iterable[DaemonState]) -> dict[str, str]:
    """Devices whose daemon takes no clients at this moment, and why."""
    standing = {one.device: one for one in daemons}
    said = {}
    for spec in want.daemons:
        one = standing.get(spec.device)
        if one is None:
            said[spec.device] = "its MPS daemon has not been started yet"
        elif one.phase is not DaemonPhase.SERVING:
            said[spec.device] = one.reason or f"its MPS daemon is {one.phase}"
    return said


def slice_steps(
    wants: Mapping[str, GpuSettings], slices: Mapping[str, Interval], befores: Mapping[str, OriginalSettings]
) -> dict[str, SetTimeSlice]:
    """Slices to be set, and those to be set back, by GPU UUID.

    slices: what each GPU has now; GPUs that do not say are left out, and left alone.
    """
    steps = {}
    for gpu, now in slices.items():
        want = wants.get(gpu, NOTHING).interval
        if want is None:
            want = befores.get(gpu, OriginalSettings()).interval
        if want is not None and want is not now:
            steps[gpu] = SetTimeSlice(gpu, want, now)
    return steps


def remembered(steps: Iterable[Step], befores: Mapping[str, OriginalSettings]) -> dict[str, OriginalSettings]:
    """What has to be known before these steps are begun: how the GPUs were before we ever changed them."""
    known = dict(befores)
    for step in steps:
        if isinstance(step, SetComputeMode) and step.mode is _EXCLUSIVE:
            now = known.get(step.gpu, OriginalSettings())
            known[step.gpu] = now if now.mode is not None else replace(now, mode=step.before)
        if isinstance(step, SetTimeSlice):
            now = known.get(step.gpu, OriginalSettings())
            known[step.gpu] = now if now.interval is not None else replace(now, interval=step.before)
    return known


def still_ours(
    befores: Mapping[str, OriginalSettings],
    wants: Mapping[str, GpuSettings],
    modes: Mapping[str, ComputeMode],
    slices: Mapping[str, Interval],
) -> dict[str, OriginalSettings]:
    """What has still to be remembered: of settings that are wanted, or not given back yet.

    modes, slices: what GPUs have now; of a GPU that is not among them all is remembered.
    """
    kept = {}
    for gpu, before in befores.items():
        want = wants.get(gpu, NOTHING)
        mode, interval = before.mode, before.interval
        if not want.exclusive_process and modes.get(gpu, _EXCLUSIVE) is not _EXCLUSIVE:
            mode = None  # given back, or changed by somebody else
        if want.interval is None and slices.get(gpu, None) is interval:
            interval = None
        if mode is not None or interval is not None:
            kept[gpu] = OriginalSettings(mode, interval)
    return kept

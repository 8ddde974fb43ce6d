"""The steps from how a GPU is set to how its shares need it, and back.

A setting is taken back when nothing wants it any more, to what it was before we changed it. What was there
before, or was changed by others since, is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from partage.model.gpu import ComputeMode, Gpu
from partage.model.mps import DaemonPhase, DaemonSpec, DaemonState
from partage.model.policy import Interval
from partage.model.step import SetComputeMode, SetTimeSlice, StartDaemon, Step, StopDaemon
from partage.plan.offer.settings import NO_SETTINGS, GpuSettings
from partage.values import Frozen

_EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


class OriginalSettings(Frozen):
    """What a GPU was set to before we changed it. None: not changed."""

    mode: ComputeMode | None = None
    interval: Interval | None = None


class SettingsSteps(Frozen):
    """The steps to a setting.

    end:  what has to end first: no share of the GPU may be held.
    make: what has to be made, or made again. Shares that are in use need it as much as new ones.
    """

    end: tuple[Step, ...] = ()
    make: tuple[Step, ...] = ()

    @property
    def settled(self) -> bool:
        """There is nothing to do."""
        return not (self.end or self.make)


def settings_steps(
    gpu: Gpu, want: GpuSettings, daemons: Sequence[DaemonState], before: OriginalSettings
) -> SettingsSteps:
    """The way of one GPU to ``want``. daemons: those of ours on it, dead ones too. Time slices aside."""
    end: list[Step] = []
    make: list[Step] = []
    wanted = {spec.device: spec for spec in want.daemons}
    running = {one.device: one for one in daemons}
    for device, one in running.items():
        if device not in wanted or not _is_as_wanted(one, wanted[device]):
            end.append(StopDaemon(gpu.uuid, device, _spec(one)))
    stopping = {step.device for step in end if isinstance(step, StopDaemon)}
    if want.exclusive_process and gpu.compute_mode is not _EXCLUSIVE:
        make.append(SetComputeMode(gpu.uuid, _EXCLUSIVE, gpu.compute_mode))
    elif not want.exclusive_process and _is_ours(gpu, before):
        assert before.mode is not None
        end.append(SetComputeMode(gpu.uuid, before.mode, gpu.compute_mode))
    for device, spec in wanted.items():
        if device in stopping or not _is_running(running.get(device)):
            make.append(StartDaemon(gpu.uuid, spec))
    return SettingsSteps(tuple(end), tuple(make))


def _is_ours(gpu: Gpu, before: OriginalSettings) -> bool:
    """The compute mode is the one that we set: nobody has changed it since."""
    return before.mode not in (None, _EXCLUSIVE) and gpu.compute_mode is _EXCLUSIVE


def _is_as_wanted(one: DaemonState, spec: DaemonSpec) -> bool:
    """A daemon that does not run, or does not say, is made anew as it is wanted."""
    if one.phase in (DaemonPhase.DEAD, DaemonPhase.STARTING, DaemonPhase.SILENT):
        return True
    users = spec.multi_user is None or spec.multi_user is one.multi_user
    return users and one.limits == spec.limits


def _is_running(one: DaemonState | None) -> bool:
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


def unusable(want: GpuSettings, daemons: Iterable[DaemonState]) -> dict[str, str]:
    """Devices whose daemon takes no clients at this moment, and why."""
    running = {one.device: one for one in daemons}
    said = {}
    for spec in want.daemons:
        one = running.get(spec.device)
        if one is None:
            said[spec.device] = "its MPS daemon has not been started yet"
        elif one.phase is not DaemonPhase.SERVING:
            said[spec.device] = one.reason or f"its MPS daemon is {one.phase}"
    return said


def slice_steps(
    wants: Mapping[str, GpuSettings],
    slices: Mapping[str, Interval],
    originals: Mapping[str, OriginalSettings],
) -> dict[str, SetTimeSlice]:
    """Slices to be set, and those to be set back, by GPU UUID.

    slices: what each GPU has now; GPUs that do not say are left out, and left alone.
    """
    steps = {}
    for gpu, now in slices.items():
        want = wants.get(gpu, NO_SETTINGS).interval
        if want is None:
            want = originals.get(gpu, OriginalSettings()).interval
        if want is not None and want is not now:
            steps[gpu] = SetTimeSlice(gpu, want, now)
    return steps


def note_originals(
    steps: Iterable[Step], originals: Mapping[str, OriginalSettings]
) -> dict[str, OriginalSettings]:
    """What has to be known before these steps are begun: how the GPUs were before we ever changed them."""
    known = dict(originals)
    for step in steps:
        if isinstance(step, SetComputeMode) and step.mode is _EXCLUSIVE:
            now = known.get(step.gpu, OriginalSettings())
            known[step.gpu] = now if now.mode is not None else replace(now, mode=step.before)
        if isinstance(step, SetTimeSlice):
            now = known.get(step.gpu, OriginalSettings())
            known[step.gpu] = now if now.interval is not None else replace(now, interval=step.before)
    return known


def needed_originals(
    originals: Mapping[str, OriginalSettings],
    wants: Mapping[str, GpuSettings],
    modes: Mapping[str, ComputeMode],
    slices: Mapping[str, Interval],
) -> dict[str, OriginalSettings]:
    """What has still to be remembered: of settings that are wanted, or not given back yet.

    modes, slices: what GPUs have now; of a GPU that is not among them all is remembered.
    """
    kept = {}
    for gpu, before in originals.items():
        want = wants.get(gpu, NO_SETTINGS)
        mode, interval = before.mode, before.interval
        if not want.exclusive_process and modes.get(gpu, _EXCLUSIVE) is not _EXCLUSIVE:
            mode = None  # given back, or changed by somebody else
        if want.interval is None and slices.get(gpu, None) is interval:
            interval = None
        if mode is not None or interval is not None:
            kept[gpu] = OriginalSettings(mode, interval)
    return kept

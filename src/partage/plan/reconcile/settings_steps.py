"""The steps that give a GPU the settings that its shares need, and that restore them later.

When a setting is no longer needed, the value from before Partage changed it is restored. Settings that were
not changed by Partage, or were changed by others since, are not touched. Time slices that claims ask for are
settings of the whole GPU, set and restored as the policy's are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from partage.model.gpu import ComputeMode, Gpu
from partage.model.ids import DeviceUuid, GpuUuid, device_of
from partage.model.mps import DaemonPhase, DaemonSpec, DaemonState
from partage.model.step import SetComputeMode, SetTimeSlice, StartDaemon, Step, StopDaemon
from partage.model.strategy import Interval
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.settings import NO_SETTINGS, GpuSettings
from partage.plan.serve.ledger_entry import LedgerEntry
from partage.values import Frozen

_EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS
_NOT_RUNNING = (DaemonPhase.DEAD, DaemonPhase.STARTING)
"""Phases of a daemon that is to be started."""


class OriginalSettings(Frozen):
    """The settings of a GPU before Partage changed them. None: not changed."""

    mode: ComputeMode | None = None
    interval: Interval | None = None


class SettingsSteps(Frozen):
    """The steps to the desired settings.

    end:  stops and restores, done first: no share of the GPU may be held.
    make: starts and changes, also again after a failure. Held shares need them as much as new ones.
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
    """The steps of one GPU to ``want``, without time slices. daemons: Partage's daemons on it, dead ones
    too."""
    end: list[Step] = []
    make: list[Step] = []
    wanted = {spec.device: spec for spec in want.daemons}
    running = {daemon_state.device: daemon_state for daemon_state in daemons}
    for device, daemon in running.items():
        silent = daemon.phase is DaemonPhase.SILENT  # ended when nobody can be its client, and started again
        if silent or device not in wanted or not _is_as_wanted(daemon, wanted[device]):
            end.append(StopDaemon(gpu.uuid, device, _spec(gpu.uuid, daemon)))
    stopping = {step.device for step in end if isinstance(step, StopDaemon)}
    if want.exclusive_process and gpu.compute_mode is not _EXCLUSIVE:
        make.append(SetComputeMode(gpu.uuid, _EXCLUSIVE, gpu.compute_mode))
    elif not want.exclusive_process and _is_set_by_us(gpu, before):
        assert before.mode is not None
        end.append(SetComputeMode(gpu.uuid, before.mode, gpu.compute_mode))
    for device, spec in wanted.items():
        if device in stopping or not _is_settled(running.get(device)):
            make.append(StartDaemon(gpu.uuid, spec))
    return SettingsSteps(tuple(end), tuple(make))


def renewal(gpu: Gpu, want: GpuSettings, daemons: Iterable[DaemonState]) -> SettingsSteps:
    """The steps that start daemons again which are out of date and have no clients, on a GPU of which nobody
    holds a share, and whose settings are as wanted. Nothing waits for them: until then they serve as they
    are.
    """
    wanted = {spec.device: spec for spec in want.daemons}
    old = [daemon for daemon in daemons if daemon.renewable and not daemon.clients]
    return SettingsSteps(
        tuple(StopDaemon(gpu.uuid, daemon.device, _spec(gpu.uuid, daemon)) for daemon in old),
        tuple(StartDaemon(gpu.uuid, wanted[daemon.device]) for daemon in old),
    )


def _is_set_by_us(gpu: Gpu, before: OriginalSettings) -> bool:
    """The compute mode is still the one that Partage set."""
    return before.mode not in (None, _EXCLUSIVE) and gpu.compute_mode is _EXCLUSIVE


def _is_as_wanted(daemon: DaemonState, spec: DaemonSpec) -> bool:
    """Its settings match, or are not known: a daemon that does not run is started with the wanted ones."""
    if daemon.phase in _NOT_RUNNING:
        return True
    users = spec.multi_user is None or spec.multi_user is daemon.multi_user
    return users and daemon.limits == spec.limits


def _is_settled(daemon: DaemonState | None) -> bool:
    """It runs, and its limits are those that were set. A silent daemon runs: its clients may be working."""
    if daemon is None or daemon.phase in _NOT_RUNNING:
        return False
    return not (daemon.unsettled and daemon.phase is DaemonPhase.SERVING)


def _spec(gpu: GpuUuid, daemon: DaemonState) -> DaemonSpec | None:
    """The spec to start the daemon again; None if it does not answer."""
    if daemon.phase in (DaemonPhase.DEAD, DaemonPhase.SILENT):
        return None
    limits = daemon.limits
    multi_user = daemon.multi_user or None
    return DaemonSpec(
        gpu,
        daemon.device,
        limits.memory_bytes,
        limits.threads_percent,
        multi_user,
        limits.namespaces,
        limits.slots,
    )


def clients_in_the_way(steps: Iterable[Step], daemons: Iterable[DaemonState]) -> str:
    """Which daemons cannot be started again yet, because they run and have clients; empty if all can."""
    starting = {step.spec.device for step in steps if isinstance(step, StartDaemon)}
    # Where somebody else has given commands, limits are set again, and nothing is replaced.
    busy = [
        daemon for daemon in daemons if daemon.device in starting and daemon.clients and not daemon.unsettled
    ]
    return "; ".join(
        f"the MPS daemon of {daemon.device} has to be started again, and has "
        f"{', '.join(map(str, daemon.clients))}: {daemon.reason}"
        for daemon in busy
    )


def unusable_devices(want: GpuSettings, daemons: Iterable[DaemonState]) -> dict[DeviceUuid, str]:
    """Devices whose daemon takes no clients now, and why."""
    running = {daemon_state.device: daemon_state for daemon_state in daemons}
    reasons = {}
    for spec in want.daemons:
        daemon = running.get(spec.device)
        if daemon is None:
            reasons[spec.device] = "its MPS daemon has not been started yet"
        elif daemon.phase is not DaemonPhase.SERVING:
            reasons[spec.device] = daemon.reason or f"its MPS daemon is {daemon.phase}"
    return reasons


def slice_steps(
    gpu: GpuUuid, want: GpuSettings, now: Interval | None, before: OriginalSettings
) -> tuple[SetTimeSlice, ...]:
    """The time slice of one GPU (UUID) to set or restore. now: None: it reports none, and is not changed."""
    interval = before.interval if want.interval is None else want.interval
    if now is None or interval is None or interval is now:
        return ()
    return (SetTimeSlice(gpu, interval, now),)


def note_originals(
    steps: Iterable[Step], originals: Mapping[GpuUuid, OriginalSettings]
) -> dict[GpuUuid, OriginalSettings]:
    """``originals``, plus the settings that these steps are about to change for the first time."""
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
    originals: Mapping[GpuUuid, OriginalSettings],
    wants: Mapping[GpuUuid, GpuSettings],
    modes: Mapping[GpuUuid, ComputeMode],
    slices: Mapping[GpuUuid, Interval],
) -> dict[GpuUuid, OriginalSettings]:
    """The originals that are still needed: their settings are in use or not restored yet.

    modes, slices: what GPUs have now; for a GPU that is missing there all originals are kept.
    """
    kept = {}
    for gpu, before in originals.items():
        want = wants.get(gpu, NO_SETTINGS)
        mode, interval = before.mode, before.interval
        if not want.exclusive_process and modes.get(gpu, _EXCLUSIVE) is not _EXCLUSIVE:
            mode = None  # restored, or changed by others
        if want.interval is None and slices.get(gpu, None) is interval:
            interval = None
        if mode is not None or interval is not None:
            kept[gpu] = OriginalSettings(mode, interval)
    return kept


def asked_intervals(entries: Iterable[LedgerEntry]) -> dict[DeviceUuid, Interval]:
    """What claims ask for, by the UUID of the GPU. No two claims are given one GPU with different ones."""
    return {device_of(entry.id): entry.interval for entry in entries if entry.interval is not None}


class WithIntervals(Struct):
    """The desired state with the intervals of claims. The same inputs have the same value, not an equal one:
    the planner's cache goes by that. The ledger's entries are walked once for each of its versions.
    """

    _last: tuple[DesiredState, Mapping[DeviceUuid, Interval], DesiredState] | None = None
    _walked: tuple[LedgerEntry, ...] = ()
    _asked: Mapping[DeviceUuid, Interval] = field(default_factory=dict)

    def asked(self, entries: tuple[LedgerEntry, ...]) -> Mapping[DeviceUuid, Interval]:
        """As ``asked_intervals``."""
        if entries is not self._walked:
            self._walked, self._asked = entries, asked_intervals(entries)
        return self._asked

    def of(self, desired: DesiredState, entries: tuple[LedgerEntry, ...]) -> DesiredState:
        """In place of the policy's interval, where a claim asks for one, as long as it holds the GPU."""
        asked = self.asked(entries)
        if not asked:
            return desired
        if self._last is None or self._last[0] is not desired or self._last[1] != asked:
            settings = dict(desired.settings)
            for gpu in desired.inventory:
                if (interval := asked.get(gpu.uuid)) is not None:
                    settings[gpu.uuid] = replace(settings.get(gpu.uuid, NO_SETTINGS), interval=interval)
            self._last = desired, asked, replace(desired, settings=settings)
        return self._last[2]

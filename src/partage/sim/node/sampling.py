"""What a simulated node measures: memory and activity of its processes, and what follows for its GPUs."""

from __future__ import annotations

from msgspec.structs import replace

from partage.edges.hardware.peaks import PeakKeeper
from partage.model.gpu import Gpu
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.samples import (
    Activity,
    DeviceMemory,
    EccCounts,
    GpuSample,
    MigSample,
    RemappedRows,
    Samples,
    Throttle,
)
from partage.sim.node.load import Sensors
from partage.sim.node.processes import activities_of, all_rows, processes_of
from partage.sim.node.state import SimulatedNode

_MEASURES_ACTIVITY = ("hopper", "blackwell")
"""GPUs with GPM."""

_IDLE_W, _LIMIT_W = 70.0, 700.0
_IDLE_C, _BUSY_C = 30.0, 75.0
_IDLE_HZ, _BUSY_HZ, _MEMORY_HZ = 345_000_000, 1_980_000_000, 2_619_000_000
_MOST_STEPS = 3600
"""So many samples are made up for at most; where more time has passed, they are farther apart."""


class _Moment:
    """What the processes of a node do at one moment. used: of every GPU and MIG device. busy: part of the
    time in
    which a kernel ran, at most all of it, however many processes there are.
    """

    def __init__(self, state: SimulatedNode) -> None:
        self.state = state
        self.rows = tuple(all_rows(state))
        self.activities = activities_of(state, self.rows)
        self.used: dict[DeviceUuid, int] = {}
        for gpu in state.gpus.values():
            self.used |= dict.fromkeys((gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)), 0)
        for row in self.rows:
            for device in {row.gpu, row.device or row.gpu} & self.used.keys():
                self.used[device] += row.used_bytes or 0
        self.busy: dict[GpuUuid, float] = dict.fromkeys((gpu.uuid for gpu in state.gpus.values()), 0.0)
        for activity in self.activities:
            self.busy[activity.gpu] = min(1.0, self.busy[activity.gpu] + activity.sm)

    def instance_activity(self, gpu: Gpu, gi_id: int) -> Activity:
        """Of the processes in one GPU instance."""
        inside = {row.pid for row in self.rows if row.gpu == gpu.uuid and row.gi_id == gi_id}
        busy = min(
            1.0,
            sum(
                activity.sm
                for activity in self.activities
                if activity.gpu == gpu.uuid and activity.pid in inside
            ),
        )
        return Activity(graphics=busy, sm=busy, tensor=busy / 2, dram=busy / 2)


class SimulatedSampler:
    """Samples one second apart, from the first call of ``samples`` on, also while nobody asks.

    Nothing runs by itself: what lies between two calls is computed at the second one.
    """

    def __init__(self) -> None:
        self._peaks = PeakKeeper()
        self._energy_j: dict[int, float] = {}
        self._sampled_s: float | None = None

    def advance(self, state: SimulatedNode) -> None:
        """The node is about to change: make up for the samples until ``state.now_s``."""
        if self._sampled_s is None:
            return
        passed_s = state.now_s - self._sampled_s
        step_s = max(1.0, passed_s / _MOST_STEPS)
        while state.now_s - self._sampled_s >= step_s:
            self._take(replace(state, now_s=self._sampled_s + step_s))

    def samples(self, state: SimulatedNode) -> Samples:
        """The node at ``state.now_s``."""
        self.advance(state)
        return self._samples(state, self._take(state))

    def _take(self, state: SimulatedNode) -> _Moment:
        passed_s = state.now_s - (state.now_s if self._sampled_s is None else self._sampled_s)
        self._sampled_s = state.now_s
        now = _Moment(state)
        self._peaks.add(() if state.processes_hidden else now.rows, now.used, state.now_s)
        for index, gpu in state.gpus.items():
            power_w = _power_w(now.busy[gpu.uuid], state.sensors.get(index, Sensors()))
            self._energy_j[index] = self._energy_j.get(index, 0.0) + power_w * passed_s
        return now

    def _samples(self, state: SimulatedNode, now: _Moment) -> Samples:
        gpus = [gpu for index, gpu in sorted(state.gpus.items()) if index not in state.lost]
        processes = processes_of(state, now.rows)
        in_mig = {gpu.uuid for gpu in state.gpus.values() if gpu.mig_enabled}
        seen = {(row.gpu, row.pid) for row in processes.rows}
        # The driver measures single processes only where there is no MIG, and lists those that did something.
        listed = (activity for activity in now.activities if activity.gpu not in in_mig and activity.sm)
        return Samples(
            gpus=tuple(self._gpu(state, gpu, now) for gpu in gpus),
            migs=tuple(mig for gpu in gpus for mig in self._migs(gpu, now)),
            processes=processes,
            activities=tuple(activity for activity in listed if (activity.gpu, activity.pid) in seen),
            active=() if processes.hidden else tuple(g.uuid for g in gpus if not g.mig_enabled),
            peaks=self._peaks.owners(),
        )

    def _gpu(self, state: SimulatedNode, gpu: Gpu, now: _Moment) -> GpuSample:
        busy = now.busy[gpu.uuid]
        sensors = state.sensors.get(gpu.index, Sensors())
        condition = state.conditions[gpu.index]
        measured = gpu.architecture in _MEASURES_ACTIVITY and not gpu.mig_enabled
        idle = (Throttle.GPU_IDLE,) if not busy else ()
        return GpuSample(
            gpu=gpu.uuid,
            memory=_memory(gpu.memory_bytes, now.used[gpu.uuid]),
            peak_bytes=self._peaks.device(gpu.uuid),
            utilisation=None if gpu.mig_enabled else busy,
            memory_utilisation=None if gpu.mig_enabled else busy / 2,
            encoder=None if gpu.mig_enabled else 0.0,
            decoder=None if gpu.mig_enabled else 0.0,
            power_w=_power_w(busy, sensors),
            power_limit_w=_LIMIT_W,
            energy_j=self._energy_j.get(gpu.index, 0.0),
            temperature_c=sensors.temperature_c or float(round(_IDLE_C + (_BUSY_C - _IDLE_C) * busy)),
            memory_temperature_c=sensors.temperature_c or float(round(_IDLE_C + (_BUSY_C - _IDLE_C) * busy)),
            sm_clock_hz=_BUSY_HZ if busy else _IDLE_HZ,
            memory_clock_hz=_MEMORY_HZ,
            throttle=sensors.throttle or idle,
            throttled_s=sensors.throttled_s,
            ecc=EccCounts(sensors.corrected, sensors.uncorrected, sensors.corrected, sensors.uncorrected),
            rows=RemappedRows(0, 0, condition.rows_pending, condition.rows_failed),
            pcie_replays=0,
            activity=Activity(graphics=busy, sm=busy, tensor=busy / 2, dram=busy / 2) if measured else None,
        )

    def _migs(self, gpu: Gpu, now: _Moment) -> list[MigSample]:
        measured = gpu.architecture in _MEASURES_ACTIVITY
        return [
            MigSample(
                gpu=gpu.uuid,
                device=mig.uuid,
                gi_id=mig.gi_id,
                ci_id=mig.ci_id,
                memory=_memory(mig.memory_bytes, now.used[mig.uuid]),
                peak_bytes=self._peaks.device(mig.uuid),
                activity=now.instance_activity(gpu, mig.gi_id) if measured else None,
            )
            for mig in gpu.mig_devices
        ]


def _memory(total_bytes: int, used_bytes: int) -> DeviceMemory:
    return DeviceMemory(total_bytes, used_bytes, max(0, total_bytes - used_bytes), 0)


def _power_w(busy: float, sensors: Sensors) -> float:
    return _IDLE_W + (_LIMIT_W - _IDLE_W) * busy if sensors.power_w is None else sensors.power_w

"""Samples of a node with NVML: everything when it is asked for, and memory every second in between.

So what /proc says of processes is remembered for some seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from partage.edges.hardware.gpu_queries import Handle, KnownMig
from partage.edges.hardware.host import Host
from partage.edges.hardware.mig_devices import known_migs
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.hardware.peaks import PeakKeeper
from partage.edges.hardware.port import SAMPLED_FOR_S
from partage.edges.hardware.processes import listed, why_hidden
from partage.edges.hardware.running_processes import NvmlDevices, skip_failures
from partage.edges.hardware.sensors import GpmReader, GpuSensors, memory_of, process_activities
from partage.edges.host.procfs import ProcessInfo, read_process, start_of
from partage.errors import HardwareError
from partage.model.gpu_use import GpuMemory, GpuProcess, Processes
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.samples import DeviceMemory, GpuSample, MigSample, ProcessActivity, Samples
from partage.values import Frozen

CHECKED_S, READ_S = 5.0, 30.0
"""After so long it is checked that the pid is still the same process; and its cgroup is read again, because
a process
can be moved (Slurm adopts those of ssh)."""


class _Entry(Struct):
    info: ProcessInfo | None
    checked_s: float
    read_s: float


class ProcessCache:
    """For one thread. seen: of the last sample, by pid."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._entries: dict[int, _Entry] = {}

    @property
    def seen(self) -> dict[int, ProcessInfo | None]:
        """The processes of the last sample; None for one that /proc does not show."""
        return {pid: entry.info for pid, entry in self._entries.items()}

    def at(self, now_s: float) -> Callable[[set[int]], dict[int, ProcessInfo | None]]:
        """A function that reads the processes of one sample; those that are not in it are forgotten."""

        def read(pids: set[int]) -> dict[int, ProcessInfo | None]:
            self._entries = {pid: self._entry(pid, now_s) for pid in pids}
            return self.seen

        return read

    def _entry(self, pid: int, now_s: float) -> _Entry:
        known = self._entries.get(pid)
        if known is None or known.info is None or now_s - known.read_s >= READ_S:
            return _Entry(read_process(self._proc, pid), now_s, now_s)
        if now_s - known.checked_s >= CHECKED_S:
            if start_of(self._proc, pid) != known.info.start:
                return _Entry(read_process(self._proc, pid), now_s, now_s)
            known.checked_s = now_s
        return known


PERIOD_S = 1.0


class _Reading(Frozen, eq=False):
    """One sample of memory and processes."""

    devices: NvmlDevices
    migs: dict[GpuUuid, tuple[KnownMig, ...]]
    rows: tuple[GpuProcess, ...]
    memory: dict[DeviceUuid, DeviceMemory | None]


class NvmlSampler:
    """For one thread, which calls ``between`` whenever it has nothing to do. clock: seconds that never go
    back.
    """

    def __init__(self, nvml: Nvml, host: Host, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._host = host
        self._clock = clock
        self._peaks = PeakKeeper()
        self._cache = ProcessCache(host.proc)
        self._gpm = GpmReader(nvml)
        self._asked_s: float | None = None
        self._due_s = 0.0

    def between(self) -> float | None:
        """Take the sample that is due. Returns the seconds until the next one; None if nobody wants any."""
        now_s = self._clock()
        if self._asked_s is None or now_s - self._asked_s > SAMPLED_FOR_S:
            self._asked_s = None
            return None
        if now_s >= self._due_s:
            self._due_s = now_s + PERIOD_S
            if self._nvml.is_open:
                # What is wrong, the next call of the agent finds out.
                with contextlib.suppress(HardwareError):
                    self._read()
        return max(0.0, self._due_s - self._clock())

    def samples(self) -> Samples:
        """Everything. Raises DriverUnavailable."""
        now_s = self._asked_s = self._clock()
        self._due_s = now_s + PERIOD_S
        reading = self._read()
        gpus: list[GpuSample] = []
        activities: list[ProcessActivity] = []
        active: list[GpuUuid] = []
        for gpu, handle in reading.devices.handles.items():
            with skip_failures():
                gpus.append(self._gpu(reading, gpu, handle, now_s))
                done = self._activities(reading, gpu, handle)
                if done is not None:
                    active.append(gpu)
                    activities += done
        memory = tuple(
            GpuMemory(
                gpu, None if (device_memory := reading.memory[gpu]) is None else device_memory.used_bytes
            )
            for gpu in reading.devices.handles
        )
        hidden = why_hidden(self._host.proc, self._cache.seen, reading.rows, memory)
        samples = Samples(
            gpus=tuple(gpus),
            migs=tuple(self._migs(reading, now_s)),
            processes=Processes(reading.rows, memory, hidden),
            activities=tuple(activities),
            active=() if hidden else tuple(active),
            peaks=self._peaks.owners(),
        )
        self._gpm.keep_only(frozenset(reading.memory))
        return samples

    def end_session(self) -> None:
        """The session is about to end: nothing of it is kept but the peaks."""
        self._gpm.clear()

    def _read(self) -> _Reading:
        devices = NvmlDevices(self._nvml)
        rows = listed(devices, self._host, self._cache.at(self._clock()))
        memory: dict[DeviceUuid, DeviceMemory | None] = {}
        migs: dict[GpuUuid, tuple[KnownMig, ...]] = {}
        for gpu, handle in devices.handles.items():
            memory[gpu] = None
            with skip_failures():
                memory[gpu] = memory_of(self._nvml, handle)
                if devices.in_mig_mode(gpu):
                    migs[gpu] = known_migs(self._nvml, handle)
            for mig in migs.get(gpu, ()):
                memory[mig.attributes.uuid] = None
                with skip_failures():
                    memory[mig.attributes.uuid] = memory_of(self._nvml, mig.handle)
        used = {
            device: None if device_memory is None else device_memory.used_bytes
            for device, device_memory in memory.items()
        }
        self._peaks.add(rows, used, self._clock())
        return _Reading(devices, migs, rows, memory)

    def _gpu(self, reading: _Reading, gpu: GpuUuid, handle: Handle, now_s: float) -> GpuSample:
        in_mig_mode = reading.devices.in_mig_mode(gpu)
        sample = GpuSensors(self._nvml, handle).sample(
            gpu, reading.memory[gpu], self._peaks.device(gpu), mig=in_mig_mode
        )
        if in_mig_mode or not self._gpm.measures(handle, gpu):
            return sample
        return replace(sample, activity=self._gpm.activity(gpu, handle, None, now_s))

    def _activities(
        self, reading: _Reading, gpu: GpuUuid, handle: Handle
    ) -> tuple[ProcessActivity, ...] | None:
        if reading.devices.in_mig_mode(gpu):
            return None  # the driver does not measure processes in MIG mode
        pids = {row.pid for row in reading.rows if row.gpu == gpu}
        return process_activities(self._nvml, gpu, handle, pids)

    def _migs(self, reading: _Reading, now_s: float) -> list[MigSample]:
        return [
            MigSample(
                gpu=gpu,
                device=mig.attributes.uuid,
                gi_id=mig.attributes.gi_id,
                ci_id=mig.attributes.ci_id,
                memory=reading.memory[mig.attributes.uuid],
                peak_bytes=self._peaks.device(mig.attributes.uuid),
                activity=self._gpm.activity(
                    mig.attributes.uuid, reading.devices.handles[gpu], mig.attributes.gi_id, now_s
                )
                if self._gpm.measures(reading.devices.handles[gpu], gpu)
                else None,
            )
            for gpu, migs in reading.migs.items()
            for mig in migs
        ]

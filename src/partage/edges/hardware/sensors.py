"""What the sensors and counters of one GPU say, in the types and units of ``model.samples``; None if absent.

None of it exists per share, so the number of calls depends on the number of GPUs and MIG devices only.

GPM measures the activity of GPUs and GPU instances, from Hopper on, without DCGM. A figure is the difference
of two samples of the driver. The earlier one is kept until the next question.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from partage.edges.hardware.binding import ABSENT, INVALID_ARGUMENT, NOT_FOUND
from partage.edges.hardware.gpu_queries import NOT_HERE, Handle
from partage.edges.hardware.nvml_queries import Nvml
from partage.errors import DriverUnavailable, GpuLost, HardwareError, HardwareTimeout, Unsupported
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.samples import (
    Activity,
    DeviceMemory,
    EccCounts,
    GpuSample,
    ProcessActivity,
    RemappedRows,
    Throttle,
    ThrottleTime,
)
from partage.units import MIB

_MEMORY_V2 = 0x02000028
_MEMORY_TEMPERATURE, _REPLAYS = 82, 94
_ECC = {
    3: "corrected_volatile",
    4: "uncorrected_volatile",
    5: "corrected_aggregate",
    6: "uncorrected_aggregate",
}
_ROWS = (142, 143, 144, 145)
"""Rows remapped after corrected and after uncorrected errors; pending; failed."""

_TIMES = {
    74: ThrottleTime.POWER,
    75: ThrottleTime.THERMAL,
    76: ThrottleTime.SYNC_BOOST,
    77: ThrottleTime.BOARD_LIMIT,
    78: ThrottleTime.LOW_UTILISATION,
    79: ThrottleTime.RELIABILITY,
}
"""Nanoseconds in which a cause lowered the clocks."""

_FIELDS = (_MEMORY_TEMPERATURE, _REPLAYS, *_ECC, *_ROWS, *_TIMES)
_REASONS = {
    0x1: Throttle.GPU_IDLE,
    0x2: Throttle.CLOCKS_SETTING,
    0x4: Throttle.POWER_CAP,
    0x8: Throttle.HW_SLOWDOWN,
    0x10: Throttle.SYNC_BOOST,
    0x20: Throttle.SW_THERMAL,
    0x40: Throttle.HW_THERMAL,
    0x80: Throttle.HW_POWER_BRAKE,
    0x100: Throttle.DISPLAY_CLOCKS,
}
_VALUE_TYPES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
_SM_CLOCK, _MEMORY_CLOCK = 1, 2

WINDOW_S = 5.0
"""The activity of a process is that of the last seconds. The driver keeps older rows, also of processes that
have
ended."""

_NO_ROWS = frozenset({0, NOT_FOUND})
"""The driver has no row to give. With 0 pynvml raises an error with the code of success."""


class GpuSensors:
    """The sensors of one GPU, read at once. A value that cannot be read is missing, and no other one."""

    def __init__(self, nvml: Nvml, handle: Handle) -> None:
        self._nvml = nvml
        self._handle = handle

    def sample(
        self, gpu: GpuUuid, memory: DeviceMemory | None, peak_bytes: int | None, *, mig: bool
    ) -> GpuSample:
        """Everything but ``activity``. memory, peak_bytes: read already. mig: the GPU is in MIG mode,
        without utilisation.

        Raises GpuLost, DriverUnavailable, HardwareTimeout.
        """
        fields = self._fields()
        rates = None if mig else self._ask("nvmlDeviceGetUtilizationRates")
        encoder, decoder = (
            (None, None)
            if mig
            else (self._ask("nvmlDeviceGetEncoderUtilization"), self._ask("nvmlDeviceGetDecoderUtilization"))
        )
        return GpuSample(
            gpu=gpu,
            memory=memory,
            peak_bytes=peak_bytes,
            utilisation=None if rates is None else _percent(rates.gpu),
            memory_utilisation=None if rates is None else _percent(rates.memory),
            encoder=None if encoder is None else _percent(encoder[0]),
            decoder=None if decoder is None else _percent(decoder[0]),
            power_w=_thousandth(self._ask("nvmlDeviceGetPowerUsage")),
            power_limit_w=_thousandth(self._ask("nvmlDeviceGetEnforcedPowerLimit")),
            energy_j=_thousandth(self._ask("nvmlDeviceGetTotalEnergyConsumption")),
            temperature_c=self._number("nvmlDeviceGetTemperature", 0),
            memory_temperature_c=fields.get(_MEMORY_TEMPERATURE) or None,  # 0: there is no sensor
            sm_clock_hz=_mega(self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK)),
            memory_clock_hz=_mega(self._ask("nvmlDeviceGetClockInfo", _MEMORY_CLOCK)),
            throttle=self._throttle(),
            throttled_s={cause: fields[field] / 1e9 for field, cause in _TIMES.items() if field in fields},
            ecc=EccCounts(**{name: int(fields[field]) for field, name in _ECC.items() if field in fields}),
            rows=_rows(fields),
            pcie_replays=None if _REPLAYS not in fields else int(fields[_REPLAYS]),
        )

    def _ask(self, call: str, *arguments: object) -> Any | None:  # noqa: ANN401 - a foreign library's values
        try:
            return self._nvml.optional(call, self._handle, *arguments, absent=NOT_HERE)
        except (DriverUnavailable, GpuLost, HardwareTimeout):
            raise
        except HardwareError:
            return None

    def _number(self, call: str, *arguments: object) -> float | None:
        answer = self._ask(call, *arguments)
        return None if answer is None else float(answer)

    def _throttle(self) -> tuple[Throttle, ...] | None:
        mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:  # before R535 the call had another name
            mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if mask is None else tuple(reason for bit, reason in _REASONS.items() if mask & bit)

    def _fields(self) -> dict[int, float]:
        answers = self._ask("nvmlDeviceGetFieldValues", list(_FIELDS)) or ()
        return {
            answer.fieldId: float(getattr(answer.value, _VALUE_TYPES.get(answer.valueType, "ullVal")))
            for answer in answers
            if answer.nvmlReturn == 0
        }


def memory_of(nvml: Nvml, handle: Handle) -> DeviceMemory | None:
    """The memory of a GPU or MIG device."""
    memory = nvml.optional("nvmlDeviceGetMemoryInfo", handle, _MEMORY_V2)
    if memory is not None:
        return DeviceMemory(int(memory.total), int(memory.used), int(memory.free), int(memory.reserved))
    memory = nvml.optional("nvmlDeviceGetMemoryInfo", handle)
    return None if memory is None else DeviceMemory(int(memory.total), int(memory.used), int(memory.free))


def process_activities(
    nvml: Nvml, gpu: GpuUuid, handle: Handle, pids: Container[int]
) -> tuple[ProcessActivity, ...] | None:
    """What the processes of a GPU did in the last WINDOW_S seconds; None if the driver does not say. pids:
    those with
    a context now: the driver also tells of others.
    """
    since_us = int((time.time() - WINDOW_S) * 1e6)
    call = "nvmlDeviceGetProcessUtilization"
    try:
        answers = nvml.optional(call, handle, since_us, absent=_NO_ROWS)
    except Unsupported:
        return None
    return tuple(_activities(gpu, answers or (), since_us, pids))


def _activities(
    gpu: GpuUuid,
    answers: Iterable[Any],
    since_us: int,
    pids: Container[int],
) -> Iterator[ProcessActivity]:
    newest: dict[int, Any] = {}
    for row in answers:
        sound = row.timeStamp >= since_us and max(row.smUtil, row.memUtil, row.encUtil, row.decUtil) <= 100
        if sound and row.pid in pids:
            known = newest.get(row.pid)
            if known is None or row.timeStamp > known.timeStamp:
                newest[row.pid] = row
    for pid, row in sorted(newest.items()):
        yield ProcessActivity(
            gpu, pid, row.smUtil / 100, row.memUtil / 100, row.encUtil / 100, row.decUtil / 100
        )


def _rows(fields: Mapping[int, float]) -> RemappedRows | None:
    if not all(field in fields for field in _ROWS):
        return None
    corrected, uncorrected, pending, failed = (int(fields[field]) for field in _ROWS)
    return RemappedRows(corrected, uncorrected, bool(pending), bool(failed))


def _percent(number: int) -> float:
    return int(number) / 100


def _thousandth(number: int | None) -> float | None:
    return None if number is None else int(number) / 1000


def _mega(number: int | None) -> int | None:
    return None if number is None else int(number) * 1_000_000


_VERSION = 1
_RATIOS = {
    1: "graphics",
    2: "sm",
    3: "sm_occupancy",
    5: "tensor",
    10: "dram",
    11: "fp64",
    12: "fp32",
    13: "fp16",
}
"""Metric of GPM, in percent, to the field of ``Activity``."""

_RATES = {20: "pcie_tx", 21: "pcie_rx"}
"""In MiB per second."""

LEAST_S = 0.5
"""Samples closer together than a tenth of a second mean nothing; the last figures are given again."""


class _Measured(Struct):
    sample: Any
    at_s: float
    activity: Activity | None = None


class GpmReader:
    """The earlier samples of one NVML session. ``clear`` it before the session ends."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._kept: dict[DeviceUuid, _Measured] = {}
        self._without: set[DeviceUuid] = set()

    def measures(self, handle: Handle, gpu: DeviceUuid) -> bool:
        """Whether a GPU has GPM."""
        if gpu in self._without:
            return False
        support = None
        with contextlib.suppress(HardwareError):
            support = self._nvml.optional(
                "nvmlGpmQueryDeviceSupport", handle, absent=ABSENT | {INVALID_ARGUMENT}
            )
        if support is None or not support.isSupportedDevice:
            self._without.add(gpu)
            return False
        return True

    def activity(self, device: DeviceUuid, gpu: Handle, gi_id: int | None, now_s: float) -> Activity | None:
        """What was active since the question before; None at the first one. gi_id: of a GPU instance, None
        for the
        GPU itself.
        """
        before = self._kept.get(device)
        if before is not None and now_s - before.at_s < LEAST_S:
            return before.activity
        try:
            sample = self._nvml.call("nvmlGpmSampleAlloc")
            try:
                if gi_id is None:
                    self._nvml.call("nvmlGpmSampleGet", gpu, sample)
                else:
                    self._nvml.call("nvmlGpmMigSampleGet", gpu, gi_id, sample)
            except HardwareError:
                self._free(sample)
                raise
        except HardwareError:
            self.forget(device)
            return None
        activity = self._between(before.sample, sample) if before is not None else None
        self.forget(device)
        self._kept[device] = _Measured(sample, now_s, activity)
        return activity

    def keep_only(self, devices: frozenset[DeviceUuid]) -> None:
        """Other devices are gone."""
        for device in self._kept.keys() - devices:
            self.forget(device)

    def forget(self, device: DeviceUuid) -> None:
        """Free what is kept of a device."""
        kept = self._kept.pop(device, None)
        if kept is not None:
            self._free(kept.sample)

    def clear(self) -> None:
        """Free everything."""
        self.keep_only(frozenset())
        self._without.clear()

    def _free(self, sample: object) -> None:
        with contextlib.suppress(HardwareError):
            self._nvml.call("nvmlGpmSampleFree", sample)

    def _between(self, first: object, second: object) -> Activity | None:
        asked = self._nvml.structure("c_nvmlGpmMetricsGet_t")
        asked.version = _VERSION
        metrics = (*_RATIOS, *_RATES)
        asked.numMetrics = len(metrics)
        asked.sample1, asked.sample2 = first, second
        for number, metric in enumerate(metrics):
            asked.metrics[number].metricId = metric
        try:
            self._nvml.call("nvmlGpmMetricsGet", asked)
        except HardwareError:
            return None
        answers = (asked.metrics[number] for number in range(len(metrics)))
        values = {answer.metricId: float(answer.value) for answer in answers if answer.nvmlReturn == 0}
        found = {name: values[metric] / 100 for metric, name in _RATIOS.items() if metric in values}
        found |= {name: values[metric] * MIB for metric, name in _RATES.items() if metric in values}
        return Activity(**found) if found else None

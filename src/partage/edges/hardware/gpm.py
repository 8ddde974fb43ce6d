"""Activity of GPUs and GPU instances, measured by GPM: Hopper and later, without DCGM.

A figure is the difference of two samples of the driver. The earlier one is kept until the next question.
"""

from __future__ import annotations

import contextlib
from typing import Any

from msgspec import Struct

from partage.edges.hardware.gpu_queries import Handle
from partage.edges.hardware.nvml_queries import Nvml
from partage.edges.hardware.translate import ABSENT, INVALID_ARGUMENT
from partage.errors import HardwareError
from partage.model.ids import DeviceUuid
from partage.model.samples import Activity
from partage.units import MIB

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

"""The same figures under the names and labels of dcgm-exporter, so that dashboards and alerts made for it
work.

Each figure of a board stands once, on the row of its GPU. A container that shares a device has rows of its
own for the two figures that can be measured for one container (memory, utilisation), with ``pod``,
``namespace`` and ``container``; the row of the device is the whole device. Where one container has a device
alone, its names are on the rows of the device. Names, units and labels: dcgm-exporter 4.5.3-4.8.2
(``etc/default-counters.csv``) and the release notes of 4.9.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from partage.agent.status.status import UsageObservation
from partage.model.dcgm_names import DcgmNames
from partage.model.gpu import Gpu, Inventory, NoDriver
from partage.model.ids import DeviceUuid
from partage.model.samples import Activity, DeviceSample, GpuSample, MigSample, ThrottleTime
from partage.model.xid import RESET_XIDS
from partage.plan.usage import ContainerUse
from partage.serve_http.metrics.exposition import Family, filled, label_template, label_text
from partage.units import MIB
from partage.values import Frozen

LastXids = Mapping[str, int]
"""GPU UUID to the code of the XID that came last."""


class _Field(Frozen):
    """One figure in both spellings. old_unit, new_unit: what a base unit is multiplied with. counts: it
    never falls.
    """

    old: str
    new: str
    text: str
    old_unit: float = 1.0
    new_unit: float = 1.0
    counts: bool = False


_PERCENT, _MILLI, _NANO, _MHZ = 100.0, 1e3, 1e9, 1e-6
_USED = _Field("FB_USED", "FB_USED_BYTES", "Framebuffer memory used", 1 / MIB)
_UTILISATION = _Field("GPU_UTIL", "GPU_UTIL_RATIO", "GPU utilization", _PERCENT)


def _memory(name: str) -> Callable[[DeviceSample], float | None]:
    return lambda sample: None if sample.memory is None else getattr(sample.memory, name)


def _rows(name: str) -> Callable[[GpuSample], float | None]:
    return lambda sample: None if sample.rows is None else float(getattr(sample.rows, name))


def _ecc(name: str) -> Callable[[GpuSample], float | None]:
    return lambda sample: getattr(sample.ecc, name)


def _time(cause: ThrottleTime) -> Callable[[GpuSample], float | None]:
    return lambda sample: sample.throttled_s.get(cause)


_OF_DEVICES: tuple[tuple[_Field, Callable[[DeviceSample], float | None]], ...] = (
    (_Field("FB_FREE", "FB_FREE_BYTES", "Framebuffer memory free", 1 / MIB), _memory("free_bytes")),
    (_USED, _memory("used_bytes")),
    (
        _Field("FB_RESERVED", "FB_RESERVED_BYTES", "Framebuffer memory reserved", 1 / MIB),
        _memory("reserved_bytes"),
    ),
    (_Field("FB_TOTAL", "FB_CAPACITY_BYTES", "Framebuffer memory", 1 / MIB), _memory("total_bytes")),
)
_OF_GPUS: tuple[tuple[_Field, Callable[[GpuSample], float | None]], ...] = (
    (_Field("SM_CLOCK", "SM_CLOCK_HERTZ", "SM clock", _MHZ), lambda sample: sample.sm_clock_hz),
    (_Field("MEM_CLOCK", "MEMORY_CLOCK_HERTZ", "Memory clock", _MHZ), lambda sample: sample.memory_clock_hz),
    (_Field("GPU_TEMP", "GPU_TEMP_CELSIUS", "GPU temperature"), lambda sample: sample.temperature_c),
    (
        _Field("MEMORY_TEMP", "MEMORY_TEMP_CELSIUS", "Memory temperature"),
        lambda sample: sample.memory_temperature_c,
    ),
    (_Field("POWER_USAGE", "BOARD_POWER_WATTS", "Power of the board"), lambda sample: sample.power_w),
    (
        _Field(
            "TOTAL_ENERGY_CONSUMPTION",
            "GPU_ENERGY_JOULES_TOTAL",
            "Energy since the driver was loaded",
            _MILLI,
            counts=True,
        ),
        lambda sample: sample.energy_j,
    ),
    (
        _Field("PCIE_REPLAY_COUNTER", "PCIE_REPLAY_TOTAL", "PCIe retries", counts=True),
        lambda sample: sample.pcie_replays,
    ),
    (_UTILISATION, lambda sample: sample.utilisation),
    (
        _Field("MEM_COPY_UTIL", "MEMORY_UTIL_RATIO", "Memory utilization", _PERCENT),
        lambda sample: sample.memory_utilisation,
    ),
    (_Field("ENC_UTIL", "ENC_UTIL_RATIO", "Encoder utilization", _PERCENT), lambda sample: sample.encoder),
    (_Field("DEC_UTIL", "DEC_UTIL_RATIO", "Decoder utilization", _PERCENT), lambda sample: sample.decoder),
    (
        _Field("UNCORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_UNCORRECTABLE_TOTAL", "Remapped rows", counts=True),
        _rows("uncorrected"),
    ),
    (
        _Field("CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_CORRECTABLE_TOTAL", "Remapped rows", counts=True),
        _rows("corrected"),
    ),
    (_Field("ROW_REMAP_FAILURE", "ROW_REMAP_FAILED", "1: no spare rows are left"), _rows("failed")),
    *(
        (
            _Field(
                f"{word}_VIOLATION",
                f"{word}_THROTTLE_SECONDS_TOTAL",
                "Time of lowered clocks",
                _NANO,
                counts=True,
            ),
            _time(cause),
        )
        for word, cause in (
            ("POWER", ThrottleTime.POWER),
            ("THERMAL", ThrottleTime.THERMAL),
            ("SYNC_BOOST", ThrottleTime.SYNC_BOOST),
            ("BOARD_LIMIT", ThrottleTime.BOARD_LIMIT),
            ("LOW_UTIL", ThrottleTime.LOW_UTILISATION),
            ("RELIABILITY", ThrottleTime.RELIABILITY),
        )
    ),
    *(
        (_Field(name, name, "ECC errors", counts=True), _ecc(figure))
        for name, figure in (
            ("ECC_SBE_VOL_TOTAL", "corrected_volatile"),
            ("ECC_DBE_VOL_TOTAL", "uncorrected_volatile"),
            ("ECC_SBE_AGG_TOTAL", "corrected_aggregate"),
            ("ECC_DBE_AGG_TOTAL", "uncorrected_aggregate"),
        )
    ),
)
_OF_ACTIVITY: tuple[tuple[_Field, Callable[[Activity], float | None]], ...] = (
    (
        _Field("GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO", "Graphics engine active"),
        lambda activity: activity.graphics,
    ),
    (
        _Field("PIPE_TENSOR_ACTIVE", "TENSOR_UTIL_RATIO", "Tensor pipe active"),
        lambda activity: activity.tensor,
    ),
    (_Field("DRAM_ACTIVE", "DRAM_UTIL_RATIO", "Memory interface active"), lambda activity: activity.dram),
    (_Field("SM_ACTIVE", "SM_UTIL_RATIO", "SM active"), lambda activity: activity.sm),
    (_Field("SM_OCCUPANCY", "SM_OCCUPANCY", "SM occupancy"), lambda activity: activity.sm_occupancy),
    (
        _Field("PCIE_TX_BYTES", "PCIE_TX_BYTES", "PCIe bytes sent per second"),
        lambda activity: activity.pcie_tx,
    ),
    (
        _Field("PCIE_RX_BYTES", "PCIE_RX_BYTES", "PCIe bytes received per second"),
        lambda activity: activity.pcie_rx,
    ),
)

_LAST_XID = _Field("XID_ERRORS", "XID_ERROR", "The XID that came last")

SPELLINGS = (
    *((f"DCGM_FI_DEV_{field.old}", f"DCGM_FI_DEV_{field.new}") for field, _ in (*_OF_GPUS, *_OF_DEVICES)),
    *((f"DCGM_FI_PROF_{field.old}", f"DCGM_FI_PROF_{field.new}") for field, _ in _OF_ACTIVITY),
    (f"DCGM_FI_DEV_{_LAST_XID.old}", f"DCGM_FI_DEV_{_LAST_XID.new}"),
)
"""The old and the new name of everything that is served."""

_Row = tuple[str, float | None]


class DcgmFamilies:
    """The families of one observation."""

    def __init__(
        self,
        usage: UsageObservation,
        inventory: Inventory,
        names: DcgmNames,
        *,
        hostname: str,
        shared: Set[DeviceUuid] = frozenset(),
    ) -> None:
        """shared: the devices that have several shares."""
        self._found = usage
        self._names, self._hostname = names, hostname
        driver = inventory.driver
        self._driver = "" if isinstance(driver, NoDriver) else driver.version
        self._gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
        self._profiles = {
            mig.uuid: str(mig.profile) for gpu in self._gpus.values() for mig in gpu.mig_devices
        }
        self._shared = shared
        self._by_device: dict[DeviceUuid, list[ContainerUse]] = {}
        for use in usage.use.containers:
            if use.grant is not None:
                self._by_device.setdefault(use.device, []).append(use)

    def families(self, xids: LastXids) -> Iterator[Family]:
        """All families, the newer spelling beside the older where both are asked for. xids: the last of each
        GPU.
        """
        gpus = [(self._device(gpu), gpu) for gpu in self._found.samples.gpus if gpu.gpu in self._gpus]
        migs = [(self._mig(mig), mig) for mig in self._found.samples.migs if mig.gpu in self._gpus]
        with_migs = {sample.gpu for _, sample in migs}
        containers = list(self._containers())
        for field, figure in _OF_GPUS:
            rows: list[_Row] = [(labels, figure(sample)) for labels, sample in gpus]
            if field is _UTILISATION:
                rows += [(labels, use.amount.sm) for labels, use in containers]
            yield from self._both("DEV", field, rows)
        for field, of_device in _OF_DEVICES:
            rows = [(labels, of_device(sample)) for labels, sample in gpus if sample.gpu not in with_migs]
            rows += [(labels, of_device(sample)) for labels, sample in migs]
            if field is _USED:
                rows += [(labels, use.amount.used_bytes) for labels, use in containers]
            yield from self._both("DEV", field, rows)
        active = [(labels, sample.activity) for labels, sample in gpus if sample.activity is not None]
        active += [(labels, sample.activity) for labels, sample in migs if sample.activity is not None]
        for field, of_activity in _OF_ACTIVITY:
            yield from self._both(
                "PROF", field, [(labels, of_activity(activity)) for labels, activity in active]
            )
        yield from self._both(
            "DEV", _LAST_XID, [self._last_xid(sample, xids.get(sample.gpu, 0)) for _, sample in gpus]
        )

    def _both(self, kind: str, field: _Field, rows: Iterable[_Row]) -> Iterator[Family]:
        known = [(labels, number) for labels, number in rows if number is not None]
        spellings = {}
        if self._names.old:
            spellings[field.old] = field.old_unit
        if self._names.new:
            spellings[field.new] = field.new_unit
        for name, unit in spellings.items() if known else ():
            full = f"DCGM_FI_{kind}_{name}"
            # Names of counters here do not end in _total, which the format wants of its own kind.
            counts = "unknown" if field.counts else "gauge"
            yield Family(full, field.text, counts, [(labels, number * unit) for labels, number in known])

    def _labels(self, gpu: Gpu) -> dict[str, str]:
        labels = {
            "gpu": str(gpu.index),
            "UUID": gpu.uuid,
            "pci_bus_id": gpu.pci_bus_id,
            "device": f"nvidia{gpu.minor}",
            "modelName": gpu.product,
        }
        if self._names.old:
            labels |= {"Hostname": self._hostname, "DCGM_FI_DRIVER_VERSION": self._driver}
        if self._names.new:
            labels |= {"hostname": self._hostname, "DCGM_FI_SYSTEM_DRIVER_VERSION": self._driver}
        return labels

    def _device(self, sample: GpuSample) -> str:
        return _text(self._labels(self._gpus[sample.gpu]) | self._alone(sample.gpu))

    def _last_xid(self, sample: GpuSample, code: int) -> _Row:
        """The XID is the figure, and with its meaning in labels, which messages of alerts name."""
        meaning = RESET_XIDS.get(code, f"XID {code}") if code else "No Error"
        labels = self._labels(self._gpus[sample.gpu]) | self._alone(sample.gpu)
        return _text({**labels, "err_code": str(code), "err_msg": meaning}), code

    def _mig(self, sample: MigSample) -> str:
        return _text(
            self._labels(self._gpus[sample.gpu]) | self._instance(sample) | self._alone(sample.device)
        )

    def _instance(self, sample: MigSample) -> dict[str, str]:
        return {"GPU_I_PROFILE": self._profiles.get(sample.device, ""), "GPU_I_ID": str(sample.gi_id)}

    def _alone(self, device: DeviceUuid) -> dict[str, str]:
        """The names of the one container that has the device alone."""
        users = self._by_device.get(device, [])
        return _names(users[0]) if device not in self._shared and len(users) == 1 else {}

    def _containers(self) -> Iterator[tuple[str, ContainerUse]]:
        """Those that share a device, with their labels."""
        migs: dict[DeviceUuid, MigSample] = {sample.device: sample for sample in self._found.samples.migs}
        for device, users in self._by_device.items():
            if users[0].gpu not in self._gpus or self._alone(device):
                continue
            labels = self._labels(self._gpus[users[0].gpu])
            if (mig := migs.get(device)) is not None:
                labels |= self._instance(mig)
            template = label_template((*labels, *_names(users[0])))
            same = tuple(labels.values())
            yield from ((filled(template, (*same, *_names(use).values())), use) for use in users)


def _text(labels: Mapping[str, str]) -> str:
    return label_text(labels.items())


def _names(use: ContainerUse) -> dict[str, str]:
    return {
        "namespace": use.holder.namespace,
        "pod": use.holder.pod,
        "container": use.holder.container,
    }

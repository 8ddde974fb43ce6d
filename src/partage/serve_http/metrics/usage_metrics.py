"""What GPUs, MIG devices, containers and jobs use, as metrics. What is not known has no sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from partage.agent.status.status import UsageObservation
from partage.model.gpu import Inventory
from partage.model.samples import Activity, DeviceSample, GpuSample, MigSample, Throttle
from partage.model.share import Guarantee
from partage.plan.report import Report
from partage.plan.serve.held_limits import said_of
from partage.plan.serve.watchdog import GrantKind
from partage.plan.usage import ContainerUse, DeviceUse, NodeUse
from partage.serve_http.metrics.exposition import Family
from partage.serve_http.metrics.metric_definitions import Labels, Row, figure, metric, text_of

_UNITS = ("graphics", "sm", "sm_occupancy", "tensor", "dram", "fp64", "fp32", "fp16")
_LIMITS = (Guarantee.HARD, Guarantee.GUARDED)
"""Guarantees under which a share's memory is a limit. The others only say how much it should be."""


def usage_families(usage: UsageObservation, inventory: Inventory, age_s: float) -> Iterator[Family]:
    """All families of one observation. inventory: says what the devices are."""
    index = {gpu.uuid: str(gpu.index) for gpu in inventory.gpus}
    samples, use = usage.samples, usage.use
    yield from _gpus([(((sample.gpu, index.get(sample.gpu, ""))), sample) for sample in samples.gpus])
    yield from _migs(
        inventory, [((mig.gpu, index.get(mig.gpu, ""), mig.device), mig) for mig in samples.migs]
    )
    yield from _containers(use)
    yield from _jobs(use)
    rest = [
        ((rest_use.gpu, rest_use.device, str(rest_use.reason)), float(rest_use.used_bytes))
        for rest_use in use.rest
    ]
    yield metric("unattributed_memory_bytes", rest)
    yield figure("usage_processes_hidden", bool(use.hidden))
    yield figure("usage_age_seconds", age_s)
    yield figure("usage_rows_left_out", use.left_out)


def share_families(report: Report) -> Iterator[Family]:
    """The shares that are offered, and who holds them.

    Units of memory are counted, not listed: a node has thousands, and others with each pod.
    """
    shares: Counter[tuple[str, ...]] = Counter()
    sizes: dict[tuple[str, ...], float] = {}
    place: dict[tuple[str, str], tuple[str, ...]] = {}
    units: set[tuple[str, str]] = set()
    for gpu in report.gpus:
        for offer in gpu.offer:
            where = (gpu.uuid, str(gpu.index), offer.device, offer.resource)
            shares[where] += offer.count
            sizes.setdefault((*where, str(said_of(offer, report.entries))), offer.memory_bytes)
            place |= {(offer.resource, share): where for share in offer.share_ids}
            if offer.by_memory:
                units.update((offer.resource, share) for share in offer.share_ids)
    held = Counter(place[entry.hold] for entry in report.entries if entry.hold in place)
    yield metric("device_shares", list(shares.items()))
    yield metric("device_shares_held", [(where, held[where]) for where in shares])
    yield metric("share_memory_bytes", list(sizes.items()))
    holders = [
        ((entry.resource, entry.id, who.namespace, who.pod, who.container, str(entry.certainty)), 1.0)
        for entry in report.entries
        for who in (entry.holders if entry.hold not in units else ())
    ]
    yield metric("share_holder", holders)


# --- GPUs and MIG devices ------------------------------------------------------------------------

_Gpus = list[tuple[tuple[str, ...], GpuSample]]

_GPU_FIGURES: Mapping[str, Callable[[GpuSample], float | None]] = {
    "gpu_memory_peak_bytes": lambda sample: sample.peak_bytes,
    "gpu_utilization_ratio": lambda sample: sample.utilisation,
    "gpu_memory_utilization_ratio": lambda sample: sample.memory_utilisation,
    "gpu_encoder_utilization_ratio": lambda sample: sample.encoder,
    "gpu_decoder_utilization_ratio": lambda sample: sample.decoder,
    "gpu_power_watts": lambda sample: sample.power_w,
    "gpu_power_limit_watts": lambda sample: sample.power_limit_w,
    "gpu_energy_joules": lambda sample: sample.energy_j,
    "gpu_temperature_celsius": lambda sample: sample.temperature_c,
    "gpu_memory_temperature_celsius": lambda sample: sample.memory_temperature_c,
    "gpu_sm_clock_hertz": lambda sample: sample.sm_clock_hz,
    "gpu_memory_clock_hertz": lambda sample: sample.memory_clock_hz,
    "gpu_pcie_replays": lambda sample: sample.pcie_replays,
    "gpu_row_remap_pending": lambda sample: None if sample.rows is None else sample.rows.pending,
    "gpu_row_remap_failed": lambda sample: None if sample.rows is None else sample.rows.failed,
}


def _gpus(gpus: _Gpus) -> Iterator[Family]:
    yield from _memory("gpu", gpus)
    for name, figure_of in _GPU_FIGURES.items():
        yield metric(name, _known((who, figure_of(sample)) for who, sample in gpus))
    yield metric("gpu_activity_ratio", _active(gpus))
    yield metric(
        "gpu_pcie_bytes_per_second",
        _known(
            ((*who, direction), getattr(sample.activity, f"pcie_{direction}"))
            for who, sample in gpus
            if sample.activity
            for direction in ("tx", "rx")
        ),
    )
    yield metric(
        "gpu_throttled",
        [
            ((*who, str(reason)), float(reason in sample.throttle))
            for who, sample in gpus
            if sample.throttle is not None
            for reason in Throttle
        ],
    )
    yield metric(
        "gpu_throttled_seconds",
        [
            ((*who, str(cause)), seconds)
            for who, sample in gpus
            for cause, seconds in sample.throttled_s.items()
        ],
    )
    yield metric(
        "gpu_ecc_errors",
        _known(
            ((*who, kind, since), getattr(sample.ecc, f"{kind}_{scope}"))
            for who, sample in gpus
            for kind in ("corrected", "uncorrected")
            for since, scope in (("driver", "volatile"), ("ever", "aggregate"))
        ),
    )
    yield metric(
        "gpu_remapped_rows",
        [
            ((*who, kind), float(getattr(sample.rows, kind)))
            for who, sample in gpus
            if sample.rows
            for kind in ("corrected", "uncorrected")
        ],
    )


def _migs(inventory: Inventory, migs: list[tuple[tuple[str, ...], MigSample]]) -> Iterator[Family]:
    profiles = {mig.uuid: str(mig.profile) for gpu in inventory.gpus for mig in gpu.mig_devices}
    yield metric(
        "mig_info",
        [
            ((*who, profiles.get(sample.device, ""), str(sample.gi_id), str(sample.ci_id)), 1.0)
            for who, sample in migs
        ],
    )
    yield from _memory("mig", migs)
    yield metric("mig_memory_peak_bytes", _known((who, sample.peak_bytes) for who, sample in migs))
    yield metric("mig_activity_ratio", _active(migs))


def _memory(kind: str, devices: Iterable[tuple[tuple[str, ...], DeviceSample]]) -> Iterator[Family]:
    devices = tuple(devices)
    for part in ("total", "used", "free", *(("reserved",) if kind == "gpu" else ())):
        rows = ((who, getattr(sample.memory, f"{part}_bytes")) for who, sample in devices if sample.memory)
        yield metric(f"{kind}_memory_{part}_bytes", _known(rows))


def _active(devices: Iterable[tuple[tuple[str, ...], DeviceSample]]) -> list[Row]:
    known: Iterable[tuple[tuple[str, ...], Activity]] = (
        (who, sample.activity) for who, sample in devices if sample.activity is not None
    )
    return _known(((*who, unit), getattr(activity, unit)) for who, activity in known for unit in _UNITS)


def _known(rows: Iterable[tuple[Labels, float | None]]) -> list[Row]:
    return [(who, float(number)) for who, number in rows if number is not None]


# --- containers and jobs -------------------------------------------------------------------------

_AMOUNTS: Mapping[str, Callable[[DeviceUse], float | None]] = {
    "memory_used_bytes": lambda use: use.used_bytes,
    "memory_peak_bytes": lambda use: use.peak_bytes,
    "sm_utilization_ratio": lambda use: use.sm,
}
"""Of containers and jobs."""


def _containers(use: NodeUse) -> Iterator[Family]:
    rows = [(text_of("container_processes", _who(container)), container) for container in use.containers]
    for name, figure_of in _AMOUNTS.items():
        yield metric(
            f"container_{name}", _known((who, figure_of(container_use.amount)) for who, container_use in rows)
        )
    activity = ((who, container_use.amount.memory_activity) for who, container_use in rows)
    yield metric("container_memory_activity_ratio", _known(activity))
    live = [(who, container_use) for who, container_use in rows if container_use.grant is not None]
    yield metric(
        "container_processes",
        [
            (who, container_use.amount.processes)
            for who, container_use in live
            if not use.hidden or container_use.amount.processes
        ],
    )
    yield metric(
        "container_memory_share_bytes",
        _known((who, container_use.share_bytes) for who, container_use in live),
    )
    limits = (
        (who, container_use.share_bytes) for who, container_use in live if container_use.guarantee in _LIMITS
    )
    yield metric("container_memory_limit_bytes", _known(limits))
    yield metric(
        "container_shares",
        [(who, container_use.shares) for who, container_use in live if container_use.shares],
    )
    guarantees: list[Row] = [
        ((*_who(container_use), str(container_use.guarantee)), 1.0)
        for _, container_use in live
        if container_use.guarantee is not None
    ]
    yield metric("container_guarantee", guarantees)
    ungranted = [(who, 1.0) for who, container_use in live if container_use.grant is GrantKind.NONE]
    yield metric("container_ungranted", ungranted)


def _who(use: ContainerUse) -> tuple[str, ...]:
    holder = use.holder
    return holder.namespace, holder.pod, holder.container, use.gpu, use.device


def _jobs(use: NodeUse) -> Iterator[Family]:
    rows = [((job.job, job.gpu, job.device), job.amount) for job in use.jobs]
    for name, figure_of in _AMOUNTS.items():
        yield metric(f"job_{name}", _known((who, figure_of(amount)) for who, amount in rows))
    yield metric("job_processes", [(who, amount.processes) for who, amount in rows])

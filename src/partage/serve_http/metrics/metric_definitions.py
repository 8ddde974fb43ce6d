"""The metrics that ``/metrics`` has: names, kinds, labels. docs/reference/metrics.md is written from them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from partage.serve_http.metrics.exposition import Family, filled, label_template
from partage.values import Frozen


class MetricKind(StrEnum):
    """The two kinds that are used. The name of a counter ends in ``_total`` where it is scraped."""

    GAUGE = "gauge"
    COUNTER = "counter"


class MetricDefinition(Frozen):
    """One metric. name: without ``partage_``. text: for ``# HELP``, one line."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    kind: MetricKind = MetricKind.GAUGE

    @property
    def scraped_name(self) -> str:
        """As Prometheus sees it."""
        return f"partage_{self.name}{'_total' if self.kind is MetricKind.COUNTER else ''}"


def counter(name: str, text: str, *labels: str) -> MetricDefinition:
    """A counter."""
    return MetricDefinition(name, text, labels, MetricKind.COUNTER)


_GPU = ("gpu", "index")
_DEVICE = ("gpu", "index", "device")
_CONTAINER_DEVICE = ("namespace", "pod", "container", "gpu", "device")
_JOB = ("job", "gpu", "device")


def _gpu(name: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(f"gpu_{name}", text, (*_GPU, *labels))


def _mig(name: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(f"mig_{name}", text, (*_DEVICE, *labels))


def _container(name: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(f"container_{name}", text, (*_CONTAINER_DEVICE, *labels))


def _job(name: str, text: str) -> MetricDefinition:
    return MetricDefinition(f"job_{name}", text, _JOB)


USAGE_METRICS = (
    # GPUs.
    _gpu("memory_total_bytes", "Memory of the GPU."),
    _gpu("memory_used_bytes", "Memory that is given out, without the driver's own reserve."),
    _gpu("memory_free_bytes", "Memory that is free."),
    _gpu("memory_reserved_bytes", "Memory that the driver keeps for itself."),
    _gpu("memory_peak_bytes", "Highest use of memory in the last one to two minutes, sampled every second."),
    _gpu("utilization_ratio", "Part of the time in which a kernel ran. None in MIG mode."),
    _gpu(
        "memory_utilization_ratio", "Part of the time in which memory was read or written. None in MIG mode."
    ),
    _gpu("encoder_utilization_ratio", "Part of the time in which the video encoder worked."),
    _gpu("decoder_utilization_ratio", "Part of the time in which the video decoder worked."),
    _gpu("activity_ratio", "Active part of a unit's time, by GPM (Hopper and later).", "unit"),
    _gpu("pcie_bytes_per_second", "Traffic on PCIe, by GPM (Hopper and later).", "direction"),
    _gpu("power_watts", "Power of the whole board."),
    _gpu("power_limit_watts", "The power limit in force."),
    counter("gpu_energy_joules", "Energy of the whole board since the driver was loaded.", *_GPU),
    _gpu("temperature_celsius", "Temperature of the GPU."),
    _gpu("memory_temperature_celsius", "Temperature of the memory."),
    _gpu("sm_clock_hertz", "Clock of the multiprocessors."),
    _gpu("memory_clock_hertz", "Clock of the memory."),
    _gpu("throttled", "1 while this reason lowers the clocks.", "reason"),
    counter("gpu_throttled_seconds", "Time in which a cause lowered the clocks.", *_GPU, "cause"),
    counter(
        "gpu_ecc_errors", "ECC errors of memory, since the driver was loaded or ever.", *_GPU, "kind", "since"
    ),
    counter("gpu_remapped_rows", "Rows of memory that were replaced, by the kind of error.", *_GPU, "kind"),
    _gpu("row_remap_pending", "1 while rows are to be replaced at the next reset."),
    _gpu("row_remap_failed", "1 where no spare rows are left."),
    counter("gpu_pcie_replays", "Repeated transfers on PCIe since the driver was loaded.", *_GPU),
    # MIG devices.
    _mig("info", "The MIG device.", "profile", "gi", "ci"),
    _mig("memory_total_bytes", "Memory of the MIG device."),
    _mig("memory_used_bytes", "Memory that is given out."),
    _mig("memory_free_bytes", "Memory that is free."),
    _mig("memory_peak_bytes", "Highest use of memory in the last one to two minutes, sampled every second."),
    _mig(
        "activity_ratio",
        "Active part of a unit's time, of the GPU instance, by GPM (Hopper and later).",
        "unit",
    ),
    # Shares.
    MetricDefinition(
        "device_shares", "Shares of a GPU or MIG device that are offered.", (*_DEVICE, "resource")
    ),
    MetricDefinition(
        "device_shares_held", "Shares of a GPU or MIG device that are held.", (*_DEVICE, "resource")
    ),
    MetricDefinition(
        "share_memory_bytes",
        "Memory of one share of a GPU or MIG device.",
        (*_DEVICE, "resource", "guarantee"),
    ),
    MetricDefinition(
        "share_holder",
        "1 for the container that holds the share. "
        "Units of memory have none: partage_container_shares counts them.",
        ("resource", "share", "namespace", "pod", "container", "certainty"),
    ),
    # Containers and jobs.
    _container("memory_used_bytes", "GPU memory that the processes of the container use now."),
    _container(
        "memory_peak_bytes",
        "Highest use of GPU memory since the container began, sampled every second; "
        "for five minutes also of one that ended.",
    ),
    _container("memory_share_bytes", "GPU memory of the shares that the container holds."),
    _container("memory_limit_bytes", "The same, where it is a limit: guarantee hard or guarded."),
    _container("shares", "Shares that the container holds."),
    _container("guarantee", "1 for the guarantee of the container's shares.", "guarantee"),
    _container("processes", "Processes of the container on the device."),
    _container("sm_utilization_ratio", "Part of the GPU's time in which the container's kernels ran."),
    _container("memory_activity_ratio", "Part of the time in which the container read or wrote GPU memory."),
    _container("ungranted", "1 while the container uses a device of which it holds no share."),
    _job("memory_used_bytes", "GPU memory that the processes of the Slurm job use now."),
    _job("memory_peak_bytes", "Highest use since the job began, sampled every second."),
    _job("processes", "Processes of the Slurm job on the device."),
    _job("sm_utilization_ratio", "Part of the GPU's time in which the job's kernels ran."),
    _job("memory_limit_bytes", "The driver's memory limit of the Slurm job, where it is hard: it was read."),
    MetricDefinition(
        "job_info",
        "User and name of the Slurm job, where its agent serves the metrics.",
        ("job", "user", "name"),
    ),
    MetricDefinition(
        "unattributed_memory_bytes",
        "GPU memory that belongs to no container with a name and to no job.",
        ("gpu", "device", "reason"),
    ),
    # Whether all of this can be relied on.
    MetricDefinition("usage_processes_hidden", "1 while processes are not visible: use is not known then."),
    MetricDefinition("usage_age_seconds", "Age of the figures of use."),
    MetricDefinition("usage_rows_left_out", "Containers and jobs without figures: there are too many."),
)


_CONTAINER = ("namespace", "pod", "container", "gpu")


METRICS = {
    definition.name: definition
    for definition in (
        # The agent.
        MetricDefinition("build_info", "Version of Partage and of Python.", ("version", "python")),
        MetricDefinition("healthy", "1 while /healthz answers 200."),
        MetricDefinition("loop_alive", "1 while the agent's loop runs."),
        MetricDefinition("seconds_since_turn", "Seconds since the last turn of the agent's loop."),
        counter("turns", "Turns of the agent's loop."),
        MetricDefinition("helper_up", "1 while the helper process answers."),
        counter("helper_restarts", "Times the helper process was replaced."),
        MetricDefinition("driver_up", "1 while there is a driver that works."),
        MetricDefinition("driver_info", "The driver.", ("version", "cuda")),
        MetricDefinition(
            "dependency_up", "1 while something that the agent depends on works.", ("dependency",)
        ),
        # The policy.
        MetricDefinition("policy_valid", "1 while the policy that was asked for is in force."),
        MetricDefinition(
            "policy_state",
            "1 for the policy in force: the file, the last good one, the built-in one, none.",
            ("state",),
        ),
        MetricDefinition(
            "policy_reason", "1 for why the policy that was asked for is in force, or not.", ("reason",)
        ),
        MetricDefinition(
            "mig_config_state",
            "1 for what became of the MIG layout that the label of the node asks for; absent without it.",
            ("config", "state"),
        ),
        counter("policy_reloads", "Policies that were loaded, the first included, and refused.", "result"),
        # The kubelet, and shares.
        MetricDefinition("registered", "1 while the kubelet has the resource registered.", ("resource",)),
        counter("registrations", "Registrations that the kubelet accepted.", "resource"),
        MetricDefinition("devices", "Shares that are listed to the kubelet.", ("resource", "health")),
        MetricDefinition(
            "shares_held", "Shares that are held, by how certain the holder is.", ("resource", "certainty")
        ),
        counter("allocations", "Allocate calls that were answered.", "resource"),
        counter("allocations_refused", "Allocate calls that were refused.", "resource"),
        # ResourceClaims; absent without --dra.
        MetricDefinition("claims", "ResourceClaims that hold something of the node.", ("state",)),
        counter("claims_refused", "ResourceClaims that were refused, at each try.", "reason"),
        counter("claim_prepares", "Calls in which the kubelet asked for claims."),
        counter("claim_prepare_seconds", "How long these calls took in all."),
        MetricDefinition("slices_current", "ResourceSlices of the node that are as they should be."),
        # GPUs.
        MetricDefinition("gpu_info", "The GPU.", (*_GPU, "product")),
        MetricDefinition("gpu_health", "1 for the health state of the GPU.", (*_GPU, "state")),
        MetricDefinition("gpu_strategy", "1 for the strategy that the GPU serves.", (*_GPU, "strategy")),
        MetricDefinition(
            "gpu_phase",
            "1 for the phase of the GPU between its observed and its desired state.",
            (*_GPU, "phase"),
        ),
        MetricDefinition("gpu_shares_held", "Shares of the GPU that are held.", _GPU),
        MetricDefinition(
            "gpu_shares_in_conflict", "1 while shares of the GPU are held that exclude each other.", _GPU
        ),
        counter(
            "gpu_changes",
            "Changes of layouts and settings: done, rolled back, partial (neither old nor new), not started.",
            "ending",
        ),
        counter("xids", "XID events of the driver; an empty gpu: it did not say which.", "gpu", "xid"),
        # MPS, and the watchdog.
        MetricDefinition(
            "mps_daemon_serving",
            "1 while the MPS daemon of the GPU or MIG device takes clients.",
            (*_GPU, "device"),
        ),
        MetricDefinition(
            "mps_clients", "Processes that use the GPU through the MPS daemon.", (*_GPU, "device")
        ),
        MetricDefinition(
            "container_over_share", "1 while the container uses more than its share.", _CONTAINER
        ),
        MetricDefinition(
            "watchdog_processes_hidden",
            "1 while containers cannot be watched; absent where nothing has to be.",
        ),
        counter(
            "memory_limits_repaired",
            "Memory limits of the driver's that were missing after a container had begun: set, or failed.",
            "gpu",
            "outcome",
        ),
        counter(
            "watchdog_kills",
            "Processes of containers over their share whose work was ended, by MPS daemon or signal.",
            "gpu",
            "how",
        ),
        counter(
            "watchdog_kills_failed",
            "Processes of containers over their share that could not be ended.",
            "gpu",
        ),
        # What is used.
        *USAGE_METRICS,
    )
}


Labels = tuple[str, ...] | str
"""The values of the labels; or what ``text_of`` has made of them, where several metrics have the same."""
Row = tuple[Labels, float]
"""The labels, and the number."""

_TEMPLATES = {name: label_template(defined.labels) for name, defined in METRICS.items()}


def metric(name: str, rows: Iterable[Row]) -> Family:
    """A defined metric."""
    defined = METRICS[name]
    template = _TEMPLATES[name]
    texts = [
        (labels if isinstance(labels, str) else filled(template, labels), number) for labels, number in rows
    ]
    return Family(f"partage_{name}", defined.text, defined.kind.value, texts)


def text_of(name: str, values: tuple[str, ...]) -> str:
    """The labels of one row as they stand in the text. It is the same for metrics with the same labels."""
    return filled(_TEMPLATES[name], values)


def figure(name: str, value: float) -> Family:
    """A metric without labels."""
    return metric(name, [((), float(value))])

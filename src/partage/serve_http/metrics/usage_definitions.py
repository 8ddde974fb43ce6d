"""The metrics of what GPUs and containers use: names, kinds, labels."""

from __future__ import annotations

from partage.serve_http.metrics.metric_definition import MetricDefinition, counter

_GPU = ("gpu", "index")
_DEVICE = ("gpu", "index", "device")
_CONTAINER = ("namespace", "pod", "container", "gpu", "device")
_JOB = ("job", "gpu", "device")


def _gpu(name: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(f"gpu_{name}", text, (*_GPU, *labels))


def _mig(name: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(f"mig_{name}", text, (*_DEVICE, *labels))


def _container(name: str, text: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(f"container_{name}", text, (*_CONTAINER, *labels))


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

"""The metrics that ``/metrics`` has: names, kinds, labels. docs/reference/metrics.md is written from them."""

from __future__ import annotations

from partage.serve_http.metrics.metric_definition import MetricDefinition, counter
from partage.serve_http.metrics.usage_definitions import USAGE_METRICS

_GPU = ("gpu", "index")
_CONTAINER = ("namespace", "pod", "container", "gpu")


METRICS = {
    one.name: one
    for one in (
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

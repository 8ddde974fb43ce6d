"""The last report as Prometheus metrics. Imported at the first scrape: prometheus_client costs 2 MiB."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec.structs import fields
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from partage import __version__
from partage.agent.options import Intervals
from partage.agent.status.readiness import readiness_of, stall_reason
from partage.agent.status.status import AgentStatus, WatchObservation
from partage.edges.hardware.supervisor import HelperState
from partage.model.gpu import NoDriver
from partage.model.health import HealthState
from partage.model.mps import DaemonPhase
from partage.model.policy import Strategy
from partage.plan.reconcile.node_plan import Phase
from partage.plan.report import MigConfigState, PolicyReason, PolicyState, Report
from partage.plan.serve.ledger import Certainty
from partage.plan.serve.watchdog import GrantKind

HelperOf = Callable[[], HelperState]
_Row = tuple[tuple[str, ...], float]


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    rows: Iterable[_Row],
) -> Metric:
    family = kind(f"partage_{name}", text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


_gauge = partial(_family, GaugeMetricFamily)
_counter = partial(_family, CounterMetricFamily)


def _figure(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return _gauge(name, text, (), [((), float(value))])


class ReportCollector(Collector):
    """Reads the status at every scrape. helper: None where the hardware is in the agent's own process."""

    def __init__(self, status: AgentStatus, intervals: Intervals, helper: HelperOf | None) -> None:
        self._status = status
        self._intervals = intervals
        self._helper = helper

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._agent()
        yield from self._counts()
        report = self._status.report
        if report is None:
            return
        yield from _watch(self._status.watch_observation())
        yield from _node(report)
        yield from _gpus(report)
        yield from _daemons(report)
        yield from _shares(report)
        since_s = max(0.0, self._status.clock() - report.made.clock_s)
        yield _figure("seconds_since_turn", "Seconds since the last turn of the agent's loop.", since_s)

    def _agent(self) -> Iterator[Metric]:
        status = self._status
        info = ((__version__, platform.python_version()), 1.0)
        yield _gauge("build_info", "Version of Partage and of Python.", ("version", "python"), [info])
        well = not readiness_of(status, self._intervals).not_well
        yield _figure("healthy", "1 while /healthz answers 200.", well)
        alive = stall_reason(status, self._intervals) is None
        yield _figure("loop_alive", "1 while the agent's loop runs.", alive)
        states = status.endpoints()
        yield _gauge(
            "registered",
            "1 while the kubelet has the resource registered.",
            ("resource",),
            [((state.resource,), float(state.registered)) for state in states],
        )
        yield _counter(
            "registrations",
            "Registrations that the kubelet accepted.",
            ("resource",),
            [((state.resource,), state.registrations) for state in states],
        )
        if self._helper is not None:
            helper = self._helper()
            yield _figure("helper_up", "1 while the helper process answers.", helper.up)
            yield _counter(
                "helper_restarts", "Times the helper process was replaced.", (), [((), helper.restarts)]
            )

    def _counts(self) -> Iterator[Metric]:
        counts = self._status.counts
        yield _counter("turns", "Turns of the agent's loop.", (), [((), counts.turns)])
        reloads = [(("ok",), counts.reloads_ok), (("failed",), counts.reloads_failed)]
        yield _counter(
            "policy_reloads",
            "Policies that were loaded, the first included, and refused.",
            ("result",),
            reloads,
        )
        yield _counter(
            "gpu_changes",
            "Changes of layouts and settings: done, rolled back, partial (neither old nor new), not started.",
            ("ending",),
            [
                ((ending,), counts.changes[ending])
                for ending in ("done", "rolled-back", "partial", "not-started")
            ],
        )
        asked = counts.asked()
        yield _counter(
            "allocations",
            "Allocate calls that were answered.",
            ("resource",),
            [((name,), row.allocations) for name, row in asked.items()],
        )
        yield _counter(
            "allocations_refused",
            "Allocate calls that were refused.",
            ("resource",),
            [((name,), row.refusals) for name, row in asked.items()],
        )
        yield _counter(
            "xids",
            "XID events of the driver.",
            ("gpu", "xid"),
            [((gpu, str(code)), number) for (gpu, code), number in counts.xids.copy().items()],
        )
        yield _counter(
            "watchdog_kills",
            "Processes of containers over their share whose work was ended, by MPS daemon or signal.",
            ("gpu", "how"),
            list(counts.kills.copy().items()),
        )
        yield _counter(
            "watchdog_kills_failed",
            "Processes of containers over their share that could not be ended.",
            ("gpu",),
            [((gpu,), number) for gpu, number in counts.not_killed.copy().items()],
        )


def _watch(found: WatchObservation | None) -> Iterator[Metric]:
    """Containers that hold shares of watched GPUs. A container without any figure has no sample of memory."""
    if found is None:
        return
    yield _figure("watchdog_processes_hidden", "1 while containers cannot be watched.", bool(found.hidden))
    labels = ("namespace", "pod", "container", "gpu")
    used: Counter[tuple[str, ...]] = Counter()
    over: dict[tuple[str, ...], float] = {}
    for usage in found.watched.usages:
        if usage.grant is not GrantKind.HELD or (holder := usage.holder) is None:
            continue
        who = (holder.namespace, holder.pod, holder.container, usage.gpu)
        over[who] = max(over.get(who, 0.0), float(usage.over))
        if any(row.used_bytes is not None for row in usage.processes):
            used[who] += usage.used_bytes
    yield _gauge(
        "container_memory_bytes",
        "GPU memory that the processes of a container use, of those that say how much.",
        labels,
        list(used.items()),
    )
    yield _gauge(
        "container_over_share", "1 while the container uses more than its share.", labels, list(over.items())
    )


def _node(report: Report) -> Iterator[Metric]:
    driver = report.node.inventory.driver
    works = not isinstance(driver, NoDriver)
    yield _figure("driver_up", "1 while there is a driver that works.", works)
    if not isinstance(driver, NoDriver):
        row = ((driver.version, driver.cuda), 1.0)
        yield _gauge("driver_info", "The driver.", ("version", "cuda"), [row])
    policy = report.policy
    yield _figure("policy_valid", "1 while the policy that was asked for is in force.", not policy.problems)
    yield _gauge(
        "policy_state",
        "1 for the policy in force: the file, the last good one, the built-in one, none.",
        ("state",),
        [((str(state),), float(state is policy.state)) for state in PolicyState],
    )
    yield _gauge(
        "policy_reason",
        "1 for why the policy that was asked for is in force, or not.",
        ("reason",),
        [((str(reason),), float(reason is policy.reason)) for reason in PolicyReason],
    )
    if (layout := report.mig_config) is not None:
        yield _gauge(
            "mig_config_state",
            "1 for what became of the MIG layout that the label of the node asks for.",
            ("config", "state"),
            [((layout.name, str(state)), float(state is layout.state)) for state in MigConfigState],
        )
    yield _gauge(
        "dependency_up",
        "1 while something that the agent depends on works.",
        ("dependency",),
        [
            ((one.name.replace("_", "-"),), float(not getattr(report.dependencies, one.name)))
            for one in fields(report.dependencies)
        ],
    )


def _gpus(report: Report) -> Iterator[Metric]:
    gpus = [((gpu.uuid, str(gpu.index)), gpu) for gpu in report.gpus]
    labels = ("gpu", "index")
    yield _gauge(
        "gpu_health",
        "1 for the health state of the GPU.",
        (*labels, "state"),
        [
            ((*who, str(state)), float(state is gpu.health.state))
            for who, gpu in gpus
            for state in HealthState
        ],
    )
    yield _gauge(
        "gpu_strategy",
        "1 for the strategy that the GPU serves.",
        (*labels, "strategy"),
        [((*who, str(each)), float(each is gpu.strategy)) for who, gpu in gpus for each in Strategy],
    )
    yield _gauge(
        "gpu_info", "The GPU.", (*labels, "product"), [((*who, gpu.product), 1.0) for who, gpu in gpus]
    )
    yield _gauge(
        "gpu_phase",
        "1 for the phase of the GPU between its observed and its desired state.",
        (*labels, "phase"),
        [((*who, phase), float(gpu.plan.phase is phase)) for who, gpu in gpus if gpu.plan for phase in Phase],
    )
    yield _gauge(
        "gpu_shares_in_conflict",
        "1 while shares of the GPU are held that exclude each other.",
        labels,
        [(who, float(bool(gpu.plan.conflict))) for who, gpu in gpus if gpu.plan],
    )
    yield _gauge(
        "gpu_shares_held", "Shares of the GPU that are held.", labels, [(who, gpu.held) for who, gpu in gpus]
    )


def _daemons(report: Report) -> Iterator[Metric]:
    rows = [((gpu.uuid, str(gpu.index), one.device), one) for gpu in report.gpus for one in gpu.daemons]
    labels = ("gpu", "index", "device")
    yield _gauge(
        "mps_daemon_serving",
        "1 while the MPS daemon of the GPU or MIG device takes clients.",
        labels,
        [(who, float(one.phase is DaemonPhase.SERVING)) for who, one in rows],
    )
    yield _gauge(
        "mps_clients",
        "Processes that use the GPU through the MPS daemon.",
        labels,
        [(who, float(len(one.clients))) for who, one in rows],
    )


def _shares(report: Report) -> Iterator[Metric]:
    rows: list[_Row] = []
    for resource in report.resources:
        rows.append(((resource.name, "healthy"), resource.healthy))
        rows.append(((resource.name, "unhealthy"), resource.listed - resource.healthy))
    yield _gauge("devices", "Shares that are listed to the kubelet.", ("resource", "health"), rows)
    names = [resource.name for resource in report.resources]
    held = Counter((entry.resource, entry.certainty) for entry in report.entries)
    names += [name for name, _ in held if name not in names]
    yield _gauge(
        "shares_held",
        "Shares that are held, by how certain the holder is.",
        ("resource", "certainty"),
        [
            ((name, str(certainty)), held[name, certainty])
            for name in dict.fromkeys(names)
            for certainty in Certainty
        ],
    )


def metrics_writer(status: AgentStatus, intervals: Intervals, helper: HelperOf | None) -> Callable[[], bytes]:
    """A function that writes all metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(ReportCollector(status, intervals, helper))
    ProcessCollector(registry=registry)
    return lambda: generate_latest(registry)

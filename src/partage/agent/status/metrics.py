"""The last report as Prometheus metrics. Imported at the first scrape: prometheus_client costs 2 MiB."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import fields
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from partage import __version__
from partage.agent.options import Intervals
from partage.agent.status.metric_definitions import METRICS, MetricKind
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


_FAMILIES: dict[MetricKind, type[GaugeMetricFamily | CounterMetricFamily]] = {
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.COUNTER: CounterMetricFamily,
}


def _metric(name: str, rows: Iterable[_Row]) -> Metric:
    """A defined metric. rows: the values of its labels, and the number."""
    defined = METRICS[name]
    family = _FAMILIES[defined.kind](f"partage_{name}", defined.text, labels=defined.labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _figure(name: str, value: float) -> Metric:
    """A metric without labels."""
    return _metric(name, [((), float(value))])


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
        yield _figure("seconds_since_turn", since_s)

    def _agent(self) -> Iterator[Metric]:
        status = self._status
        info = ((__version__, platform.python_version()), 1.0)
        yield _metric("build_info", [info])
        well = not readiness_of(status, self._intervals).not_well
        yield _figure("healthy", well)
        alive = stall_reason(status, self._intervals) is None
        yield _figure("loop_alive", alive)
        states = status.endpoints()
        yield _metric("registered", [((state.resource,), float(state.registered)) for state in states])
        yield _metric("registrations", [((state.resource,), state.registrations) for state in states])
        if self._helper is not None:
            helper = self._helper()
            yield _figure("helper_up", helper.up)
            yield _metric("helper_restarts", [((), helper.restarts)])

    def _counts(self) -> Iterator[Metric]:
        counts = self._status.counts
        yield _metric("turns", [((), counts.turns)])
        reloads = [(("ok",), counts.reloads_ok), (("failed",), counts.reloads_failed)]
        yield _metric("policy_reloads", reloads)
        yield _metric(
            "gpu_changes",
            [
                ((ending,), counts.changes[ending])
                for ending in ("done", "rolled-back", "partial", "not-started")
            ],
        )
        asked = counts.asked()
        yield _metric("allocations", [((name,), row.allocations) for name, row in asked.items()])
        yield _metric("allocations_refused", [((name,), row.refusals) for name, row in asked.items()])
        yield _metric(
            "xids", [((gpu, str(code)), number) for (gpu, code), number in counts.xids.copy().items()]
        )
        yield _metric("watchdog_kills", list(counts.kills.copy().items()))
        yield _metric(
            "watchdog_kills_failed", [((gpu,), number) for gpu, number in counts.not_killed.copy().items()]
        )


def _watch(found: WatchObservation | None) -> Iterator[Metric]:
    """Containers that hold shares of watched GPUs. A container without any figure has no sample of memory."""
    if found is None:
        return
    yield _figure("watchdog_processes_hidden", bool(found.hidden))
    used: Counter[tuple[str, ...]] = Counter()
    over: dict[tuple[str, ...], float] = {}
    for usage in found.watched.usages:
        if usage.grant is not GrantKind.HELD or (holder := usage.holder) is None:
            continue
        who = (holder.namespace, holder.pod, holder.container, usage.gpu)
        over[who] = max(over.get(who, 0.0), float(usage.over))
        if any(row.used_bytes is not None for row in usage.processes):
            used[who] += usage.used_bytes
    yield _metric("container_memory_bytes", list(used.items()))
    yield _metric("container_over_share", list(over.items()))


def _node(report: Report) -> Iterator[Metric]:
    driver = report.node.inventory.driver
    works = not isinstance(driver, NoDriver)
    yield _figure("driver_up", works)
    if not isinstance(driver, NoDriver):
        row = ((driver.version, driver.cuda), 1.0)
        yield _metric("driver_info", [row])
    policy = report.policy
    yield _figure("policy_valid", not policy.problems)
    yield _metric("policy_state", [((str(state),), float(state is policy.state)) for state in PolicyState])
    yield _metric(
        "policy_reason", [((str(reason),), float(reason is policy.reason)) for reason in PolicyReason]
    )
    if (layout := report.mig_config) is not None:
        yield _metric(
            "mig_config_state",
            [((layout.name, str(state)), float(state is layout.state)) for state in MigConfigState],
        )
    yield _metric(
        "dependency_up",
        [
            ((one.name.replace("_", "-"),), float(not getattr(report.dependencies, one.name)))
            for one in fields(report.dependencies)
        ],
    )


def _gpus(report: Report) -> Iterator[Metric]:
    gpus = [((gpu.uuid, str(gpu.index)), gpu) for gpu in report.gpus]
    yield _metric(
        "gpu_health",
        [
            ((*who, str(state)), float(state is gpu.health.state))
            for who, gpu in gpus
            for state in HealthState
        ],
    )
    yield _metric(
        "gpu_strategy",
        [((*who, str(each)), float(each is gpu.strategy)) for who, gpu in gpus for each in Strategy],
    )
    yield _metric("gpu_info", [((*who, gpu.product), 1.0) for who, gpu in gpus])
    yield _metric(
        "gpu_phase",
        [((*who, phase), float(gpu.plan.phase is phase)) for who, gpu in gpus if gpu.plan for phase in Phase],
    )
    yield _metric(
        "gpu_shares_in_conflict", [(who, float(bool(gpu.plan.conflict))) for who, gpu in gpus if gpu.plan]
    )
    yield _metric("gpu_shares_held", [(who, gpu.held) for who, gpu in gpus])


def _daemons(report: Report) -> Iterator[Metric]:
    rows = [((gpu.uuid, str(gpu.index), one.device), one) for gpu in report.gpus for one in gpu.daemons]
    yield _metric("mps_daemon_serving", [(who, float(one.phase is DaemonPhase.SERVING)) for who, one in rows])
    yield _metric("mps_clients", [(who, float(len(one.clients))) for who, one in rows])


def _shares(report: Report) -> Iterator[Metric]:
    rows: list[_Row] = []
    for resource in report.resources:
        rows.append(((resource.name, "healthy"), resource.healthy))
        rows.append(((resource.name, "unhealthy"), resource.listed - resource.healthy))
    yield _metric("devices", rows)
    names = [resource.name for resource in report.resources]
    held = Counter((entry.resource, entry.certainty) for entry in report.entries)
    names += [name for name, _ in held if name not in names]
    yield _metric(
        "shares_held",
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

"""The last report as metrics. Imported at the first scrape: not every node is scraped."""

from __future__ import annotations

import itertools
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from resource import RLIMIT_NOFILE, getpagesize, getrlimit

from msgspec.structs import fields

from partage import __version__
from partage.agent.options import Intervals
from partage.agent.status.readiness import readiness_of, stall_reason
from partage.agent.status.status import AgentStatus, ClaimFigures, WatchObservation
from partage.edges.hardware.supervisor import HelperState
from partage.model.dcgm_names import DcgmNames
from partage.model.gpu import NoDriver
from partage.model.health import HealthState
from partage.model.ids import GpuUuid
from partage.model.mps import DaemonPhase
from partage.model.strategy import Strategy
from partage.model.xid import COUNTED_XIDS
from partage.plan.reconcile.node_plan import Phase
from partage.plan.report import MigConfigState, PolicyReason, PolicyState, Report
from partage.plan.serve.ledger_entry import Certainty
from partage.plan.serve.watchdog import GrantKind
from partage.serve_http.metrics.exposition import OPENMETRICS, TEXT, Family, wants_openmetrics, write
from partage.serve_http.metrics.metric_definitions import Row, figure, metric
from partage.serve_http.metrics.usage_metrics import share_families, usage_families

HelperOf = Callable[[], HelperState]
MetricsWriter = Callable[[str], tuple[bytes, str]]
"""Given what the scraper accepts (HTTP's ``Accept``), the text and its content type: Prometheus' or
OpenMetrics.
"""

OUTDATED_S = 30.0
"""Figures of use that are older are not told: nothing is better than what was."""


class ReportCollector:
    """Reads the status at every scrape. helper: None where the hardware is in the agent's own process."""

    def __init__(
        self,
        status: AgentStatus,
        intervals: Intervals,
        helper: HelperOf | None,
        dcgm: DcgmNames = DcgmNames.OFF,
        hostname: str = "",
    ) -> None:
        self._dcgm = dcgm
        self._hostname = hostname
        self._status = status
        self._intervals = intervals
        self._helper = helper
        self._last_shares: tuple[Report, list[Family]] | None = None

    def collect(self) -> Iterator[Family]:
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
        yield from self._shares_of(report)
        usage = self._status.usage()
        if usage is not None and (age_s := self._status.clock() - usage.at_s) <= OUTDATED_S:
            inventory = report.node.inventory
            yield from usage_families(usage, inventory, age_s)
            if self._dcgm is not DcgmNames.OFF:
                from partage.serve_http.metrics.dcgm_metrics import DcgmFamilies

                shared = {
                    offer.device for gpu in report.gpus for offer in gpu.offer if offer.traits.in_shares
                }
                last = dict(self._status.counts.last_xids)
                found_by_dcgm = DcgmFamilies(
                    usage, inventory, self._dcgm, hostname=self._hostname, shared=shared
                )
                yield from found_by_dcgm.families(last)
        since_s = max(0.0, self._status.clock() - report.made.clock_s)
        yield figure("seconds_since_turn", since_s)

    def _shares_of(self, report: Report) -> list[Family]:
        """Most of the text, and the same until the next turn."""
        last = self._last_shares
        if last is None or last[0] is not report:
            last = self._last_shares = report, list(share_families(report))
        return last[1]

    def _agent(self) -> Iterator[Family]:
        status = self._status
        info = ((__version__, platform.python_version()), 1.0)
        yield metric("build_info", [info])
        healthy = not readiness_of(status, self._intervals).unhealthy
        yield figure("healthy", healthy)
        alive = stall_reason(status, self._intervals) is None
        yield figure("loop_alive", alive)
        states = status.endpoints()
        yield metric("registered", [((state.resource,), float(state.registered)) for state in states])
        yield metric("registrations", [((state.resource,), state.registrations) for state in states])
        if self._helper is not None:
            helper = self._helper()
            yield figure("helper_up", helper.up)
            yield metric("helper_restarts", [((), helper.restarts)])

    def _counts(self) -> Iterator[Family]:
        counts = self._status.counts
        yield metric("turns", [((), counts.turns)])
        reloads = [(("ok",), counts.reloads_ok), (("failed",), counts.reloads_failed)]
        yield metric("policy_reloads", reloads)
        yield metric(
            "gpu_changes",
            [
                ((ending,), counts.changes[ending])
                for ending in ("done", "rolled-back", "partial", "not-started", "pending-reboot")
            ],
        )
        yield from _claims(self._status.claims())
        asked = counts.asked()
        yield metric("allocations", [((name,), row.allocations) for name, row in asked.items()])
        yield metric("allocations_refused", [((name,), row.refusals) for name, row in asked.items()])
        report = self._status.report
        yield metric("xids", xid_rows([gpu.uuid for gpu in report.gpus] if report else (), counts.xids))
        yield metric("memory_limits_repaired", list(counts.limits.copy().items()))
        yield metric("watchdog_kills", list(counts.kills.copy().items()))
        yield metric(
            "watchdog_kills_failed", [((gpu,), number) for gpu, number in counts.not_killed.copy().items()]
        )


def _claims(claims: ClaimFigures | None) -> Iterator[Family]:
    if claims is None:
        return
    yield metric("claims", [((state,), count) for state, count in claims.states.items()])
    yield metric("claims_refused", [((reason,), count) for reason, count in claims.refused.items()])
    yield metric("claim_prepares", [((), claims.prepares)])
    yield metric("claim_prepare_seconds", [((), claims.prepare_s)])
    yield figure("slices_current", claims.slices)


def _watch(observation: WatchObservation | None) -> Iterator[Family]:
    """Containers that hold shares of watched GPUs. A container without any figure has no sample of memory."""
    if observation is None:
        return
    yield figure("watchdog_processes_hidden", bool(observation.hidden))
    over: dict[tuple[str, ...], float] = {}
    for usage in observation.watched.usages:
        if usage.grant is not GrantKind.HELD or (holder := usage.holder) is None:
            continue
        who = (holder.namespace, holder.pod, holder.container, usage.gpu)
        over[who] = max(over.get(who, 0.0), float(usage.over))
    yield metric("container_over_share", list(over.items()))


def xid_rows(gpus: Iterable[GpuUuid], counted: Mapping[tuple[str, int], int]) -> list[Row]:
    """A counter whose first value is that of its first event hides the event from increase(): those that
    matter begin at 0.
    """
    first: dict[tuple[str, int], int] = {(gpu, code): 0 for gpu in gpus for code in COUNTED_XIDS}
    return [((gpu, str(code)), number) for (gpu, code), number in {**first, **dict(counted)}.items()]


def _node(report: Report) -> Iterator[Family]:
    driver = report.node.inventory.driver
    works = not isinstance(driver, NoDriver)
    yield figure("driver_up", works)
    if not isinstance(driver, NoDriver):
        row = ((driver.version, driver.cuda), 1.0)
        yield metric("driver_info", [row])
    policy = report.policy
    yield figure("policy_valid", not policy.problems)
    yield metric("policy_state", [((str(state),), float(state is policy.state)) for state in PolicyState])
    yield metric(
        "policy_reason", [((str(reason),), float(reason is policy.reason)) for reason in PolicyReason]
    )
    if (layout := report.mig_config) is not None:
        yield metric(
            "mig_config_state",
            [((layout.name, str(state)), float(state is layout.state)) for state in MigConfigState],
        )
    yield metric(
        "dependency_up",
        [
            ((field.name.replace("_", "-"),), float(not getattr(report.dependencies, field.name)))
            for field in fields(report.dependencies)
        ],
    )


def _gpus(report: Report) -> Iterator[Family]:
    gpus = [((gpu.uuid, str(gpu.index)), gpu) for gpu in report.gpus]
    yield metric(
        "gpu_health",
        [
            ((*who, str(state)), float(state is gpu.health.state))
            for who, gpu in gpus
            for state in HealthState
        ],
    )
    yield metric(
        "gpu_strategy",
        [((*who, str(each)), float(each is gpu.strategy)) for who, gpu in gpus for each in Strategy],
    )
    yield metric("gpu_info", [((*who, gpu.product), 1.0) for who, gpu in gpus])
    yield metric(
        "gpu_phase",
        [((*who, phase), float(gpu.plan.phase is phase)) for who, gpu in gpus if gpu.plan for phase in Phase],
    )
    yield metric(
        "gpu_shares_in_conflict", [(who, float(bool(gpu.plan.conflict))) for who, gpu in gpus if gpu.plan]
    )
    yield metric("gpu_shares_held", [(who, gpu.held) for who, gpu in gpus])


def _daemons(report: Report) -> Iterator[Family]:
    rows = [
        ((gpu.uuid, str(gpu.index), daemon.device), daemon) for gpu in report.gpus for daemon in gpu.daemons
    ]
    yield metric(
        "mps_daemon_serving", [(who, float(daemon.phase is DaemonPhase.SERVING)) for who, daemon in rows]
    )
    yield metric("mps_clients", [(who, float(len(daemon.clients))) for who, daemon in rows])


def _shares(report: Report) -> Iterator[Family]:
    rows: list[Row] = []
    for resource in report.resources:
        rows.append(((resource.name, "healthy"), resource.healthy))
        rows.append(((resource.name, "unhealthy"), resource.listed - resource.healthy))
    yield metric("devices", rows)
    names = [resource.name for resource in report.resources]
    held = Counter((entry.resource, entry.certainty) for entry in report.entries)
    names += [name for name, _ in held if name not in names]
    yield metric(
        "shares_held",
        [
            ((name, str(certainty)), held[name, certainty])
            for name in dict.fromkeys(names)
            for certainty in Certainty
        ],
    )


def metrics_writer(
    status: AgentStatus,
    intervals: Intervals,
    helper: HelperOf | None,
    dcgm: DcgmNames = DcgmNames.OFF,
    hostname: str = "",
) -> MetricsWriter:
    """A function that writes all metrics. dcgm: also under dcgm-exporter's names; hostname: a label of
    those.
    """
    return writer_of(ReportCollector(status, intervals, helper, dcgm, hostname).collect)


def writer_of(collect: Callable[[], Iterator[Family]]) -> MetricsWriter:
    """A function that writes these families, and what the process costs."""

    def written(accept: str) -> tuple[bytes, str]:
        openmetrics = wants_openmetrics(accept)
        families = itertools.chain(collect(), process_families())
        return write(families, openmetrics=openmetrics), OPENMETRICS if openmetrics else TEXT

    return written


_UTIME, _STIME, _START, _VSIZE, _RSS = 11, 12, 19, 20, 21
"""Indexes after the name in ``/proc/self/stat`` (proc_pid_stat(5))."""


def process_families(proc: Path = Path("/proc")) -> Iterator[Family]:
    """Nothing where /proc cannot be read."""
    try:
        words = (proc / "self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = (proc / "stat").read_text(encoding="utf-8").partition("\nbtime ")[2].split()[0]
        descriptors = sum(1 for _ in (proc / "self/fd").iterdir())
        ticks, page = os.sysconf("SC_CLK_TCK"), getpagesize()
        figures = (
            ("virtual_memory_bytes", "Virtual memory size in bytes.", "gauge", int(words[_VSIZE])),
            ("resident_memory_bytes", "Resident memory size in bytes.", "gauge", int(words[_RSS]) * page),
            (
                "start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                "gauge",
                int(words[_START]) / ticks + int(boot),
            ),
            (
                "cpu_seconds",
                "Total user and system CPU time spent in seconds.",
                "counter",
                (int(words[_UTIME]) + int(words[_STIME])) / ticks,
            ),
            ("open_fds", "Number of open file descriptors.", "gauge", descriptors),
            (
                "max_fds",
                "Maximum number of open file descriptors.",
                "gauge",
                getrlimit(RLIMIT_NOFILE)[0],
            ),
        )
    except (OSError, ValueError, IndexError):
        return
    for name, text, kind, value in figures:
        yield Family(f"process_{name}", text, kind, [("", float(value))])

"""The metrics of a compute node. Imported at the first scrape."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from partage import __version__
from partage.agent.options import Intervals
from partage.agent.status.readiness import readiness_of
from partage.agent.status.status import AgentStatus
from partage.model.dcgm_names import DcgmNames
from partage.model.gpu import NoDriver
from partage.model.share import Guarantee
from partage.plan.reconcile.known_node import UNSEEN
from partage.serve_http.metrics.exposition import Family
from partage.serve_http.metrics.metric_definitions import figure, metric
from partage.serve_http.metrics.metrics import OUTDATED_S, HelperOf, MetricsWriter, writer_of, xid_rows
from partage.serve_http.metrics.usage_metrics import usage_families


def slurm_metrics_writer(
    status: AgentStatus, intervals: Intervals, helper: HelperOf | None, dcgm: DcgmNames, hostname: str
) -> MetricsWriter:
    """A function that writes all metrics of a compute node; see ``metrics_writer``."""
    return writer_of(lambda: _families(status, intervals, helper, dcgm, hostname))


def _families(
    status: AgentStatus, intervals: Intervals, helper: HelperOf | None, dcgm: DcgmNames, hostname: str
) -> Iterator[Family]:
    yield metric("build_info", [((__version__, platform.python_version()), 1.0)])
    yield figure("healthy", not readiness_of(status, intervals).unhealthy)
    if helper is not None:
        state = helper()
        yield figure("helper_up", state.up)
        yield metric("helper_restarts", [((), state.restarts)])
    if status.report is None or status.report.node is UNSEEN:
        return
    inventory = status.report.node.inventory
    driver = inventory.driver
    yield figure("driver_up", not isinstance(driver, NoDriver))
    if not isinstance(driver, NoDriver):
        yield metric("driver_info", [((driver.version, driver.cuda), 1.0)])
    counted = status.counts.xids.copy()
    yield metric("memory_limits_repaired", list(status.counts.limits.copy().items()))
    hard = [job for job in status.report.jobs if job.guarantee is Guarantee.HARD]
    limits = [((str(job.job), job.gpu, job.gpu), float(job.limit.limit_bytes)) for job in hard]
    yield metric("job_memory_limit_bytes", limits)
    yield metric("xids", xid_rows([gpu.uuid for gpu in inventory.gpus], counted))
    found = status.usage()
    if found is None or (age_s := status.clock() - found.at_s) > OUTDATED_S:
        return
    yield from usage_families(found, inventory, age_s)
    names = [((job, name.user, name.name), 1.0) for job, name in status.job_names().items()]
    yield metric("job_info", names)
    if dcgm is not DcgmNames.OFF:
        from partage.serve_http.metrics.dcgm_metrics import DcgmFamilies

        last = dict(status.counts.last_xids)
        yield from DcgmFamilies(found, inventory, dcgm, hostname=hostname).families(last)

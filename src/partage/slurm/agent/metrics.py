"""The metrics of a compute node. Imported at the first scrape."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator

from partage import __version__
from partage.model.dcgm_names import DcgmNames
from partage.model.gpu import NoDriver
from partage.serve_http.metrics.exposition import Family
from partage.serve_http.metrics.metric_definitions import figure, metric
from partage.serve_http.metrics.metrics import OUTDATED_S, HelperOf, MetricsWriter, writer_of, xid_rows
from partage.serve_http.metrics.usage_metrics import usage_families
from partage.slurm.agent.status import SlurmStatus


def slurm_metrics_writer(status: SlurmStatus, helper: HelperOf) -> MetricsWriter:
    """A function that writes all metrics of a compute node."""
    return writer_of(lambda: _families(status, helper))


def _families(status: SlurmStatus, helper: HelperOf) -> Iterator[Family]:
    yield metric("build_info", [((__version__, platform.python_version()), 1.0)])
    yield figure("healthy", not status.trouble)
    state = helper()
    yield figure("helper_up", state.up)
    yield metric("helper_restarts", [((), state.restarts)])
    node = status.hardware.node
    if node is None:
        return
    inventory = node.inventory
    driver = inventory.driver
    yield figure("driver_up", not isinstance(driver, NoDriver))
    if not isinstance(driver, NoDriver):
        yield metric("driver_info", [((driver.version, driver.cuda), 1.0)])
    counted = status.hardware.xid_counts.copy()
    yield metric("xids", xid_rows([gpu.uuid for gpu in inventory.gpus], counted))
    found = status.use.fresh(status.hardware.intervals.usage_answer_s, status.loop)
    if found is None or (age_s := time.monotonic() - found.at_s) > OUTDATED_S:
        return
    yield from usage_families(found, inventory, age_s)
    names = [((job, name.user, name.name), 1.0) for job, name in status.use.names.copy().items()]
    yield metric("job_info", names)
    if status.dcgm is not DcgmNames.OFF:
        from partage.serve_http.metrics.dcgm_metrics import DcgmFamilies

        last = dict(status.hardware.last_xids)
        yield from DcgmFamilies(found, inventory, status.dcgm, hostname=status.node).families(last)

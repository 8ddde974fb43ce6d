"""Dashboards, alerts and queries made for dcgm-exporter, in a real Prometheus that scrapes a real agent."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partage.model.mps import DaemonPhase
from partage.sim.node.faults import HideProcesses, RaiseXid, SetDaemonPhase
from partage.units import GIB, MIB
from tests.kubelet_script import wait_for
from tests.prometheus.live import Lab, lab
from tests.prometheus.server import ROOT, needs_prometheus

pytestmark = [pytest.mark.real, needs_prometheus, pytest.mark.xdist_group("prometheus")]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
LIMIT_S = 40.0
MACROS = {"$__rate_interval": "10s", "$__interval": "5s", "$__range": "5m"}
VARIABLE, LEGEND = re.compile(r"\$(\w+)"), re.compile(r"{{(\w+)}}")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Everything that the panels show has happened once."""
    with lab(tmp_path_factory.mktemp("prometheus")) as made:
        until(made, "partage_usage_age_seconds")
        made.load_it()
        made.helper.inject(RaiseXid(2, 43))
        yield made


def until(lab: Lab, query: str) -> list[Any]:
    """Wait until a query has data."""
    end = time.monotonic() + LIMIT_S
    while not (found := lab.server.ask(query)):
        assert time.monotonic() < end, f"no data within {LIMIT_S} s: {query}"
        time.sleep(0.1)
    return found


def panels(path: Path) -> Iterator[tuple[str, str, str]]:
    """Panel, query as Grafana sends it when everything is chosen, and legend."""
    document = json.loads(path.read_text())
    every = {one["name"]: one["allValue"] for one in document["templating"]["list"] if one.get("includeAll")}
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for macro, text in MACROS.items():
                query = query.replace(macro, text)
            query = VARIABLE.sub(lambda found: every[found[1]], query)
            yield panel["title"], query, target.get("legendFormat", "")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_every_panel_has_data_and_every_legend_its_labels(busy: Lab, path: Path) -> None:
    asked = list(panels(path))
    assert len(asked) > 10
    for title, query, legend in asked:
        metric = until(busy, query)[0]["metric"]
        assert not [name for name in LEGEND.findall(legend) if name not in metric], (title, metric)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_variable_has_values(busy: Lab, path: Path) -> None:
    for one in json.loads(path.read_text())["templating"]["list"]:
        if one["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", one["query"]["query"])
            assert found is not None
            rows = until(busy, VARIABLE.sub(".*", found[1]))
            assert any(found[2] in row["metric"] for row in rows)


def test_the_figures_are_what_was_planted(busy: Lab) -> None:
    until(busy, 'partage_container_memory_used_bytes{pod="greedy"}')
    used = busy.server.values("partage_container_memory_used_bytes", "instance", "namespace", "pod")
    assert used["gpu-node-1", "research", "train"] == 60 * GIB
    assert used["gpu-node-1", "research", "mig"] == 20 * GIB
    assert used["gpu-node-1", "team", "greedy"] == 30 * GIB
    rest = busy.server.values('partage_unattributed_memory_bytes{reason="host"} > 0', "reason")
    assert rest == {("host",): 20 * GIB}
    jobs = busy.server.values("partage_job_memory_used_bytes", "instance", "job")
    assert jobs["gpu-node-1", "18"] == 4 * GIB
    assert 8 * GIB <= jobs["gpu-node-1", "17"] <= 12 * GIB
    held = busy.server.values('partage_device_shares_held{resource="aliyun.com/gpu-mem"}', "index")
    assert held == {("5",): 12}
    # What is said of a GPU is not said of the agent's pod.
    found = busy.server.values("partage_gpu_memory_used_bytes", "instance", "namespace", "pod")
    assert set(found) == {("gpu-node-1", "", "")}


# --- dashboards and alerts of dcgm-exporter --------------------------------------------------------

DCGM = {
    # Panels by instance and gpu, as the dashboards do that most people have.
    "temperature": 'DCGM_FI_DEV_GPU_TEMP{instance=~".*", gpu=~"0|1"}',
    "mean temperature": "avg(DCGM_FI_DEV_GPU_TEMP)",
    "power": "sum(DCGM_FI_DEV_POWER_USAGE)",
    "clock": "DCGM_FI_DEV_SM_CLOCK * 1000000",
    "utilisation": "DCGM_FI_DEV_GPU_UTIL{gpu='1'}",
    "memory": "DCGM_FI_DEV_FB_USED",
    "tensor": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    # Sizing and accounting.
    "peak": 'max by (namespace, pod, container) (max_over_time(DCGM_FI_DEV_FB_USED{pod!=""}[1h]))',
    "fullness": "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE + DCGM_FI_DEV_FB_RESERVED)",
    "node": "sum by (Hostname) (max by (Hostname, UUID, GPU_I_ID) (DCGM_FI_DEV_FB_USED))",
    "watts": "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[10s]) / 1000",
    "replicas": "floor(0.9 / clamp_min(quantile_over_time(0.95, DCGM_FI_PROF_SM_ACTIVE[1m]), 0.01))",
    "busy holder": 'avg_over_time(DCGM_FI_DEV_GPU_UTIL{pod!=""}[1m]) > 5',
    # The spelling of 4.9, and queries for both.
    "memory 4.9": "DCGM_FI_DEV_FB_USED_BYTES / DCGM_FI_DEV_FB_CAPACITY_BYTES",
    "utilisation 4.9": "avg by (hostname) (DCGM_FI_DEV_GPU_UTIL_RATIO)",
    "power 4.9": "rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[10s])",
    "either": "DCGM_FI_DEV_FB_USED * 1048576 or DCGM_FI_DEV_FB_USED_BYTES",
    # Alerts; each without its threshold, which a healthy node does not reach.
    "xid": "DCGM_FI_DEV_XID_ERRORS > 0",
    "ecc": "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[10s]) >= 0",
    "remap": "DCGM_FI_DEV_ROW_REMAP_FAILURE >= 0",
    "thermal": "increase(DCGM_FI_DEV_THERMAL_VIOLATION[10s]) / 1e9 >= 0",
    "replays": "rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10s]) >= 0",
}


@pytest.mark.parametrize("name", DCGM)
def test_queries_made_for_dcgm_exporter_have_data(busy: Lab, name: str) -> None:
    until(busy, DCGM[name])


def test_names_of_dcgm_exporter_say_what_ours_say_and_count_nothing_twice(busy: Lab) -> None:
    until(busy, 'DCGM_FI_DEV_FB_USED{pod="greedy"}')
    query = "sum by (gpu) (DCGM_FI_DEV_FB_USED{%s} * 1048576)"
    whole = busy.server.values(query % 'pod=""', "gpu")
    containers = busy.server.values(query % 'pod!=""', "gpu")
    assert whole["3",] == pytest.approx((30 + 3 + 20) * GIB, abs=MIB)
    assert containers["3",] == pytest.approx((30 + 3) * GIB, abs=MIB)
    old = busy.server.values("sum(DCGM_FI_DEV_FB_USED{gpu='1'}) * 1048576")
    assert old == busy.server.values("sum(DCGM_FI_DEV_FB_USED_BYTES{gpu='1'})")


# --- alerts ------------------------------------------------------------------------------------------


def test_alerts_are_evaluated_and_faults_make_them_active(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        until(made, "partage_usage_age_seconds")
        # Before the first sample there were no figures of use, and rules are evaluated every second.
        wait_for(lambda: not any(rule["alerts"] for rule in made.server.alerts().values()), LIMIT_S, "quiet")
        made.load_it()
        until(made, 'partage_container_memory_used_bytes{pod="greedy"}')
        active(made, "PartageContainerOverShare", "PartageUngrantedUse", "PartageUnattributedMemory")
        made.helper.inject(RaiseXid(2, 79), SetDaemonPhase(4, DaemonPhase.FAULT))
        active(made, "PartageGpuUnhealthy", "PartageGpuXid", "PartageMpsDaemonDown")
        made.node.write_policy("version: partage/v1\ngpus: [{select: all, mps: {replicas: 49}}]\n")
        active(made, "PartagePolicyRefused")
        made.node.write_policy("version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 2}}]\n")
        active(made, "PartageChangeWaits")
        made.helper.inject(HideProcesses())
        active(made, "PartageProcessesHidden")
        made.kubelet.stop()
        active(made, "PartageNotRegistered", "PartageDependencyDown")
        made.helper.stop()
        active(made, "PartageAgentNotHealthy")
        made.agent.kill()
        active(made, "PartageAgentDown")
        found = made.server.alerts()
        assert {
            name: rule.get("lastError", "") for name, rule in found.items() if rule["health"] != "ok"
        } == {}
        for rule in found.values():
            for alert in rule["alerts"]:
                assert "<no value>" not in str(alert["annotations"]), alert


def active(lab: Lab, *names: str) -> None:
    """Wait until they are pending or firing, and say of which node."""
    end = time.monotonic() + LIMIT_S
    missing = set(names)
    while missing:
        rules = lab.server.alerts()
        missing = {name for name in names if not rules[name]["alerts"]}
        assert time.monotonic() < end, f"not active within {LIMIT_S} s: {', '.join(sorted(missing))}"
        time.sleep(0.1)
    for name in names:
        for alert in lab.server.alerts()[name]["alerts"]:
            assert alert["labels"]["instance"] == "gpu-node-1"

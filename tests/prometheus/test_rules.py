"""The alert rules: promtool reads them and plays each one, and the page says what to do about each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from partage.model.xid import COUNTED_XIDS, RESET_XIDS
from partage.serve_http.metrics.metric_definitions import METRICS
from tests.prometheus.server import ROOT, RULES, needs_prometheus, promtool

PLAYED = Path(__file__).parent / "rules.test.yaml"
PAGE = ROOT / "docs" / "how-to" / "dashboards-and-alerts.md"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))


def rules() -> dict[str, Any]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@pytest.mark.real
@needs_prometheus
def test_promtool_reads_the_rules_and_every_one_alerts_when_it_should() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", PLAYED)
    played = yaml.safe_load(PLAYED.read_text())["tests"]
    seen = {(one["alertname"], bool(one["exp_alerts"])) for case in played for one in case["alert_rule_test"]}
    assert seen == {(name, fires) for name in rules() for fires in (True, False)}


def test_every_alert_says_what_it_is_and_what_to_do_and_is_on_the_page() -> None:
    page = PAGE.read_text()
    for name, rule in rules().items():
        assert rule["annotations"].keys() == {"summary", "description", "action"}
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert f"`{name}`" in page, name


def test_the_xids_that_alert_are_those_that_need_a_reset_and_are_counted_from_zero() -> None:
    (listed,) = re.findall(r'xid=~"([\d|]+)"', rules()["PartageGpuXid"]["expr"])
    assert {int(code) for code in listed.split("|")} == set(RESET_XIDS) <= set(COUNTED_XIDS)


@pytest.mark.parametrize("path", [RULES, *DASHBOARDS], ids=lambda path: path.stem)
def test_only_metrics_that_exist_are_asked_for(path: Path) -> None:
    known = {one.scraped_name for one in METRICS.values()}
    asked = set(re.findall(r"\bpartage_\w+", path.read_text()))
    assert asked
    assert asked <= known

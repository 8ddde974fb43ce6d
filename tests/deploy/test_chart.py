"""The chart, as helm rendered it last: what each part may do, and that its options exist.

``make chart`` renders it; here nothing but the results is read, so helm is not needed.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from partage.faces.cli.agent import command as agent_command
from partage.faces.cli.hardware import parser as hardware_parser
from partage.model.node_taints import NodeTaint
from partage.plan.cluster.rollout import RolloutSettings, settings_of

ROOT = Path(__file__).parents[2]
DEFAULT = ROOT / "deploy" / "manifests" / "partage.yaml"
ALL = Path(__file__).parent / "rendered" / "all.yaml"
ALONE = Path(__file__).parent / "rendered" / "alone.yaml"
RENDERED = (DEFAULT, ALL, ALONE)

Json = dict[str, Any]


def _renderer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_chart", ROOT / "deploy" / "render_chart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _objects(path: Path) -> dict[tuple[str, str], Json]:
    found = (one for one in yaml.safe_load_all(path.read_text()) if one)
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def _pod(path: Path, component: str) -> Json:
    daemon_set = _objects(path)["DaemonSet", f"partage-{component}"]
    spec: Json = daemon_set["spec"]["template"]["spec"]
    return spec


def _container(path: Path, component: str) -> Json:
    (container,) = _pod(path, component)["containers"]
    found: Json = container
    return found


def test_what_was_rendered_is_current() -> None:
    renderer = _renderer()
    stale = [
        str(path.relative_to(ROOT))
        for path, values in renderer.outputs().items()
        if not path.is_file() or not path.read_text().startswith(renderer.header(values))
    ]
    assert not stale, "the chart has changed: run make chart"


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_the_agent_has_no_privilege(path: Path) -> None:
    pod, container = _pod(path, "agent"), _container(path, "agent")
    assert not {"hostPID", "hostIPC", "hostNetwork"} & set(pod)
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "privileged" not in security
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths <= {
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/var/log/containers",
        "/run/partage",
        "/var/lib/partage",
        "/var/run/cdi",
    }


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_the_helper_has_no_token_and_no_network(path: Path) -> None:
    pod, container = _pod(path, "hardware"), _container(path, "hardware")
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert "hostNetwork" not in pod
    assert "--no-network" in container["args"]
    assert "--allow-container=partage/partage-agent-*/agent" in container["args"]


def _rules(path: Path) -> set[tuple[str, str, str]]:
    """Group, resource and verb of everything that is granted."""
    return {
        (group, resource, verb)
        for (kind, _), one in _objects(path).items()
        if kind in ("Role", "ClusterRole")
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


LEAST = {
    *(("", "nodes", verb) for verb in ("get", "list", "watch", "patch")),
    ("", "nodes/status", "patch"),
    ("events.k8s.io", "events", "create"),
    ("events.k8s.io", "events", "patch"),
}
ROLLOUT = {
    *(("coordination.k8s.io", "leases", verb) for verb in ("list", "watch", "update")),
    ("", "configmaps", "list"),
    ("", "configmaps", "watch"),
}
VIEWER = {("", kind, verb) for kind in ("nodes", "pods") for verb in ("list", "watch")}
DRAIN = {("", "pods", "get"), ("", "pods", "list"), ("", "pods/eviction", "create")}


@pytest.mark.parametrize(
    ("path", "granted"), [(DEFAULT, LEAST), (ALL, LEAST | DRAIN | ROLLOUT | VIEWER), (ALONE, set())]
)
def test_nothing_more_is_granted_than_is_used(path: Path, granted: set[tuple[str, str, str]]) -> None:
    assert _rules(path) == granted


def test_who_looks_at_the_cluster_may_read_and_nothing_else_and_is_not_the_agent() -> None:
    objects = _objects(ALL)
    (rule,) = objects["ClusterRole", "partage-viewer"]["rules"]
    assert {("", kind, verb) for kind in rule["resources"] for verb in rule["verbs"]} == VIEWER
    (subject,) = objects["ClusterRoleBinding", "partage-viewer"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "partage-viewer", "namespace": "partage"}
    assert objects["ServiceAccount", "partage-viewer"]["automountServiceAccountToken"] is False
    assert not any(name == "partage-viewer" for _, name in _objects(DEFAULT))


def test_a_rollout_can_be_read_by_agents_and_only_its_leases_be_written() -> None:
    objects = _objects(ALL)
    rules = objects["Role", "partage-rollout"]["rules"]
    leases = [f"partage-rollout-{number}" for number in range(2)]
    assert [rule.get("resourceNames") for rule in rules if "update" in rule["verbs"]] == [leases]
    assert [rule["resourceNames"] for rule in rules if rule["resources"] == ["configmaps"]] == [
        ["partage-rollout"]
    ]
    said = objects["ConfigMap", "partage-rollout"]["data"]
    assert settings_of(said, "") == RolloutSettings(2, {"pool": "test", "zone": "a"}, paused=True)
    for name in leases:
        assert objects["Lease", name]["metadata"]["labels"]["partage.dev/rollout"] == "partage-rollout"
    assert "--rollout=partage/partage-rollout" in _container(ALL, "agent")["args"]
    assert not any("rollout" in name for _, name in _objects(DEFAULT))


def test_without_an_api_server_there_is_no_token() -> None:
    assert _pod(ALONE, "agent")["automountServiceAccountToken"] is False
    assert _pod(DEFAULT, "agent")["automountServiceAccountToken"] is True


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_the_options_of_both_parts_exist(path: Path) -> None:
    arguments = [one.replace("$(NODE_NAME)", "node1") for one in _container(path, "agent")["args"]]
    # With the names of the real command: click remembers the help option of the first context.
    agent_command.make_context("partage agent", arguments, help_option_names=["-h", "--help"]).close()
    hardware_parser().parse_args(_container(path, "hardware")["args"])


def test_daemons_of_a_pod_outlive_an_upgrade_because_their_pod_is_not_replaced() -> None:
    strategies = {
        path: _objects(path)["DaemonSet", "partage-hardware"]["spec"]["updateStrategy"]["type"]
        for path in (DEFAULT, ALL)
    }
    assert strategies == {DEFAULT: "OnDelete", ALL: "RollingUpdate"}


def test_the_taints_of_the_agent_do_not_keep_its_pods_away() -> None:
    asked = [one.removeprefix("--taint=") for one in _container(ALL, "agent")["args"] if "--taint=" in one]
    assert asked == [one.value for one in NodeTaint]
    for part in ("agent", "hardware"):
        tolerated = {one["key"] for one in _pod(ALL, part)["tolerations"] if one["operator"] == "Exists"}
        assert tolerated >= {one.key for one in NodeTaint}
        assert len(_pod(DEFAULT, part)["tolerations"]) == 2


def test_every_value_is_documented() -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "partage" / "values.yaml").read_text())
    page = (ROOT / "docs" / "reference" / "chart.md").read_text()
    assert [key for key in values if f"`{key}" not in page] == []


def test_rules_and_dashboards_are_those_of_the_repository_and_off_by_default() -> None:
    objects = _objects(ALL)
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "partage.rules.yaml").read_text())
    installed = objects["PrometheusRule", "partage"]
    assert installed["spec"] == rules
    assert installed["metadata"]["labels"]["release"] == "prometheus"
    boards = objects["ConfigMap", "partage-dashboards"]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        path.name: json.loads(path.read_text()) for path in (ROOT / "deploy" / "grafana").glob("*.json")
    }
    assert not {("PrometheusRule", "partage"), ("ConfigMap", "partage-dashboards")} & set(_objects(DEFAULT))

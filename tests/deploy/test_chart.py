"""The chart, as helm rendered it last: what each part may do, and that its options exist.

``make chart`` renders it; here nothing but the results is read, so helm is not needed.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import jsonschema
import pytest
import yaml

from partage.admission.decide.settings import DialectSettings
from partage.admission.verb import command as admission_command
from partage.admission.verb import settings_of_options
from partage.admission.webhook import MAKERS, MUTATE, WRITE_WITHIN_S
from partage.claims.model.names import NVIDIA_NAMES, OWN_NAMES, Mode
from partage.cli import hardware_options
from partage.cli.agent import command as agent_command
from partage.model.node_labels import NodeTaint
from partage.plan.cluster.rollout import RolloutSettings, settings_of
from partage.plan.offer.policy_choice import Fallback
from partage.scheduler.verb import command as scheduler_command
from tests.admission.conditions import makers_condition, match_condition

DRIVER = OWN_NAMES.driver

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "partage"
DEFAULT = ROOT / "deploy" / "manifests" / "partage.yaml"
ALL = Path(__file__).parent / "rendered" / "all.yaml"
ALONE = Path(__file__).parent / "rendered" / "alone.yaml"
NVIDIA = Path(__file__).parent / "rendered" / "operator.yaml"
RENDERED = (DEFAULT, ALL, ALONE)

Json = dict[str, Any]


def _renderer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_chart", ROOT / "deploy" / "render_chart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _each(path: Path) -> list[tuple[tuple[str, str], Json]]:
    """All objects, with kind and name; several namespaces may have the same."""
    found = (one for one in yaml.load_all(path.read_text(), yaml.CSafeLoader) if one)
    return [((one["kind"], one["metadata"]["name"]), one) for one in found]


def _objects(path: Path) -> dict[tuple[str, str], Json]:
    return dict(_each(path))


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


def test_alerts_and_dashboards_of_the_chart_are_files_and_copies_of_the_originals() -> None:
    copies = _renderer().copies()
    assert set((CHART / "files").iterdir()) == set(copies)
    for copy, original in copies.items():
        assert not copy.is_symlink()
        assert copy.read_bytes() == original.read_bytes(), "run make chart"


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
        "/var/lib/kubelet/plugins/gpu.partage.dev",
        "/var/lib/kubelet/plugins_registry",
        "/var/log/containers",
        "/run/partage",
        "/var/lib/partage",
        "/var/run/cdi",
        "/etc/cdi",
        "/etc/kubernetes/node-feature-discovery/features.d",
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
_DRA = "resource.k8s.io"
SCHEDULER = VIEWER | {
    (_DRA, kind, verb)
    for kind in ("resourceslices", "resourceclaims", "deviceclasses")
    for verb in ("list", "watch")
}
CLAIMS = {
    *((_DRA, "resourceslices", verb) for verb in ("get", "list", "watch", "create", "update", "delete")),
    (_DRA, "resourceclaims", "get"),
    (_DRA, "resourceclaims", "list"),
    (_DRA, "resourceclaims/status", "patch"),
    (_DRA, "resourceclaims/driver", "associated-node:patch"),
}
ADMISSION = {
    ("", "nodes", "list"),
    ("", "nodes", "watch"),
    ("", "pods", "list"),
    ("", "resourcequotas", "list"),
    ("", "resourcequotas", "watch"),
    *((_DRA, kind, verb) for kind in ("resourceslices", "deviceclasses") for verb in ("list", "watch")),
    *((_DRA, "resourceclaimtemplates", verb) for verb in ("get", "list", "create", "patch", "delete")),
    ("apps", "deployments", "list"),
    *(("coordination.k8s.io", "leases", verb) for verb in ("list", "get", "update")),
    *(("admissionregistration.k8s.io", "mutatingwebhookconfigurations", verb) for verb in ("get", "update")),
    *(("", "secrets", verb) for verb in ("list", "watch", "update")),
}
DRAIN = {("", "pods", "list"), ("", "pods/eviction", "create")}
CLAIMS = {
    *(("resource.k8s.io", "resourceslices", verb) for verb in ("get", "list", "watch")),
    *(("resource.k8s.io", "resourceslices", verb) for verb in ("create", "update", "delete")),
    *(("resource.k8s.io", "resourceclaims", verb) for verb in ("get", "list")),
    ("resource.k8s.io", "resourceclaims/status", "patch"),
    ("resource.k8s.io", "resourceclaims/driver", "associated-node:patch"),
}


@pytest.mark.parametrize(
    ("path", "granted"),
    [
        (DEFAULT, LEAST),
        (ALL, LEAST | DRAIN | ROLLOUT | VIEWER | SCHEDULER | CLAIMS | ADMISSION),
        (ALONE, set()),
    ],
)
def test_nothing_more_is_granted_than_is_used(path: Path, granted: set[tuple[str, str, str]]) -> None:
    assert _rules(path) == granted


WORDS = Path(__file__).parent / "rendered" / "words.yaml"


def test_a_name_that_looks_like_something_else_stays_a_name() -> None:
    """``off``, ``010``, ``1.10``, ``null`` are policies, and ``1e3`` is a namespace."""
    values = yaml.safe_load((Path(__file__).parent / "values" / "words.yaml").read_text())
    objects = _objects(WORDS)
    assert objects["ConfigMap", "010-policies"]["data"] == values["config"]["map"]
    agent, hardware = (objects["DaemonSet", f"010-{part}"] for part in ("agent", "hardware"))
    for one in (agent, hardware):
        pod = one["spec"]["template"]
        selector = {"app.kubernetes.io/name": "on", "app.kubernetes.io/instance": "partage"}
        assert one["spec"]["selector"]["matchLabels"].items() >= selector.items()
        assert pod["metadata"]["labels"].items() >= {**selector, **values["podLabels"]}.items()
        assert pod["metadata"]["annotations"] == values["podAnnotations"]
        assert (pod["spec"]["priorityClassName"], pod["spec"]["runtimeClassName"]) == ("1e9", "no")
        assert pod["spec"]["nodeSelector"] == values["nodeSelector"]
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "10:30"
        assert f"--run-dir={values['runDir']}" in container["args"]
        paths = {volume["hostPath"]["path"] for volume in pod["spec"]["volumes"] if "hostPath" in volume}
        assert values["runDir"] in paths
        assert values["runDir"] in {mount["mountPath"] for mount in container["volumeMounts"]}
    args = agent["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--config=1.10", "1.10", "--rollout=1e3/010-rollout"} <= set(args)
    assert {"--machine=0x10", "off"} <= set(hardware["spec"]["template"]["spec"]["containers"][0]["args"])
    assert agent["spec"]["template"]["spec"]["serviceAccountName"] == "true"
    assert objects["ServiceMonitor", "010-agent"]["spec"]["endpoints"][0]["interval"] == "1:30"
    names = [(one["metadata"]["name"], one["metadata"].get("namespace")) for _, one in _each(WORDS)]
    assert all(isinstance(name, str) for name, _ in names)
    assert {namespace for _, namespace in names} == {None, "1e3", "1e5", "off"}


_NO_OUTPUT = r"end|if |else|with |range |define |include \"partage.(?:labels|selector|placement)\""
_OUTPUT = re.compile(rf"\{{\{{-? (?!{_NO_OUTPUT})(.*?) ?-?\}}\}}")
_SAFE = re.compile(
    r"\| (quote|toJson|nindent \d+)$|^\$|^fail |^/\*|^toYaml .* \| nindent|^int |^base \$path$"
)


@pytest.mark.parametrize("path", sorted((CHART / "templates").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_value_that_a_template_writes_is_quoted(path: Path) -> None:
    """As YAML, or as a number or a switch, which the schema knows."""
    schema_knows = (".Values.metrics.port", ".Values.cluster.enabled", 'ternary "RollingUpdate" "OnDelete"')
    bare = [
        found
        for found in _OUTPUT.findall(path.read_text())
        if not _SAFE.search(found) and not found.startswith(schema_knows)
    ]
    assert bare == []


def test_a_config_map_that_is_deleted_keeps_no_agent_from_starting() -> None:
    for path, name in ((ALL, "partage-policies"), (ALONE, "my-policies")):
        (volume,) = (one for one in _pod(path, "agent")["volumes"] if one["name"] == "policies")
        assert volume["configMap"] == {"name": name, "optional": True}


def test_the_right_to_evict_can_be_that_of_some_namespaces() -> None:
    granted = {
        (kind, one["metadata"].get("namespace"))
        for (kind, _), one in _each(WORDS)
        if kind in ("Role", "ClusterRole")
        for rule in one["rules"]
        if "pods/eviction" in rule["resources"]
    }
    assert granted == {("Role", "1e5"), ("Role", "off")}
    bound = [one for (kind, name), one in _each(WORDS) if (kind, name) == ("RoleBinding", "010-evictions")]
    assert [one["subjects"] for one in bound] == [
        [{"kind": "ServiceAccount", "name": "true", "namespace": "1e3"}]
    ] * 2


def test_who_looks_at_the_cluster_may_read_and_nothing_else_and_is_not_the_agent() -> None:
    objects = _objects(ALL)
    (rule,) = objects["ClusterRole", "partage-viewer"]["rules"]
    assert {("", kind, verb) for kind in rule["resources"] for verb in rule["verbs"]} == VIEWER
    (subject,) = objects["ClusterRoleBinding", "partage-viewer"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "partage-viewer", "namespace": "partage"}
    assert objects["ServiceAccount", "partage-viewer"]["automountServiceAccountToken"] is False
    assert not any(name == "partage-viewer" for _, name in _objects(DEFAULT))


def test_the_extender_only_reads_has_two_replicas_and_options_that_exist() -> None:
    objects = _objects(ALL)
    granted = {
        (group, kind, verb)
        for rule in objects["ClusterRole", "partage-scheduler"]["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == SCHEDULER
    deployment = objects["Deployment", "partage-scheduler"]["spec"]
    assert deployment["replicas"] == 2
    labels = deployment["template"]["metadata"]["labels"]
    for selector in (
        deployment["selector"]["matchLabels"],
        objects["Service", "partage-scheduler"]["spec"]["selector"],
        objects["PodDisruptionBudget", "partage-scheduler"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert not selector.items() <= _objects(ALL)["DaemonSet", "partage-agent"]["spec"]["selector"].items()
    (container,) = deployment["template"]["spec"]["containers"]
    program, verb, *options = container["command"]
    assert (program, verb) == ("partage", "scheduler")
    with scheduler_command.make_context(
        "scheduler", [*options], help_option_names=["-h", "--help"]
    ) as context:
        assert context.params["http"] == ":9402"
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    files = {
        value.rpartition("/")[0] for option in options for value in [option.partition("=")[2]] if "/" in value
    }
    assert files == mounted
    assert not any("scheduler" in name for _, name in _objects(DEFAULT))


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


def test_each_way_to_ask_by_claim_has_one_class_and_no_other_driver_has_it() -> None:
    objects = _objects(ALL)
    classes = {name: one["spec"] for (kind, name), one in objects.items() if kind == "DeviceClass"}
    modes = []
    for spec in classes.values():
        (selector,) = spec["selectors"]
        # The driver is asked for first: devices of another one have no such attribute, which is an error.
        found = re.fullmatch(
            rf"""device\.driver == "{DRIVER}" && device\.attributes\["{DRIVER}"\]\.mode in (\[.*\])""",
            selector["cel"]["expression"],
        )
        assert found, selector
        modes += json.loads(found[1])
    assert sorted(modes) == sorted(Mode)
    assert {name: spec.get("extendedResourceName") for name, spec in classes.items()} == {
        "gpu.partage.dev": "nvidia.com/gpu",
        "share.partage.dev": None,
        "mig.partage.dev": None,
    }
    assert not any(kind == "DeviceClass" for kind, _ in _objects(DEFAULT))


def test_under_the_names_of_nvidias_driver_nothing_has_partages() -> None:
    objects = _objects(NVIDIA)
    specs = {name: one["spec"] for (kind, name), one in objects.items() if kind == "DeviceClass"}
    driver = NVIDIA_NAMES.driver
    for name, of in (("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig")):
        (selector,) = specs[name]["selectors"]
        asked = f'device.driver == "{driver}" && device.attributes["{driver}"].type in ["{of}"]'
        assert selector["cel"]["expression"] == asked
    assert {name: spec.get("extendedResourceName") for name, spec in specs.items()} == {
        "gpu.nvidia.com": "nvidia.com/gpu",
        "mig.nvidia.com": None,
    }
    assert "--dra-driver-name=gpu.nvidia.com" in _container(NVIDIA, "agent")["args"]
    mounted = {mount["mountPath"] for mount in _container(NVIDIA, "agent")["volumeMounts"]}
    assert f"/var/lib/kubelet/plugins/{driver}" in mounted
    rules = objects["ClusterRole", "partage-claims"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [[driver]]
    policy = objects["ValidatingAdmissionPolicy", "partage-own-slices-only"]["spec"]
    assert f'variables.slice.spec.driver == "{driver}"' in {
        one["expression"] for one in policy["validations"]
    }


def test_an_agent_writes_only_what_claims_have_of_its_own_driver() -> None:
    rules = _objects(ALL)["ClusterRole", "partage-claims"]["rules"]
    named = [rule.get("resourceNames") for rule in rules if "resourceclaims/driver" in rule["resources"]]
    assert named == [[DRIVER]]
    policy = _objects(ALL)["ValidatingAdmissionPolicy", "partage-own-slices-only"]["spec"]
    (asked,) = policy["matchConstraints"]["resourceRules"]
    written = {verb for group, kind, verb in CLAIMS if kind == "resourceslices"} - {"get", "list", "watch"}
    assert {operation.lower() for operation in asked["operations"]} == written
    (condition,) = policy["matchConditions"]
    (account,) = _objects(ALL)["ClusterRoleBinding", "partage-claims"]["subjects"]
    who = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert condition["expression"] == f'request.userInfo.username == "{who}"'
    assert policy["failurePolicy"] == "Fail"
    binding = _objects(ALL)["ValidatingAdmissionPolicyBinding", "partage-own-slices-only"]["spec"]
    assert binding == {"policyName": "partage-own-slices-only", "validationActions": ["Deny"]}


def test_the_sockets_of_an_agent_have_the_name_of_its_pod() -> None:
    (uid,) = (one for one in _container(ALL, "agent")["env"] if one["name"] == "POD_UID")
    assert uid["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert "--dra" in _container(ALL, "agent")["args"]
    assert "--dra" not in _container(DEFAULT, "agent")["args"]
    assert "--dra-counters" not in _container(ALL, "agent")["args"]


def test_without_an_api_server_there_is_no_token() -> None:
    assert _pod(ALONE, "agent")["automountServiceAccountToken"] is False
    assert _pod(DEFAULT, "agent")["automountServiceAccountToken"] is True


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_the_options_of_both_parts_exist(path: Path) -> None:
    arguments = [one.replace("$(NODE_NAME)", "node1") for one in _container(path, "agent")["args"]]
    # With the names of the real command: click remembers the help option of the first context.
    agent_command.make_context("partage agent", arguments, help_option_names=["-h", "--help"]).close()
    hardware_options.parse(_container(path, "hardware")["args"])


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


SCHEMA: Json = json.loads((CHART / "values.schema.json").read_text())


def _problems(text: str) -> list[str]:
    """What helm says of these values."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    values = _without_nulls(yaml.safe_load(text))
    return [
        f"{one.json_path} {one.message}" for one in jsonschema.Draft7Validator(SCHEMA).iter_errors(values)
    ]


def _without_nulls(values: Any) -> Any:
    """Helm takes a value away that is set to null."""
    if not isinstance(values, dict):
        return values
    return {key: _without_nulls(one) for key, one in values.items() if one is not None}


def _keys(part: Json, schema: Json, path: str = "") -> list[tuple[str, bool, bool]]:
    """Keys of values and of their schema; whether the one has it, and the other."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    if schema.get("additionalProperties") is not False:
        return []
    found: list[tuple[str, bool, bool]] = []
    for key in part.keys() | schema["properties"].keys():
        found.append((f"{path}{key}", key in part, key in schema["properties"]))
        if isinstance(part.get(key), dict):
            found += _keys(part[key], schema["properties"].get(key, {}), f"{path}{key}.")
    return found


@pytest.mark.parametrize(
    "path",
    [CHART / "values.yaml", *CHART.glob("presets/*.yaml"), *Path(__file__).parent.glob("values/*.yaml")],
    ids=lambda path: path.stem,
)
def test_values_of_the_chart_and_of_the_tests_are_those_of_the_schema(path: Path) -> None:
    assert _problems(path.read_text()) == []


def test_the_schema_has_the_values_of_the_chart_and_no_others() -> None:
    compared = _keys(yaml.safe_load((CHART / "values.yaml").read_text()), SCHEMA)
    assert len(compared) > 60
    assert {key for key, in_values, in_schema in compared if in_values is not in_schema} == {"global"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cluster: {drian: true}", "$.cluster"),
        ("gfd: {enabled: true}", "'gfd' was unexpected"),
        ("cluster: {labels: some}", "$.cluster.labels"),
        ("cluster: {taints: [unhealthy]}", "$.cluster.taints"),
        ("hardware: {mpsDaemons: host}", "$.hardware.mpsDaemons"),
        ("config: {map: {default: {version: partage/v1}}}", "$.config.map.default"),
        ("config: {fallbackStrategies: [first]}", "$.config.fallbackStrategies"),
        ("rollout: {maxChanging: 25%}", "$.rollout.maxChanging"),
        ("rollout: {maxChanging: 101}", "$.rollout.maxChanging"),
        ("metrics: {dcgmNames: off}", "$.metrics.dcgmNames"),
        ("driverRoot: run/nvidia/driver", "$.driverRoot"),
        ("dra: {counters: never}", "$.dra.counters"),
        ("dra: {driverName: gpu.example.com}", "$.dra.driverName"),
        ("dra: {extendedResources: {nvidia.com/gpu: gpu.example.com}}", "$.dra.extendedResources"),
        ("dra: {extendedResources: {gpu: gpu.partage.dev}}", "$.dra.extendedResources"),
    ],
)
def test_values_that_would_have_no_effect_or_break_the_pods_are_refused(text: str, said: str) -> None:
    (problem,) = _problems(text)
    assert said in problem


def _choices(command: click.Command, option: str) -> list[str]:
    (found,) = (one for one in command.params if option in one.opts)
    kind = found.type
    assert isinstance(kind, click.Choice)
    return list(kind.choices)


def test_the_schema_has_the_words_that_the_agent_takes() -> None:
    values = SCHEMA["properties"]
    cluster = values["cluster"]["properties"]
    assert cluster["labels"]["enum"] == _choices(agent_command, "--labels")
    assert cluster["taints"]["items"]["enum"] == _choices(agent_command, "--taint")
    assert values["metrics"]["properties"]["dcgmNames"]["enum"] == _choices(agent_command, "--dcgm-names")
    assert values["agent"]["properties"]["logLevel"]["enum"] == _choices(agent_command, "--log-level")
    assert values["config"]["properties"]["fallbackStrategies"]["items"]["enum"] == list(Fallback)


def test_every_value_is_documented() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
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


def test_the_webhook_is_called_for_pods_of_other_systems_alone_and_never_stops_the_cluster() -> None:
    objects = _objects(ALL)
    configuration = objects["MutatingWebhookConfiguration", "partage-admission"]
    webhook, makers = configuration["webhooks"]
    assert makers["matchConditions"] == [makers_condition()]
    assert {kind for rule in makers["rules"] for kind in rule["resources"]} == {
        f"{kind.kind.lower()}s" for kind in MAKERS
    }
    assert {rule["apiGroups"][0] for rule in makers["rules"]} == {kind.group for kind in MAKERS}
    for key in ("clientConfig", "namespaceSelector", "objectSelector", "failurePolicy", "timeoutSeconds"):
        assert makers[key] == webhook[key]
    assert webhook["matchConditions"] == [
        match_condition(DialectSettings(hami_memory="example.com/mem", default_gpus=2))
    ]
    assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Fail", "NoneOnDryRun")
    assert WRITE_WITHIN_S + 1 < webhook["timeoutSeconds"] <= 10
    (rule,) = webhook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    by_name, by_label = webhook["namespaceSelector"]["matchExpressions"]
    assert {"kube-system", "partage", "monitoring"} <= {*by_name["values"]}
    assert by_name["operator"] == by_label["operator"] == "NotIn"
    service = objects["Service", "partage-admission"]
    assert webhook["clientConfig"]["service"] == {
        "name": "partage-admission",
        "namespace": service["metadata"]["namespace"],
        "path": MUTATE,
        "port": service["spec"]["ports"][0]["port"],
    }
    assert "caBundle" not in webhook["clientConfig"]
    assert ("MutatingWebhookConfiguration", "partage-admission") not in _objects(DEFAULT)


def test_the_webhook_may_write_templates_and_its_own_objects_alone() -> None:
    objects = _objects(ALL)
    writes = {
        (kind, verb, tuple(rule.get("resourceNames", ())))
        for key in (("ClusterRole", "partage-admission"), ("Role", "partage-admission"))
        for rule in objects[key]["rules"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    }
    own = ("partage-admission",)
    assert writes == {
        ("resourceclaimtemplates", "create", ()),
        ("resourceclaimtemplates", "patch", ()),
        ("resourceclaimtemplates", "delete", ()),
        ("mutatingwebhookconfigurations", "update", own),
        ("leases", "update", own),
        ("secrets", "update", ("partage-admission-tls",)),
    }
    assert objects["Secret", "partage-admission-tls"]["type"] == "Opaque"
    assert "data" not in objects["Secret", "partage-admission-tls"]


def test_the_webhook_has_two_replicas_and_options_that_exist() -> None:
    objects = _objects(ALL)
    deployment = objects["Deployment", "partage-admission"]["spec"]
    assert deployment["replicas"] == 2
    labels = deployment["template"]["metadata"]["labels"]
    for selector in (
        deployment["selector"]["matchLabels"],
        objects["Service", "partage-admission"]["spec"]["selector"],
        objects["PodDisruptionBudget", "partage-admission"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert selector["app.kubernetes.io/component"] == "admission"
    (container,) = deployment["template"]["spec"]["containers"]
    program, verb, *options = container["command"]
    assert (program, verb) == ("partage", "admission")
    with admission_command.make_context(
        "admission", [*options], help_option_names=["-h", "--help"]
    ) as context:
        assert context.params["name"] == "partage-admission"
        assert context.params["schedulers"] == ("auto", "volcano")
        settings = settings_of_options(context.params["hami"], 1)
    assert settings == DialectSettings(hami_memory="example.com/mem", default_gpus=2, gpu_mem_bytes=1)
    probed = {container[probe]["httpGet"]["scheme"] for probe in ("readinessProbe", "livenessProbe")}
    assert probed == {"HTTPS"}
    assert not {"volumes", "volumeMounts"} & ({*deployment["template"]["spec"]} | {*container})


def test_with_a_secret_of_its_own_the_webhook_makes_no_certificate() -> None:
    objects = _objects(WORDS)
    (container,) = objects["Deployment", "010-admission"]["spec"]["template"]["spec"]["containers"]
    files = [one for one in container["command"] if one.startswith(("--http-cert", "--http-key", "--ca"))]
    (mount,) = container["volumeMounts"]
    assert [one.partition("=")[2].rpartition("/")[0] for one in files] == [mount["mountPath"]] * 3
    assert ("Secret", "010-admission-tls") not in objects
    (lease,) = [name for kind, name in objects if kind == "Lease" and "admission" in name]
    assert lease == "010-admission-files"
    rules = objects["Role", "010-admission"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "leases" in rule["resources"]] == [[lease]]
    assert not any("secrets" in rule["resources"] for rule in objects["Role", "010-admission"]["rules"])
    assert {"--keep-scheduler=off", "--hami=defaultMemory=1000000"} <= {*container["command"]}

"""The same recordings once more, against a real agent: real sockets, an independent gRPC client.

What the ground decides is compared in ``test_device_plugin``; here it is compared as a kubelet receives it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from partage.edges.kubelet.sockets import plain_name
from tests.agent.harness import Place, place, registered, run_to_end
from tests.agent.hosted import hosted
from tests.examples import variants
from tests.golden import test_device_plugin as golden
from tests.kubelet_script import Registered, ScriptedKubelet, scripted_kubelet

Json = Any


def _files(node: Place, machine: str, name: str) -> dict[str, Any]:
    """The recording's machine and configuration, each in a file of its own, and its environment."""
    recording = golden._recording(machine)
    (node.root / "machine.json").write_text(json.dumps(recording["machine"]))
    case = recording["cases"][name]
    return {
        "machine": str(node.root / "machine.json"),
        "policy": json.dumps(case["config"]),
        "env": case["env"],
        "http": False,
    }


def _hosted(files: dict[str, Any]) -> dict[str, Any]:
    """The same for an agent in this process."""
    return {"machine": files["machine"], "policy": files["policy"], "environ": files["env"]}


@pytest.mark.parametrize(("machine", "name"), variants(golden._cases(refused=True), 3))
def test_the_agent_ends_at_once_where_nvidias_does(machine: str, name: str) -> None:
    with place() as node, scripted_kubelet(node.kubelet_dir, node.pod_resources) as kubelet:
        code, log = run_to_end(node, **_files(node, machine, name))
        assert code == 2, log
        assert kubelet.registered == []


@pytest.mark.parametrize(("machine", "name"), golden._cases(refused=False))
def test_the_kubelet_receives_what_nvidias_plugin_sends(machine: str, name: str) -> None:
    with (
        place() as node,
        scripted_kubelet(node.kubelet_dir, node.pod_resources) as kubelet,
        hosted(node, **_hosted(_files(node, machine, name))),
    ):
        _check_answers(node, kubelet, machine, name)


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("none-volume", {"DEVICE_LIST_STRATEGY": "volume-mounts"}),
        ("none-index", {"DEVICE_ID_STRATEGY": "index"}),
        ("none-specs", {"PASS_DEVICE_SPECS": "true"}),
    ],
)
def test_variables_without_a_file_bring_the_answers_of_the_file(name: str, env: dict[str, str]) -> None:
    with place() as node, scripted_kubelet(node.kubelet_dir, node.pod_resources) as kubelet:
        files = {**_files(node, "h100", name), "policy": None, "env": env}
        with hosted(node, **_hosted(files)):
            _check_answers(node, kubelet, "h100", name)


def _check_answers(node: Place, kubelet: ScriptedKubelet, machine: str, name: str) -> None:
    for resource in golden._theirs(machine, name):
        plugin = registered(kubelet, resource["register"]["resource_name"])
        # Each registration has a socket of its own (docs/adr/0126); nobody knows it by its name.
        request = _dict(plugin.request)
        assert request | {"endpoint": plain_name(request["endpoint"])} == resource["register"]
        assert _dict(plugin.options) == resource["options"]
        assert plugin.watch is not None
        assert plugin.watch.health == {row["ID"]: row["health"] for row in resource["devices"]}
        for call in resource["allocate"]:
            _check_allocate(plugin, call, golden._ours(machine, name), node.run_dir)


def _check_allocate(plugin: Registered, call: Json, ours: golden._Ours, run_dir: Path) -> None:
    assert plugin.calls is not None
    expected = call["response"]
    if "error" in expected:
        with pytest.raises(grpc.RpcError) as refusal:
            plugin.calls.allocate(call["ids"])
        refused: Any = refusal.value
        assert refused.code().name == expected["error"]
        assert refused.details() == expected["details"]
        return
    text = json.dumps(_dict(plugin.calls.allocate(call["ids"]))).replace(str(run_dir), golden._RUN_DIR)
    answer = golden._in_any_order(golden._without_partage_variables(json.loads(text)))
    assert answer == golden._expected(call, ours)


def _dict(message: Any) -> Json:
    return MessageToDict(message, preserving_proto_field_name=True)

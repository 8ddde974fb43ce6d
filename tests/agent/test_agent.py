"""The agent as a process: real sockets, a real helper, a kubelet that shares no gRPC code with it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from partage.edges.files.directory_lock import take_lock
from partage.errors import PartageError
from tests.agent.harness import (
    MACHINE,
    Place,
    healthy,
    ids,
    native,
    registered,
    run_to_end,
    running,
    spawn,
)
from tests.agent.hosted import hosted
from tests.kubelet_script import ScriptedKubelet, held, scripted_kubelet, wait_for

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
HALF = native("{select: {index: [0, 1, 2, 3]}, time-slicing: {replicas: 4}}")


def test_without_a_policy_every_gpu_is_offered_exclusively(node: Place, kubelet: ScriptedKubelet) -> None:
    with hosted(node) as agent:
        registered(kubelet, GPU)
        assert len(healthy(kubelet, GPU)) == 8
        agent.wait(lambda: agent.health() == (200, []), "healthy")
        document = agent.report()
        assert document["apiVersion"] == "partage/v1"
        assert document["policy"]["state"] == "built-in"
        assert [(row["name"], row["count"], row["registered"]) for row in document["resources"]] == [
            (GPU, 8, True)
        ]


def test_a_pod_gets_a_share_and_the_ledger_learns_whose_it_is(node: Place, kubelet: ScriptedKubelet) -> None:
    with hosted(node, policy=HALF) as agent:
        calls = registered(kubelet, SHARED).calls
        registered(kubelet, GPU)
        assert (len(ids(kubelet, SHARED)), len(ids(kubelet, GPU))) == (16, 4)
        assert calls is not None
        share = calls.preferred(ids(kubelet, SHARED), [], 1)
        answer = calls.allocate(share)
        assert answer.envs["PARTAGE_SHARES"] == share[0]
        assert answer.envs["PARTAGE_STRATEGY"] == "time-slicing"
        kubelet.pod_resources = held({"default/pod": {"main": {SHARED: share}}})
        agent.wait(
            lambda: [row["certainty"] for row in agent.report()["held"]] == ["observed"],
            "the holder observed",
        )
        assert agent.report()["held"][0]["holders"] == [
            {"namespace": "default", "pod": "pod", "container": "main"}
        ]


def test_a_share_that_is_not_listed_is_refused_in_nvidias_words(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    with hosted(node) as agent:
        calls = registered(kubelet, GPU).calls
        assert calls is not None
        words = f'invalid allocation request for "{GPU}": invalid request: unknown device: GPU-none'
        with pytest.raises(grpc.RpcError, match=re.escape(words)):
            calls.allocate(["GPU-none"])
        line = f'partage_allocations_refused_total{{resource="{GPU}"}}'
        agent.wait(lambda: agent.metric(line) == 1.0, "the refusal counted")


def test_a_long_id_is_refused_in_few_words_and_holds_up_nobody(node: Place, kubelet: ScriptedKubelet) -> None:
    with running(spawn(node)) as agent:
        calls = registered(kubelet, GPU).calls
        assert calls is not None
        for ask in (
            lambda: calls.allocate(["x" * 10**6]),
            lambda: calls.preferred([], ["\u00e9" * 10**6], 1),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                ask()
            refusal: Any = refused.value
            assert (refusal.code(), len(refusal.details())) == (grpc.StatusCode.UNKNOWN, 500)
        assert max(map(len, agent.log)) < 1000


def test_a_start_with_an_unknown_id_holds_nothing(node: Place, kubelet: ScriptedKubelet) -> None:
    with hosted(node) as agent:
        calls = registered(kubelet, GPU).calls
        assert calls is not None
        calls.pre_start(["GPU-none", "x" * 10**6])
        calls.pre_start(ids(kubelet, GPU)[:1])
        agent.wait(lambda: agent.report()["held"], "the known one")
        assert [row["id"] for row in agent.report()["held"]] == ids(kubelet, GPU)[:1]
        assert len(ids(kubelet, GPU)) == 8


def test_a_held_gpu_waits_and_the_others_change_at_once(node: Place, kubelet: ScriptedKubelet) -> None:
    with hosted(node) as agent:
        calls = registered(kubelet, GPU).calls
        first, second = ids(kubelet, GPU)[:2]
        assert calls is not None
        calls.allocate([first])
        kubelet.pod_resources = held({"default/trainer": {"main": {GPU: [first]}}})
        agent.wait(lambda: agent.gpu(0).get("held") == 1, "the first GPU held")

        node.write_policy(native("{select: {index: [0, 1]}, time-slicing: {replicas: 4}}"))
        registered(kubelet, GPU)
        assert agent.stop() == 0

    with hosted(node, policy=HALF) as agent:
        registered(kubelet, SHARED)
        agent.wait(lambda: agent.gpu(0).get("phase") == "waiting", "the held GPU waits after a restart, too")
        waiting = agent.gpu(0)
        assert waiting["strategy"] == "exclusive"
        assert waiting["wantedStrategy"] == "time-slicing"
        assert [entry["holders"][0]["pod"] for entry in waiting["waitingFor"]] == ["trainer"]
        assert first in healthy(kubelet, GPU), "others are free: it takes none of them away"
        agent.wait(lambda: second not in ids(kubelet, GPU), "the id of the GPU that has changed")
        assert len(ids(kubelet, SHARED)) == 12

        kubelet.pod_resources = held({})
        agent.wait(lambda: len(ids(kubelet, SHARED)) == 16, "the GPU changes once the pod has ended", 30)
        assert first not in healthy(kubelet, GPU)


def test_a_reload_changes_free_gpus_and_leaves_streams_of_others_alone(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, policy=HALF) as agent:
        calls = registered(kubelet, SHARED).calls
        registered(kubelet, GPU)
        share = ids(kubelet, SHARED)[0]
        assert calls is not None
        calls.allocate([share])
        kubelet.pod_resources = held({"default/notebook": {"main": {SHARED: [share]}}})
        agent.wait(lambda: agent.gpu(0).get("held") == 1, "the share held")

        node.write_policy(
            HALF.replace("replicas: 4", "replicas: 2")
            + "  - {select: {index: [7]}, name: big, exclusive: {}}\n"
        )
        registered(kubelet, "nvidia.com/big")
        agent.wait(lambda: len(ids(kubelet, SHARED)) == 3 * 2 + 1, "three GPUs in two, one share still held")
        assert share in healthy(kubelet, SHARED)
        assert len(healthy(kubelet, GPU)) == 3
        assert agent.gpu(0)["phase"] == "waiting"
        assert agent.metric('partage_policy_reloads_total{result="ok"}') == 2.0

        kubelet.pod_resources = held({})
        agent.wait(lambda: len(ids(kubelet, SHARED)) == 8, "all four GPUs in two", 30)


def test_scenario_12_an_invalid_reload_changes_nothing_and_says_so(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, policy=HALF) as agent:
        registered(kubelet, SHARED)
        node.write_policy("version: partage/v1\ngpus:\n  - {select: all, time-slicing: {replicas: 1}}\n")
        agent.wait(lambda: "policy-refused" in agent.degraded(), "the refusal reported")
        assert agent.health()[0] == 200
        assert agent.report()["policy"]["state"] == "last-good"
        assert "replicas" in agent.report()["policy"]["problems"][0]["path"]
        assert agent.metric("partage_policy_valid") == 0.0
        assert len(healthy(kubelet, SHARED)) == 16

        node.write_policy(native("{select: {index: [9]}, time-slicing: {replicas: 4}}"))
        failed = 'partage_policy_reloads_total{result="failed"}'
        agent.wait(lambda: agent.metric(failed) == 2.0, "a GPU that is not there refused")
        assert "index" in agent.report()["policy"]["problems"][0]["path"]
        assert len(healthy(kubelet, SHARED)) == 16

        node.write_policy(HALF)
        agent.wait(lambda: agent.metric("partage_policy_valid") == 1.0, "the good one again")
        assert agent.degraded() == []


def test_a_config_map_swap_is_noticed(node: Place, kubelet: ScriptedKubelet) -> None:
    """The kubelet swaps a symlink to a directory; the file's own path never changes."""
    first, second = node.root / "..v1", node.root / "..v2"
    for folder, text in ((first, HALF), (second, native("{select: all, time-slicing: {replicas: 2}}"))):
        folder.mkdir()
        (folder / "policy.yaml").write_text(text, encoding="utf-8")
    (node.root / "..data").symlink_to(first.name)
    node.policy.symlink_to("..data/policy.yaml")
    with hosted(node, policy=node.policy) as agent:
        registered(kubelet, SHARED)
        (node.root / "..tmp").symlink_to(second.name)
        (node.root / "..tmp").rename(node.root / "..data")
        agent.wait(lambda: len(ids(kubelet, SHARED)) == 16 and not ids(kubelet, GPU), "all GPUs in two")


def test_a_kubelet_that_restarts_gets_everything_again(node: Place, kubelet: ScriptedKubelet) -> None:
    with hosted(node, policy=HALF) as agent:
        registered(kubelet, SHARED)
        registered(kubelet, GPU)
        kubelet.registered.clear()
        began = kubelet.restart()
        registered(kubelet, SHARED)
        registered(kubelet, GPU)
        assert time.monotonic() - began < 2.0
        assert len(healthy(kubelet, SHARED)) == 16
        agent.wait(lambda: agent.health() == (200, []), "healthy again")


def test_a_kubelet_that_never_answers_is_told_by_healthz(node: Place) -> None:
    with scripted_kubelet(node.kubelet_dir, node.pod_resources, started=False) as kubelet:
        kubelet.answers = False
        kubelet.start()
        with hosted(node) as agent:
            wait_for(lambda: kubelet.registered, what="an attempt to register")
            agent.wait(lambda: agent.health()[0] == 503, "not healthy")
            assert set(agent.health()[1]) <= {"not-registered", "kubelet-silent"}
            assert agent.get("/livez")[0] == 200


def test_pod_resources_that_refuses_every_call_costs_names_and_nothing_else(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    kubelet.pod_resources = grpc.StatusCode.RESOURCE_EXHAUSTED
    with hosted(node, policy=HALF) as agent:
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        for share in ids(kubelet, SHARED)[:3]:
            calls.allocate([share])
        agent.wait(lambda: "holders-unknown" in agent.degraded(), "the refusals told")
        agent.wait(
            lambda: agent.metric(f'partage_shares_held{{certainty="tentative",resource="{SHARED}"}}') == 3.0
        )
        assert agent.health()[0] == 200
        assert kubelet.list_calls < 8


def test_the_helper_killed_is_replaced_and_nothing_is_interrupted(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    with running(spawn(node)) as agent:
        calls = registered(kubelet, GPU).calls
        assert calls is not None
        helper = agent.wait(agent.helper_pid)
        os.kill(helper, signal.SIGKILL)
        assert calls.allocate(ids(kubelet, GPU)[:1]).envs
        agent.wait(lambda: agent.helper_pid() not in (None, helper), "another helper")
        agent.wait(lambda: agent.metric("partage_helper_restarts_total") == 1.0, "the restart counted")
        agent.wait(lambda: agent.health() == (200, []), "healthy again")
        assert len(kubelet.registered) == 1
        assert len(healthy(kubelet, GPU)) == 8


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("version: partage/v1\ngpus: 7\n", 2),
        ("", 2),
        (native("{select: {index: [8]}, exclusive: {}}"), 3),
        (native("{select: {index: [0]}, mig: {layout: [7g.80gb, 1g.10gb]}}"), 3),
        (native("{select: all, mps: {replicas: 49}}"), 3),
    ],
    ids=["wrong type", "empty", "no such GPU", "impossible layout", "too many clients"],
)
def test_a_bad_policy_ends_the_agent_before_anything_is_registered(
    node: Place, kubelet: ScriptedKubelet, policy: str, code: int
) -> None:
    with (
        pytest.raises(PartageError, match=re.escape(str(node.policy))) as refused,
        hosted(node, policy=policy),
    ):
        pass
    assert refused.value.exit_code == code
    assert kubelet.registered == []


def test_an_agent_that_ends_by_itself_says_why_and_has_its_errors_exit_code(node: Place) -> None:
    code, log = run_to_end(node, policy=native("{select: {index: [8]}, exclusive: {}}"))
    assert code == 3
    assert str(node.policy) in log


def test_the_last_good_policy_stands_in_for_a_bad_one_at_the_start(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    with hosted(node, policy=HALF) as agent:
        registered(kubelet, SHARED)
        assert agent.stop() == 0
    kubelet.registered.clear()
    with hosted(node, policy="nonsense") as agent:
        registered(kubelet, SHARED)
        assert len(healthy(kubelet, SHARED)) == 16
        agent.wait(lambda: agent.report().get("policy", {}).get("state") == "last-good", "told")
        assert agent.metric("partage_policy_valid") == 0.0
        node.write_policy(native())
        agent.wait(lambda: agent.report()["policy"]["state"] == "file", "the repaired file holds")


def test_an_agent_that_was_killed_goes_on_where_it_was(node: Place, kubelet: ScriptedKubelet) -> None:
    with running(spawn(node, policy=HALF)) as agent:
        calls = registered(kubelet, SHARED).calls
        assert calls is not None
        share = ids(kubelet, SHARED)[5]
        calls.allocate([share])
        kubelet.pod_resources = held({"default/pod": {"main": {SHARED: [share]}}})
        agent.wait(lambda: agent.gpu(1).get("held") == 1, "the share held")
        agent.kill()
    kubelet.registered.clear()
    with running(spawn(node, policy=HALF)) as agent:
        registered(kubelet, SHARED)
        agent.wait(lambda: agent.gpu(1).get("held") == 1, "still held")
        assert agent.report()["held"][0]["holders"][0]["pod"] == "pod"
        assert len(healthy(kubelet, SHARED)) == 16


def test_a_stopped_agent_leaves_no_socket_behind(node: Place, kubelet: ScriptedKubelet) -> None:
    with running(spawn(node, policy=HALF)) as agent:
        registered(kubelet, SHARED)
        registered(kubelet, GPU)
        assert agent.stop() == 0
    assert [path.name for path in node.kubelet_dir.iterdir()] == ["kubelet.sock"]
    assert not (node.run_dir / "hardware.sock").exists()


def test_two_agents_share_neither_a_state_directory_nor_a_run_directory(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    """The ``hardware.sock`` of a run directory is one agent's: a second helper would take it away."""
    with running(spawn(node)) as first, ThreadPoolExecutor() as both:
        registered(kubelet, GPU)
        helper = (node.run_dir / "hardware.sock").stat()
        same_state = both.submit(run_to_end, node, f"--run-dir={node.root}/another-run")
        same_run = both.submit(run_to_end, node, f"--state-dir={node.root}/another")
        assert same_state.result()[0] == same_run.result()[0] == 2
        assert f"uses the state directory {node.state_dir}" in same_state.result()[1]
        assert f"uses the run directory {node.run_dir}" in same_run.result()[1]
        assert "--run-dir" in same_run.result()[1]
        assert os.path.samestat((node.run_dir / "hardware.sock").stat(), helper), "the first one's helper"
        first.wait(lambda: first.health()[0] == 200, "well")


def test_a_new_agent_waits_for_one_that_ends(node: Place, kubelet: ScriptedKubelet) -> None:
    """A pod that is deleted by force is replaced before its agent has ended."""
    node.state_dir.mkdir(parents=True, exist_ok=True)
    lock = take_lock(node.state_dir)
    with running(spawn(node)) as agent:
        with pytest.raises(subprocess.TimeoutExpired):
            agent.process.wait(timeout=0.7)  # it does not end
        os.close(lock)
        registered(kubelet, GPU)
        assert agent.stop() == 0


def test_of_two_new_agents_one_waits_for_the_end_of_the_other(node: Place, kubelet: ScriptedKubelet) -> None:
    """Two pods are deleted by force one after the other: both agents see that the directory is free."""
    node.state_dir.mkdir(parents=True, exist_ok=True)
    lock = take_lock(node.state_dir)
    with running(spawn(node)) as one, running(spawn(node)) as two:
        os.close(lock)
        registered(kubelet, GPU)
        wait_for(lambda: one.health()[0] or two.health()[0], what="HTTP, a moment after the registration")
        first, second = (one, two) if one.health()[0] else (two, one)
        assert second.process.poll() is None, "it waits"
        kubelet.registered.clear()
        first.kill()
        registered(kubelet, GPU)
        assert second.stop() == 0


def test_a_read_only_state_directory_costs_a_warning(node: Place, kubelet: ScriptedKubelet) -> None:
    """Root may write everywhere, so the directory lies where a file is."""
    node.root.joinpath("file").write_text("", encoding="utf-8")
    with hosted(node, state_dir=node.root / "file/state") as agent:
        registered(kubelet, GPU)
        agent.wait(lambda: "state-not-saved" in agent.degraded(), "told")
        agent.wait(lambda: agent.health()[0] == 200, "healthy all the same")


def test_a_path_need_not_be_utf_8(node: Place, kubelet: ScriptedKubelet) -> None:
    policy = node.root / os.fsdecode(b"policy\xff.yaml")
    policy.write_text(HALF, encoding="utf-8")
    with running(spawn(node, f"--policy={policy}")) as agent:
        registered(kubelet, SHARED)
        agent.wait((node.run_dir / "report.json").exists, "the report file")
        assert agent.report()["policy"]["source"] == f"{node.root}/policy?.yaml"
        assert agent.stop() == 0


def test_a_state_file_that_holds_half_a_surrogate_is_set_aside(node: Place, kubelet: ScriptedKubelet) -> None:
    with hosted(node, policy=HALF) as agent:
        registered(kubelet, SHARED)
        assert agent.stop() == 0
    state = node.state_dir / "state.json"
    state.write_text(state.read_text(encoding="utf-8").replace("policy.yaml", "\\udcff"), encoding="utf-8")
    (node.run_dir / "report.json").unlink(missing_ok=True)
    with hosted(node, policy=HALF) as agent:
        registered(kubelet, SHARED)
        agent.wait((node.run_dir / "report.json").exists, "the report file")
        assert agent.stop() == 0
        assert (node.state_dir / "state.json.corrupt-1").exists()


def test_a_pipe_as_policy_or_state_holds_up_nobody(node: Place, kubelet: ScriptedKubelet) -> None:
    os.mkfifo(node.policy)
    code, log = run_to_end(node, f"--policy={node.policy}")
    assert code == 2
    assert "policy.yaml: cannot be read: not a regular file" in log
    os.mkfifo(node.state_dir / "state.json")
    with running(spawn(node)) as agent:
        registered(kubelet, GPU)
        agent.wait(lambda: "not a regular file" in "".join(agent.log), "told")


def test_a_socket_path_that_is_too_long_ends_the_agent(node: Place) -> None:
    code, log = run_to_end(node, f"--kubelet-dir={node.root}/{'d' * 100}")
    assert code == 2
    assert "107" in log


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", ":x"])
def test_a_bad_http_address_ends_the_agent(node: Place, address: str) -> None:
    code, log = run_to_end(node, f"--http={address}", http=False)
    assert code == 2
    assert address in log


def test_a_machine_that_nobody_knows_ends_the_agent_with_its_helpers_words(node: Place) -> None:
    code, log = run_to_end(node, machine="8xh101")
    assert code == 2
    assert "no GPU model is called 'h101'" in log


def test_two_machines_of_one_node_are_refused(node: Place) -> None:
    code, _ = run_to_end(node, "--hardware-socket=/tmp/none", machine=MACHINE)
    assert code == 2


def test_agent_and_helper_load_no_openssl(node: Place, kubelet: ScriptedKubelet) -> None:
    """TLS is 5 MiB on every node, for processes that have no use for it; so it stays when they are
    scraped.
    """

    def maps(pid: int) -> str:
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")

    with running(spawn(node)) as agent:
        registered(kubelet, "nvidia.com/gpu")
        agent.wait(lambda: agent.health()[0] == 200, "healthy")
        helper = agent.helper_pid()
        assert helper is not None
        assert "python" in maps(agent.pid)
        assert agent.get("/metrics")[0] == 200
        assert "libcrypto" not in maps(agent.pid) + maps(helper)
        assert "lzma" not in maps(agent.pid) + maps(helper)


def test_a_report_of_another_machine_brings_no_gpus(node: Place, kubelet: ScriptedKubelet) -> None:
    """The state is lost, and the run directory is of a disk that was moved, or of a test."""
    with hosted(node, machine="4xa100-sxm4-40gb") as agent:
        registered(kubelet, GPU)
        node.in_report_file("A100")
        assert agent.stop() == 0
    shutil.rmtree(node.state_dir)
    with hosted(node) as agent:
        agent.wait(lambda: len(healthy(kubelet, GPU)) == 8, "the GPUs of this machine")
        agent.wait(lambda: len(agent.report()["gpus"]) == 8, "no GPU that is not there")
        agent.wait(lambda: len(ids(kubelet, GPU)) == 8, "nor an id of one")

"""``partage show``, with and without an agent."""

import asyncio
import json
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from partage import __version__
from partage.agent.status.readiness import readiness_of
from partage.answers.documents.report import ReportDocument, Unreadable, read_report
from partage.answers.report import report_document
from partage.cli.main import run
from partage.codec.values import encode
from partage.lab.stories.model import PolicyText
from partage.lab.stories.read import read_story
from partage.lab.stories.stage import INTERVALS, StoryStage
from partage.model.pod import Container, Pod
from partage.plan.report import Report

STORY = """\
machine: 4xh100-sxm5-80gb
policy:
  version: partage/v1
  gpus:
    - {select: {index: [0]}, mps: {replicas: 4}}
    - {select: {index: [1]}, time-slicing: {replicas: 3, interval: long}, name: nvidia.com/gpu.slow}
steps: []
"""
PODS = (
    Pod("a", "service", (Container("main", {"nvidia.com/gpu.shared": 1}),)),
    Pod("b", "train", (Container("main", {"nvidia.com/gpu": 2}),)),
)


def _report(stage: StoryStage) -> Report:
    assert stage.agent_status.report is not None
    return stage.agent_status.report


async def _reported(folder: Path, *, drain: bool) -> ReportDocument:
    """What an agent of that story reports, with two pods on its node."""
    (folder / "story.yaml").write_text(STORY)
    story = read_story(folder / "story.yaml")
    stage = StoryStage(story, folder, 0, lambda status: None)
    try:
        await stage.open()
        assert await stage.eventually(lambda: sum(stage.kubelet.allocatable().values()) == 9)
        for pod in PODS:
            await stage.admit(pod, may_wait=False)
        assert await stage.eventually(stage.at_rest)
        if drain:
            stage.write_policy(PolicyText("p.yaml", b"version: partage/v1"))
            assert await stage.eventually(lambda: any(gpu.waits for gpu in _report(stage).gpus))
        return report_document(
            _report(stage), stage.agent_status, readiness_of(stage.agent_status, INTERVALS)
        )
    finally:
        await stage.close()


@pytest.fixture
def run_dir(tmp_path):
    def write(drain=False):
        (tmp_path / "run").mkdir()
        # Sockets have short paths, the folders of tests have not.
        with tempfile.TemporaryDirectory(dir="/tmp") as stage:
            document = asyncio.run(_reported(Path(stage), drain=drain))
        (tmp_path / "run" / "report.json").write_bytes(encode(document))
        return str(tmp_path / "run")

    return write


def _show(capsys, *arguments):
    assert run(["show", "--machine", "4xh100-sxm5-80gb", *arguments]) == 0
    return capsys.readouterr().out


def test_without_an_agent_the_node_is_shown_as_it_would_be(capsys):
    node = json.loads(_show(capsys, "-o", "json"))
    assert node["kind"] == "Node"
    assert [gpu["product"] for gpu in node["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 4
    assert node["agent"] is None
    assert [row["count"] for row in node["resources"]] == [4]


def test_with_an_agent_its_offer_and_its_holders_are_shown(capsys, run_dir):
    node = json.loads(_show(capsys, "-o", "json", "--run-dir", run_dir()))
    assert {row["name"]: row["count"] for row in node["resources"]} == {
        "nvidia.com/gpu.shared": 4,
        "nvidia.com/gpu.slow": 3,
        "nvidia.com/gpu": 2,
    }
    assert sorted((row["gpu"], row["holders"][0]) for row in node["held"]) == [
        (0, "a/service/main"),
        (2, "b/train/main"),
        (3, "b/train/main"),
    ]


def test_the_table_has_gpus_links_cards_resources_and_holders(capsys, run_dir):
    text = _show(capsys, "--run-dir", run_dir())
    assert "Driver 580" in text
    assert "every two GPUs are joined by 18 NVLinks" in text
    for part in (
        "H100 80GB HBM3",
        "MPS x 4",
        "What is offered",
        "Who holds shares",
        "GPU 0 #",
        "b/train/main",
    ):
        assert part in text


def test_a_gpu_that_waits_is_said_to_wait_for_whom(capsys, run_dir):
    directory = run_dir(drain=True)
    text = _show(capsys, "--run-dir", directory)
    assert "GPU 0 changes to exclusive when a/service has ended" in text
    assert "waiting for pod a/service" in text
    assert "/ withdrawn" in text
    assert "! 3 shares of nvidia.com/gpu.shared withdrawn" in text
    assert run(["plan", "--machine", "4xh100-sxm5-80gb", "--run-dir", directory, "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    row = plan["gpus"][0]
    assert (plan["agent"]["version"], row["index"], row["phase"]) == (__version__, 0, "waiting")
    assert row["waitingFor"][0]["holders"] == ["a/service/main"]


def _read(path: Path) -> ReportDocument:
    report = read_report(path)
    assert isinstance(report, ReportDocument)
    return report


def test_a_report_read_back_offers_the_same_shares(tmp_path, run_dir):
    reported = _read(Path(run_dir()) / "report.json")
    offerings = [one for offer in reported.offer.values() for one in offer]
    assert sum(one.count for one in offerings) == 9
    assert {one.interval for one in offerings if one.interval} == {"long"}
    assert reported.at < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 60))


def test_of_a_report_of_another_version_all_is_read_but_what_its_planner_looked_at(run_dir):
    path = Path(run_dir()) / "report.json"
    assert _read(path).planner_input is not None
    report = json.loads(path.read_text())
    path.write_text(json.dumps({**report, "newer": 1, "plannedFrom": {"policy": None}}))
    other = _read(path)
    assert (len(other.held), other.planner_input) == (3, None)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"gpus": 3}', '{"gpus": [], "resources": [{}]}', "\udcff"]
)
def test_a_report_that_cannot_be_used_is_warned_of(tmp_path, capsys, text):
    (tmp_path / "report.json").write_text(text, errors="surrogateescape")
    assert isinstance(read_report(tmp_path / "report.json"), Unreadable)
    assert run(["show", "--machine", "l4", "--run-dir", str(tmp_path)]) == 0
    assert "is not a report" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["show", "plan"])
def test_the_report_of_an_agent_that_has_ended_is_not_used(capsys, run_dir, verb):
    directory = run_dir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    rewrite(directory, lambda document: document["agent"].update(pid=ended.pid))
    assert run([verb, "--machine", "4xh100-sxm5-80gb", "--run-dir", directory, "-o", "json"]) == 0
    answer = capsys.readouterr()
    assert json.loads(answer.out)["agent"] is None
    assert answer.err.count(f"its agent (pid {ended.pid}) has ended") == 1


def test_the_report_of_another_simulated_node_is_not_used(capsys, run_dir):
    assert run(["show", "--machine", "4xl40s", "--run-dir", run_dir(), "-o", "json"]) == 0
    answer = capsys.readouterr()
    assert json.loads(answer.out)["agent"] is None
    assert "a node with other GPUs" in answer.err


def test_the_report_of_a_simulated_node_is_not_used_for_the_real_one(capsys, run_dir):
    run(["plan", "--run-dir", run_dir()])
    assert "it is of a simulated node" in capsys.readouterr().err


def rewrite(directory, change):
    path = Path(directory) / "report.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_no_report_is_no_agent(tmp_path):
    assert read_report(tmp_path / "report.json") is None
    assert read_report(None) is None


def test_a_policy_outranks_the_agents_report(capsys, run_dir, tmp_path):
    policy = tmp_path / "p.yaml"
    policy.write_text("version: partage/v1")
    node = json.loads(_show(capsys, "-o", "json", "--policy", str(policy), "--run-dir", run_dir()))
    assert node["agent"] is None
    assert [row["count"] for row in node["resources"]] == [4]


def test_links_of_several_kinds_are_counted(capsys):
    assert run(["show", "--machine", "8xl40s"]) == 0
    assert "pairs by PCIe" in capsys.readouterr().out

"""Which report of an agent counts for the node on which it is read."""

import os

import pytest
from msgspec.structs import replace

from partage.answers.documents.node import node_row
from partage.answers.documents.report import ReportingAgent, ThisNode, why_not_ours
from partage.edges.host.procfs import exists, runs
from tests.answers.nodes import gpu, node

HOST, POD = "pid:[4026531836]", "pid:[4026532000]"
AGENT = ReportingAgent("1.0", 7, HOST, 1)
NODE = replace(node_row(node(gpu(0), gpu(1))), boot_id="b1")
HERE = ThisNode(False, HOST, "b1", frozenset(one.uuid for one in NODE.gpus))
FIRST, OTHER = frozenset({NODE.gpus[0].uuid}), frozenset({gpu(9).uuid})


@pytest.mark.parametrize(
    ("here", "reported", "agent_runs", "why"),
    [
        pytest.param({}, {}, True, "", id="ours"),
        pytest.param({}, {}, False, "its agent (pid 7) has ended", id="dead agent"),
        pytest.param({"pid_namespace": POD}, {}, False, "", id="agent cannot be seen"),
        pytest.param({"boot_id": "b2"}, {}, True, "before this node's last boot", id="another boot"),
        pytest.param({"boot_id": ""}, {}, True, "", id="no boot id here"),
        pytest.param({"gpus": OTHER}, {}, True, "other GPUs", id="other GPUs"),
        pytest.param({"gpus": FIRST}, {}, True, "", id="a GPU fell off the bus"),
        pytest.param({"gpus": frozenset()}, {}, True, "", id="GPUs not known here"),
        pytest.param({}, {"gpus": ()}, True, "", id="an agent without a driver"),
        pytest.param({}, {"simulated": True}, True, "of a simulated node", id="simulated"),
        pytest.param({"simulated": True}, {}, True, "of a real node", id="real"),
        pytest.param(
            {"simulated": True, "boot_id": "", "gpus": FIRST},
            {"simulated": True},
            True,
            "other GPUs",
            id="another simulated node",
        ),
    ],
)
def test_a_report_counts_for_its_own_node_while_its_agent_runs(here, reported, agent_runs, why):
    found = why_not_ours(AGENT, replace(NODE, **reported), replace(HERE, **here), agent_runs=agent_runs)
    assert (found == why) if not why else (why in found)


def test_a_process_that_only_waits_for_its_parent_does_not_run(tmp_path):
    me = os.getpid()
    (tmp_path / str(me)).mkdir()
    stat = tmp_path / str(me) / "stat"
    stat.write_text(f"{me} (a) b) Z 1 1")
    assert (exists(me), runs(tmp_path, me)) == (True, False)
    stat.write_text(f"{me} (a) Z) S 1 1")
    assert runs(tmp_path, me)

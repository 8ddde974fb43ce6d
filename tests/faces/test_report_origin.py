"""Which report of an agent counts for the node on which it is read."""

import os

import pytest
from msgspec.structs import replace

from partage.edges.hardware.procfs import exists, runs
from partage.faces.report_origin import ReportOrigin, ThisNode, why_not_ours

HOST, POD = "pid:[4026531836]", "pid:[4026532000]"
ORIGIN = ReportOrigin(7, HOST, simulated=False, boot_id="b1", gpus=frozenset({"GPU-a", "GPU-b"}))
HERE = ThisNode(simulated=False, pid_namespace=HOST, boot_id="b1", gpus=frozenset({"GPU-a", "GPU-b"}))


@pytest.mark.parametrize(
    ("here", "origin", "agent_runs", "why"),
    [
        pytest.param({}, {}, True, "", id="ours"),
        pytest.param({}, {}, False, "its agent (pid 7) has ended", id="dead agent"),
        pytest.param({"pid_namespace": POD}, {}, False, "", id="agent cannot be seen"),
        pytest.param({"boot_id": "b2"}, {}, True, "before this node's last boot", id="another boot"),
        pytest.param({"boot_id": ""}, {}, True, "", id="no boot id here"),
        pytest.param({"gpus": frozenset({"GPU-c"})}, {}, True, "other GPUs", id="other GPUs"),
        pytest.param({"gpus": frozenset({"GPU-a"})}, {}, True, "", id="a GPU fell off the bus"),
        pytest.param({"gpus": frozenset()}, {}, True, "", id="GPUs not known here"),
        pytest.param({}, {"gpus": frozenset()}, True, "", id="an agent without a driver"),
        pytest.param({}, {"simulated": True}, True, "of a simulated node", id="simulated"),
        pytest.param({"simulated": True}, {}, True, "of a real node", id="real"),
        pytest.param(
            {"simulated": True, "boot_id": "", "gpus": frozenset({"GPU-a"})},
            {"simulated": True},
            True,
            "other GPUs",
            id="another simulated node",
        ),
    ],
)
def test_a_report_counts_for_its_own_node_while_its_agent_runs(here, origin, agent_runs, why):
    found = why_not_ours(replace(ORIGIN, **origin), replace(HERE, **here), agent_runs=agent_runs)
    assert (found == why) if not why else (why in found)


def test_a_process_that_only_waits_for_its_parent_does_not_run(tmp_path):
    me = os.getpid()
    (tmp_path / str(me)).mkdir()
    stat = tmp_path / str(me) / "stat"
    stat.write_text(f"{me} (a) b) Z 1 1")
    assert (exists(me), runs(tmp_path, me)) == (True, False)
    stat.write_text(f"{me} (a) Z) S 1 1")
    assert runs(tmp_path, me)

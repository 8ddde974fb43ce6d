"""The agent on a compute node of a real Slurm: layouts change on a drained node, and it comes back."""

import os
import socket
import time

import pytest

from partage.slurm.decide.next_move import MARK
from tests.slurm.agent_lab import AgentLab
from tests.slurm.lab import BUILDS, NEW, OLD, on, only_in_make_slurm

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]

MIXED = ["h100_1g.10gb", "h100_3g.40gb", "h100"]


def _until_resumed(lab, *, same_counts=False):
    """22.05 takes other counts only from a slurmctld that is started anew, and the node says so."""
    if lab.build.version < "23.11" and not same_counts:
        lab.wait_for(lambda: "restart slurmctld" in lab.log())
        assert "restart slurmctld" in lab.node.reason
        lab.replace_slurmctld()
    lab.wait_for(lambda: "node resumed" in lab.log())  # asking Slurm all the time slows it
    assert not lab.node.drained
    assert not lab.node.invalid


@pytest.mark.parametrize("build", BUILDS)
def test_scenario_19_a_layout_changes_under_a_running_job(build):
    """Drained with a reason, waits for the job, changes, is resumed; jobs then run on the new devices."""
    with AgentLab(build) as lab:
        lab.start_agent()
        lab.wait_for(lambda: "slurm is as it should be" in lab.log())
        assert not lab.node.drained
        job = lab.submit("gpu:h100:1")
        lab.set_policy("3g.40gb, 1g.10gb")
        lab.wait_for(lambda: f"waits for job {job} of root" in lab.log())
        assert lab.node.reason == f"{MARK}the MIG layout of GPU 1 changes"
        assert lab.types() == ["h100"]
        lab.run("scancel", job)
        _until_resumed(lab)
        assert lab.types() == MIXED
        done = lab.run("srun", "--immediate=60", "--gres=gpu:h100_1g.10gb:1", "true", timeout=90)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("build", on(NEW))
def test_an_agent_that_is_killed_at_any_step_goes_on_where_it_was(build):
    """Also with a disk that takes no file: the node stays drained and says why."""
    with AgentLab(build) as lab:
        lab.set_policy("3g.40gb, 1g.10gb")
        blocked = lab.d / "nodes" / ".g1.gres.conf.new"
        blocked.mkdir()
        for step in ("node drained", "layout made", "cannot be written"):
            agent = lab.start_agent()
            lab.wait_for(lambda step=step: step in lab.log())
            agent.kill()
            agent.wait()
            assert lab.node.reason.startswith(MARK)
            assert lab.types() == ["h100"]
        lab.start_agent()
        lab.wait_for(lambda: "cannot be written" in lab.node.reason)
        blocked.rmdir()
        _until_resumed(lab)
        assert lab.types() == MIXED


@pytest.mark.parametrize("build", on(OLD))
def test_an_invalid_node_is_repaired_and_a_drain_of_a_person_stays(build):
    with AgentLab(build) as lab:
        conf = lab.d / "nodes" / "g1.gres.conf"
        right = conf.read_text()
        conf.write_text(right.replace("nvidia[0-1]", "nvidia0"))
        lab.restart_slurmd()
        lab.wait_for(lambda: lab.node.invalid)
        lab.start_agent()
        _until_resumed(lab, same_counts=True)
        assert "Slurm calls the node invalid" in lab.log() or "gres.conf is not" in lab.log()
        assert lab.types() == ["h100"]
        assert "nvidia[0-1]" in conf.read_text()
        lab.run("scontrol", "update", "nodename=g1", "state=drain", "reason=bad fan")
        lab.set_policy("7g.80gb")
        lab.wait_for(lambda: "h100_7g.80gb" in lab.types())
        if build.version < "23.11":
            lab.wait_for(lambda: "slurm waits" in lab.log().splitlines()[-1])
            lab.replace_slurmctld()
        lab.wait_for(lambda: "drained by somebody else: bad fan" in lab.log())
        assert (lab.node.drained, lab.node.reason) == (True, "bad fan")


@pytest.mark.parametrize("build", on(NEW))
def test_nothing_changes_while_slurmctld_does_not_answer(build):
    with AgentLab(build) as lab:
        lab.start_agent()
        lab.wait_for(lambda: "slurm is as it should be" in lab.log())
        with lab.without_slurmctld():
            lab.set_policy("7g.80gb")
            lab.wait_for(lambda: "slurmctld does not answer" in lab.log())
            assert lab.types() == ["h100"]
            assert "layout made" not in lab.log()
        lab.wait_for(lambda: "node resumed" in lab.log())
        assert lab.types() == ["h100_7g.80gb", "h100"]


@pytest.mark.parametrize("build", on(NEW))
def test_a_layout_that_an_administrator_has_made_is_told_to_slurm(build):
    """Jobs that run when it is noticed are waited for, although their GPUs have not changed."""
    with AgentLab(build) as lab:
        lab.start_agent()
        lab.wait_for(lambda: "slurm is as it should be" in lab.log())
        job = lab.submit("gpu:h100:1")
        lab.change_by_hand("3g.40gb, 1g.10gb")
        lab.wait_for(lambda: f"waits for job {job}" in lab.log())
        assert lab.node.reason == f"{MARK}gres.conf is not what the node has"
        lab.run("scancel", job)
        _until_resumed(lab)
        assert lab.types() == MIXED
        assert "layout made" not in lab.log()


RECONFIGURE, RESTART = "scontrol reconfigure", "restart-slurmd"


@pytest.mark.parametrize("build", on(NEW))
def test_a_slurmd_that_is_away_is_started(build):
    """A reconfigure starts none, and it starts all other daemons of the cluster anew."""
    with AgentLab(build) as lab:
        lab.start_agent()
        lab.wait_for(lambda: "slurm is as it should be" in lab.log())
        lab.stop_slurmd()
        lab.set_policy("3g.40gb, 1g.10gb")
        _until_resumed(lab)
        assert lab.types() == MIXED
        assert lab.called(RECONFIGURE) == (0 if build.version < "23.11" else 1)
        assert lab.called(RESTART) >= 1
        done = lab.run("srun", "--immediate=60", "--gres=gpu:h100_1g.10gb:1", "true", timeout=90)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("build", on(OLD, NEW))
def test_a_node_that_is_invalid_for_its_memory_is_no_reason_to_reconfigure(build):
    """What a change of layout needs is done once; then somebody has to look at the DIMM."""
    with AgentLab(build, low=True) as lab:
        lab.wait_for(lambda: lab.node.invalid)
        assert "Low RealMemory" in lab.node.reason
        lab.start_agent()
        lab.wait_for(lambda: "drained by somebody else: Low RealMemory" in lab.log())
        assert lab.called(RECONFIGURE) + lab.called(RESTART) == 0
        lab.set_policy("3g.40gb, 1g.10gb")
        lab.wait_for(lambda: lab.types() == MIXED)
        lab.wait_for(lambda: lab.called(RECONFIGURE) + lab.called(RESTART) > 0)
        end = time.monotonic() + 8  # several looks, and longer than a request is waited for
        lab.wait_for(lambda: time.monotonic() > end)
        assert lab.called(RECONFIGURE) <= 1
        assert lab.called(RECONFIGURE) + lab.called(RESTART) <= 2
        assert "Low RealMemory" in lab.node.reason


@pytest.mark.parametrize("build", on(NEW))
def test_a_slurmd_that_was_restarted_before_slurmctld_was_asked(build):
    """A reboot does it. slurmd has read the files then, and slurmctld has not."""
    if build.version < "23.11":
        pytest.skip("this release has no reconfigure that applies")
    with AgentLab(build) as lab:
        (lab.d / "no-reconfigure").touch()
        agent = lab.start_agent()
        lab.wait_for(lambda: "slurm is as it should be" in lab.log())
        lab.set_policy("3g.40gb, 1g.10gb")
        lab.wait_for(lambda: lab.called(RECONFIGURE) == 1)
        agent.kill()
        agent.wait()
        before_s = lab.node.started_s
        lab.restart_slurmd()
        lab.wait_for(lambda: (lab.node.started_s or 0) > before_s)
        (lab.d / "no-reconfigure").unlink()
        lab.start_agent()
        _until_resumed(lab)
        assert lab.called(RECONFIGURE) == 2
        assert lab.types() == MIXED


@pytest.mark.parametrize("build", on(OLD))
def test_files_with_a_time_to_come_keep_nobody_waiting(build):
    with AgentLab(build) as lab:
        for path in (lab.d / "nodes").iterdir():
            os.utime(path, (time.time() + 7200,) * 2)
        lab.start_agent()
        lab.wait_for(lambda: "node resumed" in lab.log())
        assert "files of Slurm have a time to come" in lab.log()
        assert lab.called(RECONFIGURE) + lab.called(RESTART) == 1


@pytest.mark.parametrize("build", on(NEW))
def test_at_a_boot_slurmd_waits_for_the_layout(build, tmp_path):
    """It is started when the unit of the agent is ready: layout and files are there, and nothing asked it."""
    with AgentLab(build) as lab, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        path = f"{lab.d}/notify"
        systemd.bind(path)
        systemd.settimeout(40)
        lab.stop_slurmd()
        lab.set_policy("3g.40gb, 1g.10gb")
        lab.start_agent(NOTIFY_SOCKET=path)
        assert systemd.recv(1024).startswith(b"READY=1\n")
        assert lab.types() == MIXED
        assert lab.called(RECONFIGURE) + lab.called(RESTART) == 0
        lab.start_slurmd()
        _until_resumed(lab)
        assert lab.called(RECONFIGURE) <= 1
        assert lab.called(RESTART) == 0


@only_in_make_slurm
@pytest.mark.parametrize("build", BUILDS)
def test_a_gpu_that_is_sick_but_answers_gets_no_jobs(build):
    """Drained with the reason, and resumed by proof: a reset, and a minute without a fault."""
    faults = ["{after-s: 8, gpu: 1, xid: 109}", "{after-s: 20, gpu: 1, reset: true}"]
    with AgentLab(build, faults=faults) as lab:
        lab.start_agent()
        lab.wait_for(lambda: lab.node.reason.startswith(f"{MARK}GPU 1 is unhealthy: "))
        assert lab.node.drained
        lab.wait_for(lambda: "GPU 1 is on probation" in lab.node.reason)
        lab.wait_for(lambda: "node resumed" in lab.log(), 90)
        assert not lab.node.drained
        assert lab.called(RECONFIGURE) + lab.called(RESTART) == 0

"""On a real node: the daemon that is there, nobody hit, and what each strategy's tenants see.

GPUs and tenants are stood in for (``stand_in``); command, attacks, environment and daemon are as on a GPU.
"""

import asyncio
import os
import sys
from ctypes.util import find_library

import pytest

from partage.edges.mps import launch
from partage.model.gpu import ComputeMode
from partage.model.layout import LayoutItem
from partage.sim.node.faults import DriverGone, HideProcesses, Occupy, SetMig, TimedFault
from tests.lab.prove.conftest import client, row_of, verdicts

EXCLUSIVE_PROCESS = pytest.mark.parametrize(
    "real", [("1xh100-sxm5-80gb", ComputeMode.EXCLUSIVE_PROCESS)], indirect=True
)
ROOT = os.geteuid() == 0
MPS = "mps: {clients: [{memory: 10Gi, threads: 25%}, {memory: 10Gi, threads: 25%}]}"
HALF = LayoutItem.parse("3g.40gb")
TWO_DEVICES, ONE_DEVICE = SetMig(0, (HALF, HALF)), SetMig(0, (HALF,))
GUARD = "guard: true\n    time-slicing: {replicas: 4}"


@pytest.mark.real
@EXCLUSIVE_PROCESS
def test_a_guarded_share_keeps_what_it_promises(real):
    real.starts_daemon()
    code, document, said = real.proves("--faults", *real.policy(MPS))
    found = verdicts(document)
    assert code == 0
    # What a simulated daemon lets pass, as a real one was seen to (docs/reference/prove.md).
    assert found.pop("mps-unseen-gpu") == "weaker-than-promised"
    assert found.pop("mps-two-users") == ("kept" if ROOT else "not-tried")
    # They would disturb a daemon that others use.
    on_daemon = ("mps-command-as-user", "mps-command-as-root", "mps-hold-connection")
    assert {found.pop(name) for name in on_daemon} == {"not-tried"}
    assert set(found.values()) == {"kept"}
    assert row_of(document, "mps-over-limit")["evidence"] == "hardware"
    assert "CUDA_ERROR_DEVICE_UNAVAILABLE" in row_of(document, "mps-without-pipe")["seen"]
    assert "33 multiprocessors; 33 with 100" in row_of(document, "mps-raise-threads")["seen"]
    assert document["versions"]["torch"] == "9.9"
    assert "mps-over-limit" in said


def test_without_exclusive_process_mode_a_share_that_says_guarded_is_weaker(real):
    real.starts_daemon()
    code, document, _ = real.proves("--only", "mps-without-pipe", *real.policy(MPS))
    row = row_of(document, "mps-without-pipe")
    assert (code, row["guarantee"], row["verdict"]) == (0, "guarded", "weaker-than-promised")
    assert "default mode" in row["seen"]


def test_a_share_that_says_advisory_may_be_got_around(real):
    real.starts_daemon()
    policy = real.policy(MPS.replace("}]}", "}], exclusive-process: false}"))
    _, document, _ = real.proves("--only", "mps-without-pipe,mps-unseen-gpu", *policy)
    for attack in ("mps-without-pipe", "mps-unseen-gpu"):
        row = row_of(document, attack)
        assert (row["guarantee"], row["verdict"]) == ("advisory", "kept")
        assert row["seen"].endswith("no more is stated than advisory")


def test_a_daemon_that_enforces_nothing_breaks_the_promise(real):
    real.starts_daemon(ignores_limits=True)
    code, document, _ = real.proves("--only", "mps-over-limit", *real.policy(MPS))
    assert code == 1
    assert row_of(document, "mps-over-limit")["verdict"] == "broken"
    assert document["summary"]["broken"] == 1


def test_a_tenant_that_does_not_reach_the_daemon_proves_nothing(real, monkeypatch):
    monkeypatch.setenv("STAND_IN_LOST", "yes")
    real.starts_daemon()
    code, document, said = real.proves("--only", "mps-over-limit", *real.policy(MPS))
    assert code == 3
    assert "error: nothing was tried: a tenant is no client of the daemon" in said
    assert "no client of the daemon" in row_of(document, "mps-over-limit")["reason"]


def test_tenants_see_the_shared_memory_of_the_daemon_as_containers_do(real, monkeypatch):
    real.starts_daemon()
    shm = real.pipe.with_name("shm")
    shm.mkdir()
    try:
        launch.mount("shm", str(shm), "tmpfs", launch.MS_NOSUID)
    except PermissionError:
        pytest.skip("to mount takes a privilege")
    try:
        (shm / "of-this-daemon").touch()
        monkeypatch.setenv("STAND_IN_SHM", "of-this-daemon")
        _, document, _ = real.proves("--only", "mps-below-limit", *real.policy(MPS))
    finally:
        launch.unmount(str(shm))
    assert row_of(document, "mps-below-limit")["verdict"] == "kept"


@pytest.mark.parametrize(("ignores_limits", "verdict"), [(False, "kept"), (True, "not-tried")])
def test_where_the_daemon_cannot_be_asked_only_what_holds_is_known(real, tmp_path, ignores_limits, verdict):
    real.starts_daemon(ignores_limits=ignores_limits)
    nothing = ("--driver-root", str(tmp_path))
    _, document, _ = real.proves("--only", "mps-over-limit,mps-neighbours-fault", "--faults", *nothing,
                                 *real.policy(MPS))  # fmt: skip
    row = row_of(document, "mps-over-limit")
    assert row["verdict"] == verdict
    assert "it is not known whether" in row["reason"] or not ignores_limits
    assert "cannot be asked" in row_of(document, "mps-neighbours-fault")["reason"]


def test_without_policy_and_agent_the_daemon_itself_says_what_a_share_is(real):
    real.starts_daemon()
    _, document, _ = real.proves("--only", "mps-over-limit,exclusive-sees-its-own")
    row = row_of(document, "mps-over-limit")
    assert (row["share"]["memoryBytes"], row["guarantee"]) == (10 << 30, "advisory")
    assert row["verdict"] == "kept"
    assert row_of(document, "exclusive-sees-its-own")["share"] is None


def test_without_the_drivers_cuda_library_it_says_so_and_ends_with_4(real):
    """The tests' machines have none: this is the real interpreter, not the stand-in."""
    if find_library("cuda") is not None:
        pytest.skip("this machine has libcuda")
    code, document, said = real.proves("--engine", "cuda", "--python", sys.executable)
    assert (code, document) == (4, None)
    assert "cannot load libcuda.so.1" in said


def test_without_a_daemon_the_gpu_is_exclusive(real):
    _, document, _ = real.proves()
    assert verdicts(document) == {"exclusive-sees-its-own": "kept", "exclusive-sees-no-other": "not-tried"}
    assert "no container" in row_of(document, "exclusive-sees-no-other")["reason"]


def test_a_policy_that_wants_mps_without_a_daemon_is_not_tried(real):
    _, document, _ = real.proves(*real.policy(MPS))
    assert set(verdicts(document).values()) == {"not-tried"}
    assert row_of(document, "mps-over-limit")["reason"] == "no MPS daemon serves it; --mps-pipe names one"


def test_a_container_that_sees_more_than_its_gpus_breaks_the_promise(real, monkeypatch):
    gpu = real.inventory.gpus[0].uuid
    monkeypatch.setenv("PARTAGE_GPUS", gpu)
    code, document, _ = real.proves()
    assert code == 1
    assert row_of(document, "exclusive-sees-no-other")["verdict"] == "broken"


def test_nothing_is_promised_of_time_slicing_and_nothing_holds(real):
    _, document, _ = real.proves(*real.policy("time-slicing: {replicas: 4}"))
    row = row_of(document, "slicing-over-share")
    assert (row["guarantee"], row["verdict"]) == ("none", "kept")
    assert "was not stopped" in row["seen"]


def test_the_guard_caps_who_keeps_it_and_nobody_else(real):
    _, document, _ = real.proves(*real.policy(GUARD))
    capped, off = row_of(document, "guard-over-share"), row_of(document, "guard-off")
    assert (capped["verdict"], off["verdict"]) == ("kept", "kept")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in capped["seen"]
    assert "no more is stated than advisory" in off["seen"]


def test_without_pytorch_the_guard_is_not_tried(real):
    _, document, _ = real.proves("--engine", "cuda", *real.policy(GUARD))
    assert "frameworks" in row_of(document, "guard-over-share")["reason"]


def test_two_users_of_two_servers_wait_for_each_other(real):
    if not ROOT:
        pytest.skip("other users' processes can be started by root only")
    real.starts_daemon(multi_user=False)
    _, document, _ = real.proves("--only", "mps-two-users", *real.policy(MPS))
    row = row_of(document, "mps-two-users")
    assert (row["verdict"], "waited until" in row["seen"]) == ("kept", True)


# --- nobody is hit ------------------------------------------------------------------------------


def test_faults_are_made_only_where_they_are_asked_for(real):
    real.starts_daemon()
    _, document, _ = real.proves("--only", "mps-neighbours-fault", *real.policy(MPS))
    assert "--faults tries it" in row_of(document, "mps-neighbours-fault")["reason"]


def test_beside_somebody_elses_client_nothing_is_tried(real):
    real.starts_daemon()
    with client(real.pipe) as other:
        code, document, _ = real.proves("--faults", *real.policy(MPS))
        other.launch()  # it still works
    assert (code, row_of(document, "mps-over-limit")["reason"]) == (3, "the daemon has 1 other client")
    assert set(verdicts(document).values()) == {"not-tried"}


@pytest.mark.parametrize("real", [("3xh100-sxm5-80gb", ComputeMode.DEFAULT)], indirect=True)
def test_where_somebody_is_on_a_gpu_another_one_has_to_be_named(real):
    asyncio.run(real.hardware.inject(Occupy(1, pid=77)))
    code, document, said = real.proves()
    assert (code, document) == (3, None)
    assert "GPU 1 is held by process python (pid 77)" in said
    assert "GPUs 0, 2" in said
    assert real.proves("--gpu", "1")[0] == 3
    assert real.proves("--gpu", "2")[0] == 0


def test_who_comes_meanwhile_ends_the_trying(real):
    after_the_first_look = real.hardware.calls.total() + 4
    real.hardware._timed.append(TimedFault(Occupy(0), after_calls=after_the_first_look))
    code, document, _ = real.proves(*real.policy("time-slicing: {replicas: 4}"))
    assert code == 3
    assert row_of(document, "slicing-over-share")["reason"] == "process python has come to the GPU"


def test_when_nobody_can_say_who_else_is_there_nothing_is_tried(real):
    after_the_first_look = real.hardware.calls.total() + 4
    gone = DriverGone("failed", "the driver was unloaded")
    real.hardware._timed.append(TimedFault(gone, after_calls=after_the_first_look))
    code, document, _ = real.proves(*real.policy("time-slicing: {replicas: 4}"))
    assert code == 3
    reason = row_of(document, "slicing-over-share")["reason"]
    assert reason == "it could not be asked what else uses the GPU: the driver was unloaded"


def test_where_others_cannot_be_seen_somebody_has_to_say_that_nobody_is_there(real):
    asyncio.run(real.hardware.inject(HideProcesses()))
    code, document, said = real.proves("--only", "exclusive-sees-its-own")
    assert (code, document) == (3, None)
    assert "--alone" in said
    assert real.proves("--alone", "--only", "exclusive-sees-its-own")[0] == 0


def test_no_setting_of_the_gpu_and_no_daemon_is_changed(real):
    real.starts_daemon()
    before, pid = real.hardware.state, real.daemons[0].pid
    real.proves("--only", "mps-over-limit,mps-neighbours-fault", "--faults", *real.policy(MPS))
    assert real.hardware.state == before
    assert real.daemons[0].poll() is None
    assert (real.pipe / "nvidia-cuda-mps-control.pid").read_text().strip() == str(pid)


# --- MIG ----------------------------------------------------------------------------------------


def test_mig_devices_are_tried_beside_each_other(real):
    asyncio.run(real.hardware.inject(TWO_DEVICES))
    code, document, _ = real.proves("--faults")
    assert code == 0
    assert verdicts(document) == {"mig-memory": "kept", "mig-neighbours-fault": "kept"}
    assert "the neighbour works on" in row_of(document, "mig-memory")["seen"]


def test_a_lonely_mig_device_has_no_neighbour_to_be_hit_by(real):
    asyncio.run(real.hardware.inject(ONE_DEVICE))
    _, document, _ = real.proves("--faults")
    assert row_of(document, "mig-neighbours-fault")["reason"] == "the GPU has no second MIG device"


def test_mig_devices_that_have_still_to_be_made_are_not_tried(real):
    _, document, _ = real.proves(*real.policy("mig: {layout: [3g.40gb, 3g.40gb]}"))
    assert row_of(document, "mig-memory")["reason"] == "the MIG device has still to be created"

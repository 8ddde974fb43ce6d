"""Every attack on the simulated control program: what holds, what does not, and what takes a GPU."""

import os
from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from partage.answers import common_node
from partage.edges.files.policy import load_policy
from partage.errors import InputError
from partage.lab.prove.model import EvidenceKind, ProofVerdict
from partage.lab.prove.runner import CATALOGUE, attacks_named, run_attacks
from partage.lab.prove.share import IN_FOUR, offer_of_policy, shares_of
from partage.lab.prove.simulated import simulation
from partage.lab.prove.stage import AttackNeed
from partage.model.gpu import Driver
from tests.lab.prove import reports

ROOT = os.geteuid() == 0
KEPT, WEAKER, BROKEN, NOT_TRIED = ProofVerdict
IN_MPS = {
    "mps-below-limit": KEPT,
    "mps-over-limit": KEPT,
    "mps-raise-memory": KEPT,
    "mps-lower-memory": KEPT,
    # Seen by others on a real daemon: one wrong entry, and every limit of the client is gone.
    "mps-unseen-gpu": WEAKER,
    "mps-raise-threads": NOT_TRIED,
    "mps-two-processes": KEPT,
    "mps-two-users": KEPT if ROOT else NOT_TRIED,
    "mps-without-pipe": NOT_TRIED,
    "mps-command-as-user": KEPT if ROOT else NOT_TRIED,
    "mps-command-as-root": WEAKER if ROOT else NOT_TRIED,
    "mps-hold-connection": KEPT if ROOT else NOT_TRIED,
    "mps-neighbours-fault": KEPT,
}


async def _walked(
    policy=IN_FOUR, *, machine="1xh100-sxm5-80gb", only=(), faults=True, ignores_limits=False, driver=""
):
    inventory, _ = await _look(machine)
    inventory = replace(inventory, driver=Driver(driver, "13.4")) if driver else inventory
    shares = shares_of(offer_of_policy(policy, inventory), inventory, {gpu.uuid for gpu in inventory})
    async with simulation(faults=faults, ignores_limits=ignores_limits) as engine:
        return [row async for row in run_attacks(engine, shares, attacks_named(only), lambda _text: None)]


async def _look(machine):
    hardware = common_node.open_hardware(machine)
    return await hardware.observe(), await hardware.uses()


def _policy(tmp_path, text):
    path = tmp_path / "policy.yaml"
    path.write_text(f"version: partage/v1\ngpus:\n{text}")
    return load_policy(str(path), None, os.environ).policy


async def test_every_attack_has_a_row_and_those_on_mps_are_tried():
    rows = await _walked()
    assert sorted(row.name for row in rows) == sorted(attack.name for attack in CATALOGUE)
    on_shares = {row.name: row.verdict for row in rows if row.share is not None}
    assert on_shares == IN_MPS
    for row in rows:
        tried = row.verdict is not NOT_TRIED
        assert row.evidence is (EvidenceKind.SIMULATED if tried else EvidenceKind.DOCUMENTED)
        assert row.found
    fault = next(row.found for row in rows if row.name == "mps-neighbours-fault")
    assert "the neighbour failed, too (CUDA_ERROR_LAUNCH_FAILED)" in fault
    assert "was refused (CUDA_ERROR_MPS_SERVER_NOT_READY)" in fault
    assert fault.endswith("a new one was served")
    if ROOT:
        held = next(row.found for row in rows if row.name == "mps-hold-connection")
        assert held.startswith("the daemon answered nobody; a new client had to wait meanwhile")
        assert held.endswith("the daemon answered again after the process had gone")


async def test_a_daemon_that_ignores_limits_is_seen_to_break_its_promise():
    rows = await _walked(ignores_limits=True, only=["mps-over-limit", "mps-raise-memory", "mps-below-limit"])
    found = {row.name: row.verdict for row in rows}
    assert found == {"mps-below-limit": KEPT, "mps-over-limit": BROKEN, "mps-raise-memory": WEAKER}
    assert structs.replace(reports.full(), rows=tuple(rows)).exit_code == 1


async def test_a_smaller_share_is_held_by_its_variable_alone(tmp_path):
    policy = _policy(
        tmp_path,
        "  - select: all\n    mps: {clients: [{name: big, memory: 40Gi}, {name: small, memory: 8Gi}]}\n",
    )
    rows = await _walked(policy, only=["mps-over-limit", "mps-drop-variable", "mps-raise-memory"])
    found = [(row.name, row.share.memory_bytes >> 30, row.guarantee, row.verdict) for row in rows]
    assert found == [
        ("mps-over-limit", 40, "guarded", KEPT),
        ("mps-raise-memory", 40, "guarded", KEPT),
        ("mps-over-limit", 8, "advisory", KEPT),
        ("mps-drop-variable", 8, "advisory", KEPT),
    ]
    assert rows[-1].found.startswith("it got 40 GiB, then CUDA_ERROR_OUT_OF_MEMORY")


async def test_a_smaller_share_in_a_namespace_is_held_by_the_daemon(tmp_path):
    clients = "{name: big, memory: 40Gi}, {name: small, memory: 8Gi}"
    policy = _policy(tmp_path, f"  - select: all\n    mps: {{protocol: 3, clients: [{clients}]}}\n")
    only = ["mps-over-limit", "mps-raise-memory", "mps-drop-variable", "mps-neighbours-fault"]
    rows = await _walked(policy, only=only, driver="615.71")
    on_shares = [(row.name, row.verdict) for row in rows if row.share is not None]
    assert on_shares == [(attack, KEPT) for attack in only if "drop" not in attack] * 2
    assert {row.guarantee for row in rows if row.share is not None} == {"guarded"}


async def test_equal_shares_are_tried_once_and_other_strategies_say_what_they_take():
    example = Path(__file__).parents[3] / "examples/07-mixed-node"
    policy = load_policy(str(example / "policy.yaml"), None, os.environ).policy
    rows = await _walked(
        policy,
        machine=str(example / "machine.json"),
        only=["exclusive-sees-its-own", "mig-memory", "mps-over-limit", "slicing-over-share"],
    )
    offered = {(row.name, row.share.gpu, row.verdict) for row in rows}
    assert ("mps-over-limit", 4, KEPT) in offered
    assert {gpu for attack, gpu, _ in offered if attack == "mig-memory"} == {6}
    assert len([row for row in rows if row.name == "mps-over-limit"]) == 1
    untried = [row.found for row in rows if row.verdict is NOT_TRIED]
    assert len(untried) == len(rows) - 1
    assert all("takes a real GPU" in seen or "still to be created" in seen for seen in untried)


async def test_faults_are_not_made_unless_asked_for():
    (row,) = await _walked(only=["mps-neighbours-fault"], faults=False)
    assert row.verdict is NOT_TRIED
    assert "--faults" in row.found


async def test_a_share_as_large_as_its_gpu_has_no_limit_that_could_be_told_from_the_end(tmp_path):
    policy = _policy(
        tmp_path, "  - select: all\n    mps: {clients: [{name: a, memory: 78Gi}, {name: b, memory: 1Gi}]}\n"
    )
    rows = [row for row in await _walked(policy, only=["mps-over-limit"]) if row.share.memory_bytes > 2**33]
    assert [row.verdict for row in rows] == [NOT_TRIED]
    assert "so large a part" in rows[0].found


async def test_nothing_of_a_simulation_stays_behind():
    async with simulation(faults=False) as engine:
        inventory, _ = await _look("1xl4")
        (share,) = shares_of(offer_of_policy(IN_FOUR, inventory), inventory, {inventory.gpus[0].uuid})
        async with engine.setup(share) as setup:
            assert setup.place.pipe is not None
            pid = int((setup.place.pipe / "nvidia-cuda-mps-control.pid").read_text())
            assert Path(f"/proc/{pid}").exists()
            root = setup.place.driver_root
    assert not Path(f"/proc/{pid}").exists()
    assert not root.exists()


def test_attacks_are_named_once_and_speak_in_sentences():
    assert len({attack.name for attack in CATALOGUE}) == len(CATALOGUE)
    for attack in CATALOGUE:
        for sentence in (attack.promised, attack.tried):
            assert sentence[0].isupper()
            assert sentence.endswith(".")


def test_every_attack_that_makes_a_kernel_fault_asks_for_leave():
    faulting = {attack.name for attack in CATALOGUE if AttackNeed.FAULTS in attack.needs}
    assert faulting == {attack.name for attack in CATALOGUE if "fault" in attack.name}


def test_an_attack_that_is_none_is_named_with_those_that_are():
    with pytest.raises(InputError, match=r"'mps-poetry'.*mps-over-limit"):
        attacks_named(["mps-poetry"])

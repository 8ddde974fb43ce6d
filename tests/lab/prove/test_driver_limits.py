"""Attacks on the driver's memory limits: real cgroups and the real hook, in front of the stand-in for NVML.

What refuses an allocation is made up (``stand_in.Limited``): it does what is documented of the driver.
"""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.cli.main import run
from partage.edges.files.policy import parse_policy
from partage.lab.prove.real import RealEngine, counted_memory
from partage.lab.prove.runner import CATALOGUE, run_attacks
from partage.lab.prove.share import offer_of_policy, shares_of
from partage.lab.prove.simulated import simulation
from partage.lab.prove.slicing import OF_LIMITS
from partage.lab.prove.stage import CannotTry, CountedMemory
from partage.lab.tenant import TenantLaunch
from partage.model.driver_limit import LimitAt, LimitBackend, LimitSupport
from partage.model.gpu import Driver
from partage.model.ids import ContainerId
from partage.sim.node.faults import DriverGone, HideProcesses, Occupy
from partage.sim.node.files.machine_file import read_machine
from partage.sim.node.hardware import SimulatedHardware
from partage.units import GIB
from tests.edges.cdi.limit_hook.node import built_hook, hook_in_cgroup2, kept_limits
from tests.edges.hardware.conftest import compiled_stub
from tests.edges.hardware.stub import StubNode

POLICY = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 4, memory: hard}}]\n"

MACHINE = b"driver: 615.71.09\nmemory-limits: dmem\ngpus: [{name: NVIDIA H100 80GB HBM3}]\n"


def _cgroup2():
    rows = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return next((Path(row[1]) for row in rows if row[2] == "cgroup2"), None)


@pytest.fixture
def limited(real, monkeypatch):
    """The engine on a node whose driver takes limits, and the driver."""
    root = _cgroup2()
    if os.geteuid() or root is None or shutil.which("setpriv") is None:
        pytest.skip("needs root, cgroup v2 and setpriv")
    real.root.chmod(0o755)
    found = real.inventory
    gpus = [replace(gpu, limits=LimitSupport(LimitBackend.MISC)) for gpu in found.gpus]
    inventory = replace(found, driver=Driver("615.71.09", "13.4"), gpus=tuple(gpus))
    driver = StubNode(real.root / "driver", compiled_stub(real.root)).add_h100s(1)
    driver.write(driver="615.71.09", **{"gpu.0.limits": "misc", "gpu.0.uuid": gpus[0].uuid})
    told = driver.library.with_name("limits.txt")
    charges = told.with_name("charges.json")
    charges.write_text("[]")
    charges.chmod(0o666)
    monkeypatch.setenv("STAND_IN_LIMITS", str(told))
    monkeypatch.setenv("STAND_IN_BYTES", str(gpus[0].memory_bytes))

    async def observe():
        return inventory, ()

    async def memory(at):
        """As counted, and as the sum over processes."""
        rows = [row for row in json.loads(charges.read_text()) if row[1].endswith(f"/{at.container}")]
        counted = int(os.environ.get("STAND_IN_COUNTED", sum(row[2] for row in rows)))
        return CountedMemory(counted, sum(row[2] for row in rows), len({row[0] for row in rows}))

    return inventory, driver, RealEngine(
        launch=TenantLaunch(str(real.root / "python3"), "cuda"),
        observe=observe,
        memory=memory,
        run_dir=real.root / "run",
        faults=False,
        driver_root=driver.root,
        hook=hook_in_cgroup2(built_hook(real.root), real.root / "hook"),
        cgroups=root,
    )  # fmt: skip


def _rows(inventory, engine, attacks=CATALOGUE):
    policy = parse_policy(POLICY, "p").policy
    shares = shares_of(offer_of_policy(policy, inventory), inventory, {inventory.gpus[0].uuid})

    async def walk():
        return [row async for row in run_attacks(engine, shares, attacks, lambda _: None)]

    return [row for row in asyncio.run(walk()) if row.share is not None]


def test_a_limit_of_the_cgroup_holds_whatever_a_tenant_does(limited):
    inventory, driver, engine = limited
    ended = subprocess.Popen(["true"])
    ended.wait()
    killed = engine.cgroups / f"partage-prove-{ended.pid}"
    (killed / ("5" * 64) / "inside").mkdir(parents=True)
    rows = _rows(inventory, engine)
    assert {row.name for row in rows} == {attack.name for attack in OF_LIMITS}, "and nothing of 'none'"
    assert {row.name: row.verdict.value for row in rows} == {attack.name: "kept" for attack in OF_LIMITS}, [
        f"{row.name}: {row.found}" for row in rows if row.verdict.value != "kept"
    ]
    assert {row.guarantee.value for row in rows if row.name != "limit-managed"} == {"hard"}
    assert "not counted, as is said" in next(row for row in rows if row.name == "limit-managed").found
    assert {kept.hard for kept in kept_limits(driver)} == {
        inventory.gpus[0].memory_bytes // 4 // 2**20 * 2**20
    }
    assert not (engine.cgroups / f"partage-prove-{os.getpid()}").exists()
    assert not killed.exists(), "what a prove left that was killed"


def test_a_driver_that_holds_nothing_breaks_the_promise(limited, monkeypatch):
    """Also what an attack has to notice: each of them would."""
    inventory, _, engine = limited
    monkeypatch.delenv("STAND_IN_LIMITS")
    monkeypatch.setenv("STAND_IN_COUNTED", "0")
    held = [attack for attack in OF_LIMITS if attack.name != "limit-managed"]
    assert {row.verdict.value for row in _rows(inventory, engine, held)} == {"broken"}


def test_what_the_hook_says_is_why_nothing_was_tried(limited):
    inventory, driver, engine = limited
    driver.write(**{"gpu.0.code": 15})
    rows = _rows(inventory, engine)
    assert {row.verdict.value for row in rows} == {"not-tried"}
    assert all("partage-limit-hook: looking for the GPU" in row.found for row in rows)
    assert inventory.gpus[0].memory_bytes > 60 * GIB


async def test_both_sources_are_asked_as_for_a_container():
    machine = read_machine(MACHINE, "m.yaml")
    hardware = SimulatedHardware(machine)
    at = LimitAt(ContainerId("5" * 64), machine.inventory.gpus[0].uuid)
    with pytest.raises(CannotTry, match="no cgroup"):
        await counted_memory(hardware, at)
    for pid in (11, 12):
        await hardware.inject(Occupy(0, pid=pid, memory_bytes=3 * GIB, container=at.container))
    assert await counted_memory(hardware, at) == CountedMemory(6 * GIB, 6 * GIB, 2)
    await hardware.inject(HideProcesses())
    with pytest.raises(CannotTry):
        await counted_memory(hardware, at)
    await hardware.inject(DriverGone())
    with pytest.raises(CannotTry):
        await counted_memory(hardware, at)


@pytest.mark.parametrize("backend", ["misc", pytest.param("dmem", marks=pytest.mark.real)])
def test_a_simulated_machine_is_attacked_too(capsys, tmp_path, backend):
    policy, machine = tmp_path / "policy.yaml", tmp_path / "machine.yaml"
    policy.write_text(POLICY)
    machine.write_bytes(MACHINE.replace(b"dmem", backend.encode()))
    names = ",".join(attack.name for attack in OF_LIMITS)
    code = run(["prove", "--machine", str(machine), "--policy", str(policy), "--only", names, "-o", "json"])
    said = capsys.readouterr()
    rows = json.loads(said.out)["rows"]
    expected = {attack.name: "kept" for attack in OF_LIMITS}
    if os.geteuid():
        expected["limit-leave-cgroup"] = "not-tried"
    assert {row["attack"]: row["verdict"] for row in rows} == expected, rows
    assert {row["evidence"] for row in rows if row["verdict"] == "kept"} == {"simulated"}
    assert code == 0


def test_a_simulated_driver_that_holds_nothing_breaks_the_promise():
    machine = read_machine(MACHINE, "m.yaml")
    held = [
        attack
        for attack in OF_LIMITS
        if attack.name not in ("limit-managed", "limit-counted", "limit-leave-cgroup")
    ]

    async def rows():
        async with simulation(faults=False, ignores_limits=True) as engine:
            inventory = machine.inventory
            shares = shares_of(
                offer_of_policy(parse_policy(POLICY, "p").policy, inventory),
                inventory,
                {inventory.gpus[0].uuid},
            )
            return [row async for row in run_attacks(engine, shares, held, lambda _: None)]

    assert {row.verdict.value for row in asyncio.run(rows())} == {"broken"}

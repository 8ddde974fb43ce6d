"""The way to a layout, and what is offered until it lives: whole nodes in, whole offers out."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.gpu import Inventory
from partage.model.step import GpuUse, Reset, UseKind
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.reconcile.blocked import BlockKind
from partage.plan.reconcile.relayout import Relayout, relayout
from partage.plan.reconcile.transition import GpuServing
from partage.plan.reconcile.way import Set, Way, ready, way
from partage.sim.node.hardware import SimulatedHardware
from partage.sim.node.machine import load_machine

LAYOUTS = [
    "[7g.80gb]",
    "[3g.40gb, 3g.40gb]",
    "[3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb]",
    "[2g.20gb, 2g.20gb, 2g.20gb]",
    "[1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]",
    "all-disabled",
    "[1c.3g.40gb, 2c.3g.40gb]",
]


def policy(*layouts: str, single: bool = False) -> str:
    """Layouts of GPU 0, 1, ...; nothing for the rest."""
    rows = "".join(
        f"  - {{select: {{index: [{index}]}}, mig: {{layout: {one}}}}}\n" for index, one in enumerate(layouts)
    )
    strategy = "resources: {mig-strategy: single}\n" if single else ""
    return f"version: partage/v1\ngpus:\n{rows}{strategy}"


def wish(text: str, inventory: Inventory) -> DesiredState:
    return resolve(parse_policy(text, "policy.yaml").policy, inventory, geometry_of)


def as_a_way(found: Relayout) -> Way:
    """The way where nothing has to be set."""
    return way(found, Set(daemons=()), {})


def settled(found: Relayout) -> dict[str, GpuServing]:
    return {gpu: GpuServing(offer) for gpu, offer in found.wish.offer.items()}


async def made(hardware: SimulatedHardware, text: str, uses: tuple[GpuUse, ...] = ()) -> Relayout:
    """Everything done that stands ready; how it is afterwards."""
    found = relayout(wish(text, await hardware.observe()), (), geometry_of, uses)
    for unit in ready(as_a_way(found), settled(found), ()):
        for step in unit.steps:
            await hardware.perform(step)
    return relayout(wish(text, await hardware.observe()), (), geometry_of, uses)


def devices(found: Relayout) -> set[str]:
    return {one.device for offerings in found.wish.offer.values() for one in offerings}


@given(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), st.integers(0, 2**30))
def test_what_is_offered_meanwhile_lives_on_and_what_is_held_is_never_in_the_steps(
    before: str, after: str, seed: int
) -> None:
    async def scenario() -> None:
        hardware = SimulatedHardware(load_machine("2xh100-sxm5-80gb"))
        await made(hardware, policy(before))
        inventory = await hardware.observe()
        gpu = inventory.gpus[0]
        rng = random.Random(seed)
        busy = [one for one in gpu.mig_devices if rng.random() < 0.4]
        uses = tuple(GpuUse(gpu.uuid, UseKind.POD, "default/pod", device=one.uuid) for one in busy)
        found = relayout(wish(policy(after), inventory), (), geometry_of, uses)
        meanwhile = devices(found)
        other = inventory.gpus[1].uuid
        assert other in meanwhile, "the other GPU is offered all the time"
        if found.plan.refused:
            assert found.plan.refused[0].kind is BlockKind.HELD
            assert not ready(as_a_way(found), settled(found), ())
            assert meanwhile <= {one.uuid for one in gpu.mig_devices} | {other}
            return
        (planned,) = found.plan.planned
        assert {one.uuid for one in busy} <= set(planned.kept)
        last = await made(hardware, policy(after), uses)
        assert not last.changing
        assert meanwhile - {gpu.uuid} <= devices(last), "what was offered meanwhile was destroyed"

    asyncio.run(scenario())


def test_gpus_of_an_mig_strategy_single_may_differ_while_their_layout_is_made() -> None:
    async def scenario() -> None:
        hardware = SimulatedHardware(load_machine("2xh100-sxm5-80gb"))
        await made(hardware, policy(LAYOUTS[1], LAYOUTS[1], single=True))
        changed = policy(LAYOUTS[3], LAYOUTS[3], single=True)
        inventory = await hardware.observe()
        held = inventory.gpus[0].mig_devices[0]
        uses = (GpuUse(inventory.gpus[0].uuid, UseKind.POD, "default/pod", device=held.uuid),)
        found = await made(hardware, changed, uses)
        assert [one.kind for one in found.plan.refused] == [BlockKind.HELD]
        profiles = {one.profile for one in found.wish.offer[inventory.gpus[1].uuid]}
        assert profiles == {"2g.20gb"}

    asyncio.run(scenario())


@pytest.mark.parametrize("moving", ["draining", "leaving"])
def test_a_gpu_stands_ready_once_all_that_goes_is_withdrawn(moving: str) -> None:
    inventory = asyncio.run(SimulatedHardware(load_machine("1xh100-sxm5-80gb")).observe())
    (gpu,) = inventory.gpus
    whole = wish("version: partage/v1\ngpus: []\n", inventory).offer[gpu.uuid]
    found = relayout(wish(policy(LAYOUTS[0]), inventory), (), geometry_of)
    now = GpuServing(whole, draining=True) if moving == "draining" else GpuServing((), leaving=whole)
    assert found.wish.offer[gpu.uuid] == ()
    assert not ready(as_a_way(found), {gpu.uuid: now}, ())
    assert not ready(as_a_way(found), {gpu.uuid: GpuServing(whole)}, ())
    assert not ready(as_a_way(found), {gpu.uuid: GpuServing(())}, {gpu.uuid})
    assert len(ready(as_a_way(found), {gpu.uuid: GpuServing(())}, ())) == 1


def test_gpus_that_a_reset_takes_along_are_withdrawn_once_all_of_them_are_idle() -> None:
    """An A100 board without the fabric manager: one card's MIG mode takes a reset of all."""
    machine = load_machine("4xa100-sxm4-40gb")
    inventory = replace(asyncio.run(SimulatedHardware(machine).observe()), fabric_manager=False)
    wanted = wish(policy("[1g.5gb]"), inventory)
    pod = GpuUse(inventory.gpus[3].uuid, UseKind.POD, "default/train")
    waits = relayout(wanted, (), geometry_of, [pod])
    assert [one.kind for one in waits.plan.refused] == [BlockKind.HELD]
    assert all(waits.wish.offer[gpu.uuid] for gpu in inventory.gpus[1:]), "nobody lies idle meanwhile"
    found = relayout(wanted, (), geometry_of)
    assert any(isinstance(step, Reset) for unit in found.plan.units for step in unit.steps)
    assert not any(found.wish.offer.values())
    assert found.changing == {gpu.uuid for gpu in inventory}
    assert "for their sake" in found.wish.pending[inventory.gpus[1].uuid]


def test_a_lost_gpu_waits_and_shows_what_it_had() -> None:
    async def scenario() -> None:
        hardware = SimulatedHardware(load_machine("1xh100-sxm5-80gb"))
        await made(hardware, policy(LAYOUTS[1]))
        inventory = await hardware.observe()
        (gpu,) = inventory.gpus
        found = relayout(wish(policy(LAYOUTS[3]), inventory), {gpu.uuid}, geometry_of)
        assert not found.plan.units
        assert devices(found) == {one.uuid for one in gpu.mig_devices}

    asyncio.run(scenario())


def test_a_layout_that_lives_needs_nothing_whoever_uses_it() -> None:
    async def scenario() -> None:
        hardware = SimulatedHardware(load_machine("1xh100-sxm5-80gb"))
        found = await made(hardware, policy(LAYOUTS[2]))
        (gpu,) = (await hardware.observe()).gpus
        uses = [GpuUse(gpu.uuid, UseKind.PROCESS, "python3", 4711)]
        again = relayout(found.wish, (), geometry_of, uses)
        assert not again.changing
        assert again.wish is found.wish

    asyncio.run(scenario())

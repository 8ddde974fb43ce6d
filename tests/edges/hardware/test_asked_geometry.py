"""What the driver says of a GPU that no catalogue has: asked once, recorded, planned with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from partage.answers.unknown_models import lacks_geometry
from partage.cli.hardware import helper_argv
from partage.cli.main import run
from partage.edges.files.catalogue import geometry_of
from partage.edges.hardware.discover import Discovery
from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.hardware.nvml_queries import Nvml
from partage.model.geometry import Geometry, Placement
from partage.model.gpu import Inventory
from partage.model.step import CreateInstance, SetMigMode
from partage.sim.node.files.load import load_machine
from partage.sim.node.files.machine_writer import machine_text
from partage.sim.node.machine import Machine
from partage.units import MIB
from tests.edges.hardware.stub import StubNode

PLACEMENTS = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"


@pytest.fixture
def strange(node: StubNode) -> StubNode:
    """A node with a card that no catalogue has, and an H100."""
    return node.add_h100s(2).with_live_mig(0).with_unknown_card(0)


def discovery(node: StubNode) -> tuple[Nvml, Discovery]:
    nvml = Nvml(node.host)
    assert nvml.open() is None
    return nvml, Discovery(nvml, node.host, lacks_geometry)


def geometry_in(inventory: Inventory, index: int = 0) -> Geometry | None:
    return inventory.gpus[index].geometry


def test_the_driver_is_asked_about_an_unknown_card_and_about_no_other(strange: StubNode) -> None:
    nvml, found = discovery(strange)
    inventory = found.inventory()
    geometry = geometry_in(inventory)
    assert geometry is not None
    assert geometry == geometry_of(inventory.gpus[0])
    assert (geometry.compute_slices, geometry.memory_slices, geometry.max_instances) == (4, 12, 4)
    assert {str(spec.profile): (spec.size, spec.starts, spec.max_count) for spec in geometry.profiles} == {
        "1g.24gb": (3, (0, 3, 6, 9), 4),
        "2g.48gb": (6, (0, 6), 2),
        "4g.96gb": (12, (0,), 1),
        "1g.24gb+me.all": (3, (0, 3, 6, 9), 1),
    }
    whole = geometry.whole
    assert whole.memory_bytes == 97280 * MIB
    assert whole.engines is not None
    assert (whole.engines.copy, whole.engines.decoder, whole.engines.ofa) == (None, 4, 1)
    assert geometry_in(inventory, 1) is None, "the catalogue has it"
    nvml.close()


def test_it_is_asked_once_for_each_driver(strange: StubNode) -> None:
    nvml, found = discovery(strange)
    before = geometry_in(found.inventory())
    strange.write(**{"gpu.0.profile.1": None})
    assert geometry_in(found.inventory()) == before
    strange.write(driver="580.95.05")
    after = geometry_in(found.inventory())
    assert after is not None
    assert len(after.profiles) == 3
    nvml.close()


@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_a_driver_that_does_not_say_it_leaves_the_gpu_as_it_is(strange: StubNode, code: int) -> None:
    """Not supported, not permitted, no such function, unknown."""
    nvml, found = discovery(strange)
    strange.write(**{f"fail.{PLACEMENTS}": code})
    inventory = found.inventory()
    assert inventory.lost == ()
    assert geometry_in(inventory) is None
    nvml.close()


def test_an_older_driver_says_it_once_mig_mode_is_on(strange: StubNode) -> None:
    nvml, found = discovery(strange)
    strange.write(**{"fail.nvmlDeviceGetGpuInstanceProfileInfo": 3})
    assert geometry_in(found.inventory()) is None
    strange.write(
        **{"fail.nvmlDeviceGetGpuInstanceProfileInfo": None, "gpu.0.live": None, "gpu.0.mig": "1 1"}
    )
    found_then = geometry_in(found.inventory())
    assert found_then is not None
    strange.write(**{"fail.nvmlDeviceGetGpuInstanceProfileInfo": 3, "gpu.0.mig": "0 0"})
    assert geometry_in(found.inventory()) == found_then, "what was said holds"
    nvml.close()


async def test_an_instance_of_an_unknown_card_is_made_where_the_driver_says(strange: StubNode) -> None:
    hardware = NvmlHardware(host=strange.host, lacks_geometry=lacks_geometry)
    gpu = (await hardware.observe()).gpus[0]
    assert gpu.geometry is not None
    spec = gpu.geometry.profiles[1]
    place = Placement(6, spec.size)
    await hardware.perform(SetMigMode(gpu.uuid, enabled=True))
    await hardware.perform(CreateInstance(gpu.uuid, str(spec.profile), place))
    (empty,) = (await hardware.observe()).gpus[0].empty_instances
    assert (empty.profile, empty.placement) == ("2g.48gb", place)
    await hardware.close()


async def test_a_node_is_recorded_through_the_helper_and_planned_elsewhere(
    strange: StubNode, short_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hardware = RemoteHardware(
        short_dir / "h.sock", helper_argv(short_dir / "h.sock", driver_root=strange.root)
    )
    seen = await hardware.observe()
    await hardware.close()
    machine, policy = short_dir / "machine.yaml", short_dir / "policy.yaml"
    machine.write_text(machine_text(Machine("", seen), as_yaml=True))
    assert load_machine(str(machine)).inventory.gpus[0].geometry == geometry_in(seen)
    policy.write_text(
        "version: partage/v1\ngpus: [{select: {index: [0]}, mig: {layout: [2g.48gb, 1g.24gb, 1g.24gb]}}]\n"
    )
    capsys.readouterr()
    arguments = ["plan", "--machine", str(machine), "--policy", str(policy), "-o", "json"]
    assert await asyncio.to_thread(run, arguments) == 0  # a verb runs a loop of its own
    plan = json.loads(capsys.readouterr().out)
    assert plan["gpus"][0]["layout"] == ["2g.48gb@0", "1g.24gb@6", "1g.24gb@9"]

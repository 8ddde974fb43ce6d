"""The agent under the name of NVIDIA's driver: a simulated node, an API server that keeps objects, a scripted
kubelet.
"""

from __future__ import annotations

import asyncio
from typing import Any

from partage.claims.model.names import NVIDIA_NAMES, OWN_NAMES
from partage.model.claim import ClaimRef
from partage.model.strategy import Interval
from partage.sim.node.processes import time_slices_of
from tests.claims.agent.test_claims_of_node import GPUS, DraNode, dra_node
from tests.dra_script import DriverSocket
from tests.edges.kube.store import SLICES

MPS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
LIMITS = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"}


def claim(node: DraNode, name: str, device: str, config: Any = None, **consumed: str) -> ClaimRef:
    share = {"shareID": f"{name}-s", "consumedCapacity": consumed} if consumed else {}
    return node.claim(name, {"device": device, **share}, config=config)


async def test_driver_pool_and_devices_are_called_as_by_nvidias_driver() -> None:
    async with dra_node(names=NVIDIA_NAMES) as node:
        await node.until(lambda: len(node.devices) == 3, "three devices")
        ((made),) = node.store.objects[SLICES].values()
        assert (made["spec"]["driver"], made["spec"]["pool"]["name"]) == ("gpu.nvidia.com", "n1")
        assert made["metadata"]["name"].startswith("00000-gpu.nvidia.com-n1-")
        assert [*node.devices] == ["gpu-0", "gpu-1", "gpu-2"]
        assert node.devices["gpu-0"]["attributes"].keys() == (NVIDIA_NAMES.attributes or set()) - {
            "profile",
            "parentUUID",
        }
        info = await asyncio.to_thread(DriverSocket(node.registration).info)
        assert info.name == "gpu.nvidia.com"


async def test_nvidias_configurations_are_carried_out_or_refused() -> None:
    async with dra_node(names=NVIDIA_NAMES) as node:
        await node.until(lambda: len(node.devices) == 3, "three devices")
        mps = {**MPS, "sharing": {"strategy": "MPS", "mpsConfig": LIMITS}}
        through = claim(node, "mps", "gpu-0", mps, memory="79Gi", cores="0")
        ((device,),) = [(await node.prepare(through))[through.uid].devices]
        assert (device.pool_name, device.device_name) == ("n1", "gpu-0")
        env = node.cdi(through.uid)["devices"][0]["containerEdits"]["env"]
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50" in env
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M" in env
        assert "PARTAGE_RESOURCE=gpu.nvidia.com" in env
        whole = claim(node, "whole", "gpu-2", MPS)
        assert "asks for MPS in its configuration, and GPU 2" in await node.refusal(whole)
        even = claim(node, "even", "gpu-1", shares="1", memory="2Gi")
        assert await node.refusal(even) == ""


async def test_a_time_slice_is_set_while_the_claim_that_asks_for_it_holds_the_gpu() -> None:
    short = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
    async with dra_node(names=NVIDIA_NAMES) as node:
        await node.until(lambda: len(node.devices) == 3, "three devices")

        def interval() -> Interval | None:
            return time_slices_of(node.hardware.state)[2].interval

        sliced = claim(node, "sliced", "gpu-2", {**MPS, "sharing": short})
        assert await node.refusal(sliced) == ""
        assert interval() is Interval.SHORT
        assert await node.call("unprepare", sliced) == {sliced.uid: ""}
        await node.until(lambda: interval() is Interval.DEFAULT, "the time slice of before")


async def test_a_claim_of_the_other_driver_is_not_ours() -> None:
    async with dra_node(names=NVIDIA_NAMES) as node:
        await node.until(lambda: len(node.devices) == 3, "three devices")
        node.names = OWN_NAMES
        other = claim(node, "other", "gpu-2")
        node.names = NVIDIA_NAMES
        assert "has no device of the driver gpu.nvidia.com" in await node.refusal(other)


async def test_what_was_prepared_under_the_other_name_is_held_until_it_has_ended() -> None:
    """Its record and its CDI file stay: its containers may be started again."""
    async with dra_node(policy=GPUS) as node:
        await node.until(lambda: node.device(2), "the device")
        before = claim(node, "before", node.device(2)["name"])
        assert await node.refusal(before) == ""
        await node.end()
        node.names = NVIDIA_NAMES
        await node.start()
        await node.until(lambda: "gpu-2" in node.devices, "the device under its other name")
        late = claim(node, "late", "gpu-2")
        assert "held by claim team/before" in await node.refusal(late)
        assert node.cdi(before.uid) is not None
        assert await node.call("unprepare", before) == {before.uid: ""}
        assert await node.refusal(late) == ""

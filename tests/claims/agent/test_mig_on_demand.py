"""MIG devices that are made when claims ask for them: the whole agent on a simulated node."""

from __future__ import annotations

import asyncio
from typing import Any

from partage.model.claim import ClaimRef
from tests.claims.agent.test_claims_of_node import DraNode, dra_node

ON_DEMAND = """
version: partage/v1
gpus:
  - {select: {index: [3]}, via: claims, mig: {on-demand: true}}
  - {select: rest, exclusive: {}}
"""


def named(node: DraNode, text: str) -> str:
    return next(name for name in node.devices if text in name)


def part(node: DraNode, name: str, text: str) -> ClaimRef:
    return node.claim(name, {"device": named(node, text)})


def whole(node: DraNode, name: str) -> ClaimRef:
    return node.claim(name, {"device": next(one for one in node.devices if "-mig-" not in one)})


def instances(node: DraNode, index: int = 3) -> Any:
    gpu = node.hardware._state.inventory.gpus[index]
    return sorted((device.profile, device.placement.start) for device in gpu.mig_devices)


async def test_a_claim_gets_a_mig_device_that_is_made_for_it() -> None:
    async with dra_node(ON_DEMAND) as node:
        await node.until(lambda: len(node.devices) > 20, "all places")
        claim = part(node, "a", "-mig-1g10gb-19-6")
        answer = (await node.prepare(claim))[claim.uid]
        assert answer.error == ""
        assert instances(node) == [("1g.10gb", 6)]

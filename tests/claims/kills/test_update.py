"""A new agent comes while the old one serves, as pods do that were deleted by force, and with a surge."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time

from partage.model.claim import ClaimRef
from tests.claims.kills.node import KilledNode, killed_node, names
from tests.edges.kube.store import claims_path
from tests.kubelet_script import LIMIT_S, grpc, until

FORGOTTEN_S = 30.0
"""A kubelet that does not reach a driver for so long deletes its slices."""


def whole(node: KilledNode, name: str) -> ClaimRef:
    """A claim of the first GPU that is given as a whole."""
    device = next(one for one in node.devices.values() if one["attributes"]["mode"]["string"] == "whole")
    result = {"request": "gpu", "driver": "gpu.partage.dev", "pool": "n1-partage", "device": device["name"]}
    found = {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {},
        "status": {"allocation": {"devices": {"results": [result], "config": []}}},
    }
    return ClaimRef("team", name, node.store.put(claims_path("team"), found)["metadata"]["uid"])


async def test_the_new_agent_waits_and_takes_over_claims_and_device_plugin() -> None:
    """One serves a node at a time, also for claims: the gap is far below what a kubelet bears."""
    async with killed_node() as node:
        first = whole(node, "first")
        answer = names((await node.call("prepare", first))[first.uid].devices)
        old = node.agent
        assert old is not None
        plugins, slices = len(node.kubelet.registered), dict(node.devices)
        node.start_agent(pod_uid="new")
        try:
            await _goes_on(node, first)
            assert len(node.kubelet.registered) == plugins
            registry = node.place.root / "plugins_registry"
            assert [path.name for path in registry.iterdir()] == ["gpu.partage.dev-reg.sock"]

            old.send_signal(signal.SIGTERM)
            ended_s = time.monotonic()
            assert await asyncio.to_thread(old.wait, LIMIT_S) == 0
            while True:
                try:
                    again = (await node.call("prepare", first, pod_uid="new"))[first.uid]
                    break
                except grpc.RpcError:
                    assert time.monotonic() < ended_s + FORGOTTEN_S, node.said()
            assert names(again.devices) == answer
            assert [path.name for path in registry.iterdir()] == ["gpu.partage.dev-new-reg.sock"]
            await until(lambda: len(node.kubelet.registered) > plugins, what="the device plugin")
            rival = whole(node, "rival")
            refused = (await node.call("prepare", rival, pod_uid="new"))[rival.uid].error
            assert "is held by claim team/first" in refused
            await until(lambda: dict(node.devices) == slices, what="the same slices")
        finally:
            await _gone(old)


async def _goes_on(node: KilledNode, claim: ClaimRef) -> None:
    """The old agent serves while the new one runs."""
    end_s = time.monotonic() + 1.5
    while time.monotonic() < end_s:
        assert not (await node.call("prepare", claim))[claim.uid].error
        assert node.agent is not None
        assert node.agent.poll() is None, node.said()
        await asyncio.sleep(0.05)


async def _gone(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    await asyncio.to_thread(process.wait)

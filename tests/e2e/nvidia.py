"""NVIDIA's device plugin (a stand-in) on the node of an own cluster, and the verbs that exchange it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.cluster import Cluster
from tests.nvidia_plugin import NvidiaPlugin, recording

RECORDED = "h100"
"""The machine: eight of these."""
LABEL = "nvidia.com/gpu.deploy.device-plugin"
NAME = "nvidia-device-plugin-daemonset"
PLUGIN = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": NAME, "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"name": "nvidia-device-plugin-ds"}},
        "template": {
            "metadata": {"labels": {"name": "nvidia-device-plugin-ds"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "nvidia-device-plugin-ctr",
                        "image": "docker.io/library/busybox:local",
                        "command": ["/pause"],
                    }
                ],
            },
        },
    },
}
"""As NVIDIA's static manifest. The stand-in runs here, and only while a pod of it does."""


class _StandIn:
    """The stand-in for NVIDIA's plugin: it starts and ends with the pod of its DaemonSet."""

    def __init__(self, cluster: Cluster, case: str) -> None:
        self._cluster = cluster
        self._plugin = NvidiaPlugin(cluster.path_on_node("/var/lib/kubelet/device-plugins"), RECORDED, case)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> _StandIn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _wanted(self) -> bool:
        pods = self._cluster.get("pods", "-n", "kube-system", "-l", "name=nvidia-device-plugin-ds")["items"]
        return any(
            one["status"]["phase"] == "Running" and "deletionTimestamp" not in one["metadata"] for one in pods
        )

    async def _run(self) -> None:
        try:
            while not self._stop.is_set():
                wanted = await asyncio.to_thread(self._wanted)
                if wanted != self._plugin.running:
                    await (self._plugin.start() if wanted else self._plugin.stop())
                await asyncio.sleep(0.2)
        finally:
            await self._plugin.stop()


@contextmanager
def nvidia_plugin(cluster: Cluster, case: str) -> Iterator[None]:
    """The plugin with the configuration of a recorded case serves the node while the label permits it."""
    cluster.apply(PLUGIN)
    try:
        with _StandIn(cluster, case):
            yield
            cluster.kubectl("delete", "daemonset", "-n", "kube-system", NAME, check=False)
    finally:
        cluster.kubectl("label", "node", cluster.node, f"{LABEL}-", check=False)


def install_beside(cluster: Cluster, case: str, **policies: str) -> None:
    """The chart, with the plugin's configuration as its policy, and others that a label may choose."""
    assert cluster.folder is not None
    found = recording(RECORDED)
    machine = cluster.folder / f"{RECORDED}.json"
    machine.write_text(json.dumps(found["machine"]))
    default = json.dumps({"version": "v1", **found["cases"][case]["config"]})
    cluster.install(
        wait=False,  # beside another plugin the agent is not ready
        hardware={"machine": f"/driver-root{machine}"},
        config={"map": {"default": default, **policies}},
    )


def exchange(node: Cluster, verb: str, state: Path, *, check: bool = True) -> str:
    """``partage takeover`` or ``handback`` through the API server; what it prints. state: the agent's."""
    places = [
        f"--kubelet-dir={node.path_on_node('/var/lib/kubelet/device-plugins')}",
        f"--run-dir={node.path_on_node('/run/partage')}",
        f"--state-dir={state}",
    ]
    where = ["--cluster", f"--kubeconfig={node.kubeconfig}", f"--node-name={node.node}", "--wait=60"]
    return node.run(sys.executable, "-m", "partage", verb, *places, *where, check=check)

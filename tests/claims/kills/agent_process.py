"""An agent in a process of its own that can kill itself after a step of a claim, or after one of the steps
with which a MIG device is made or destroyed, as SIGKILL does.

``python -m tests.claims.kills.agent_process ROOT URL [STEP NUMBER]``: after step STEP for the NUMBERth time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from partage.agent.kubelet_service import run
from partage.agent.log import configure
from partage.agent.options import AgentOptions
from partage.agent.parts import NoCluster
from partage.agent.status.status import AgentStatus
from partage.answers.report import ReportFile
from partage.claims.agent.part import ClaimsOfNode
from partage.claims.agent.ports import ClaimStep
from partage.edges.hardware.helper_client import RemoteHardware
from partage.edges.kube.config import ClusterConfig
from partage.model.claim import ClaimRef
from partage.model.step import (
    CreateCompute,
    Created,
    CreateInstance,
    DestroyCompute,
    DestroyInstance,
    SetMigMode,
    Step,
)
from tests.agent.harness import Place
from tests.agent.hosted import QUICK
from tests.edges.kube.scripted import CA

NODE = "n1"


MAKING = (SetMigMode, CreateInstance, CreateCompute, DestroyCompute, DestroyInstance)
"""What the reconciler does to a GPU on demand."""


class _Dies:
    def __init__(self, step: str, number: int) -> None:
        self._step, self._left = step, number

    async def __call__(self, step: ClaimStep, claim: ClaimRef) -> None:
        del claim
        self.done(step)

    def done(self, step: str) -> None:
        self._left -= step == self._step
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


class _DyingHardware(RemoteHardware):
    def __init__(self, socket: Path, dies: _Dies) -> None:
        super().__init__(socket)
        self._dies = dies

    async def perform(self, step: Step) -> Created | None:
        """The driver has done it, and nobody has heard of it yet."""
        created = await super().perform(step)
        self._dies.done(type(step).__name__)
        return created


class _Quiet(NoCluster):
    """The Node's labels are another test's."""

    async def run(self, config: Any, pause_s: float) -> None:
        del config, pause_s
        await asyncio.Event().wait()


async def _main(place: Place, url: str, dies: _Dies | None) -> None:
    options = AgentOptions(
        kubelet_dir=place.kubelet_dir,
        pod_resources=place.pod_resources,
        state_dir=place.state_dir,
        run_dir=place.run_dir,
        cdi_dir=place.root / "cdi",
        policy=place.policy,
        container_logs=place.container_logs,
        cluster=ClusterConfig(url=url, ca=CA),
        node_name=NODE,
        dra=True,
        pod_uid=os.environ.get("POD_UID", ""),
        intervals=QUICK,
    )
    socket = place.hardware_socket
    hardware = RemoteHardware(socket) if dies is None else _DyingHardware(socket, dies)
    hardware.start()

    async def reports(status: AgentStatus) -> None:
        file = ReportFile(status, options.intervals, options.report_file)
        while True:
            if file.is_outdated():
                await asyncio.to_thread(file.renew)
            await asyncio.sleep(options.intervals.report_s)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        await run(
            options,
            hardware,
            stop=stop,
            beside=reports,
            connect=_Quiet,
            connect_claims=partial(ClaimsOfNode, taken=dies) if dies else ClaimsOfNode,
        )
    finally:
        await hardware.close()


if __name__ == "__main__":
    root, url, *when = sys.argv[1:]
    configure()
    asyncio.run(_main(Place(Path(root)), url, _Dies(when[0], int(when[1])) if when else None))

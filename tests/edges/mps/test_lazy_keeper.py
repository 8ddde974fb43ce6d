"""A node without MPS daemons does not load what manages them; one with a daemon finds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from partage.edges.mps.keeper import MpsKeeper
from partage.edges.mps.lazy_keeper import KeeperOnDemand
from partage.model.mps import DaemonPhase
from partage.sim.mps.node import MpsNode
from partage.units import GIB
from tests.edges.mps.conftest import simulated_subject
from tests.edges.mps.subjects import GPUS, ending


def test_without_daemons_nothing_that_manages_them_is_loaded(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from partage.edges.mps.lazy_keeper import KeeperOnDemand\n"
        f"keeper = KeeperOnDemand(Path({str(tmp_path)!r}), lambda: sys.exit('made'))\n"
        "print(asyncio.run(keeper.states()), keeper.pipes())\n"
        "print(sorted(name for name in sys.modules if name.startswith('partage.edges.mps.')))"
    )
    told = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    assert told == ["() {}", "['partage.edges.mps.lazy_keeper', 'partage.edges.mps.paths']"]


async def test_a_daemon_of_before_is_found_and_one_is_started_and_stopped(short_dir: Path) -> None:
    async with ending(simulated_subject(short_dir, MpsNode(dict.fromkeys(GPUS, 80 * GIB)))) as subject:
        made: list[MpsKeeper] = []

        def make() -> MpsKeeper:
            made.append(MpsKeeper(subject.run_dir, subject.root))
            return made[-1]

        run_dir = subject.run_dir
        first = KeeperOnDemand(run_dir, make)
        assert await first.states() == ()
        assert made == []
        started = await first.start(subject.spec())
        assert started.phase is DaemonPhase.SERVING
        successor = KeeperOnDemand(run_dir, make)
        assert [state.device for state in await successor.states()] == [started.device]
        assert list(successor.pipes()) == [started.device]
        await successor.stop(started.device)
        assert await successor.states() == ()
        assert len(made) == 2

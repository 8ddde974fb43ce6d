"""A daemon whose files have gone cannot run another server: it is seen, and replaced once it is idle."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from partage.edges.hardware.port import DaemonKeeper
from partage.edges.mps.keeper import MpsKeeper
from partage.edges.mps.processes import ProcessTable
from partage.model.mps import DaemonPhase, DaemonState
from tests.edges.mps.subjects import Subject, until

SERVER = "nvidia-cuda-mps-server"


async def only(keeper: DaemonKeeper) -> DaemonState:
    (state,) = await keeper.states()
    return state


def _next_image(subject: Subject) -> DaemonKeeper:
    """A new helper with programs of its own; the image of the old one is removed with all its files."""
    image = subject.root / "next-image"
    shutil.copytree(subject.root / "usr/bin", image / "usr/bin")
    shutil.rmtree(subject.root / "usr")
    return MpsKeeper(subject.run_dir, image)


@pytest.mark.parametrize("protocol", [pytest.param(2, marks=pytest.mark.real), 3])
async def test_a_daemon_whose_image_is_gone_is_replaced_when_its_clients_have_left(
    simulated: Subject, protocol: int
):
    simulated.protocol = protocol
    first = await simulated.keeper().start(simulated.spec())
    tenant = await simulated.tenant()
    keeper = _next_image(simulated)

    now = await only(keeper)
    assert now.phase is DaemonPhase.SERVING
    assert now.reason.startswith("it is replaced once it has no clients: ")
    assert await tenant.says("launch") == "ok"
    assert (await keeper.start(simulated.spec())).pid == first.pid  # nobody's work is ended

    await tenant.leaves()

    async def is_idle() -> bool:
        return not (await only(keeper)).clients

    await until(is_idle)
    idle = await only(keeper)
    assert idle.phase is DaemonPhase.STARTING
    assert SERVER in idle.reason
    again = await keeper.start(simulated.spec())
    assert (again.phase, again.reason) == (DaemonPhase.SERVING, "")
    assert again.pid != first.pid
    simulated.client = (str(simulated.root / "next-image/usr/bin/mps-client"),)
    assert await (await simulated.tenant()).says("launch") == "ok"


async def test_a_server_that_cannot_be_started_refuses_its_clients_and_the_daemon_lives_on(
    simulated: Subject,
):
    before = await simulated.keeper().start(simulated.spec())
    (server,) = before.servers
    (simulated.root / "usr/bin" / SERVER).unlink()
    os.kill(server.pid, signal.SIGKILL)

    async def is_gone() -> bool:
        return not (await only(simulated.keeper())).servers

    await until(is_gone)
    assert await (await simulated.begins()).hears() == "CUDA_ERROR_MPS_CONNECTION_FAILED"
    now = await only(simulated.keeper())
    assert (now.phase, now.pid, now.servers) == (DaemonPhase.STARTING, before.pid, ())
    assert "Failed to start server" in (simulated.home() / "log/control.log").read_text()


# --- what /proc shows ---------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path) -> Path:
    """The directory in /proc of a daemon whose programs are all there."""
    here, root = tmp_path / "7", tmp_path / "of-the-daemon"
    here.mkdir()
    (root / "opt/bin").mkdir(parents=True)
    (root / "opt/bin" / SERVER).symlink_to("/etc/alternatives/not-in-this-process's-root")
    (here / "exe").symlink_to("/opt/bin/nvidia-cuda-mps-control")
    (here / "root").symlink_to(root)
    (here / "cmdline").write_bytes(b"/opt/bin/nvidia-cuda-mps-control\0-d\0")
    (here / "environ").write_bytes(b"PATH=/usr/bin:/opt/other\0")
    return here


def test_nothing_is_missing_where_the_server_is_beside_the_daemon_or_in_its_path(daemon: Path):
    table = ProcessTable(daemon.parent)
    assert table.missing_program(7) == ""
    other = daemon / "root/opt/other"
    other.mkdir()
    (daemon / "root/opt/bin" / SERVER).rename(other / SERVER)
    assert table.missing_program(7) == ""


def test_what_is_gone_is_named(daemon: Path):
    table = ProcessTable(daemon.parent)
    (daemon / "root/opt/bin" / SERVER).unlink()
    assert table.missing_program(7) == f"there is no {SERVER} in its file system any more"
    (daemon / "exe").unlink()
    (daemon / "exe").symlink_to("/opt/bin/nvidia-cuda-mps-control (deleted)")
    assert "has been removed" in table.missing_program(7)


def test_a_root_that_is_gone_is_not_the_same_as_one_that_may_not_be_seen(daemon: Path):
    table = ProcessTable(daemon.parent)
    shutil.rmtree((daemon / "root").readlink())
    assert table.missing_program(7).startswith("its file system is gone")
    assert table.missing_program(8) == ""  # the process has ended

"""``partage hardware``, as a supervisor and as the agent start it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from partage.cli import hardware
from partage.cli.hardware import helper_argv
from partage.edges.hardware.helper_client import RemoteHardware
from partage.errors import DriverUnavailable, Unsupported
from partage.model.gpu import Inventory
from partage.model.mps import DaemonSpec
from partage.model.step import StartDaemon
from tests.edges.hardware.stub import StubNode

MODULE = [sys.executable, "-P", "-m", "partage.cli.hardware"]
OLD_CHART = [sys.executable, "-P", "-m", "partage.faces.cli.hardware"]  # charts of the release before
VERB = [str(Path(sys.executable).with_name("partage")), "hardware"]


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("start", [MODULE, OLD_CHART, VERB], ids=["module", "old chart", "verb"])
def test_help_says_what_it_does(start: list[str]) -> None:
    answer = run([*start, "--help"])
    assert answer.returncode == 0
    assert "--socket" in answer.stdout


@pytest.mark.parametrize("start", [MODULE, OLD_CHART, VERB], ids=["module", "old chart", "verb"])
@pytest.mark.parametrize(
    "options",
    [
        ["--socket", "/tmp/" + "x" * 110],
        ["--socket", "/no/such/directory/s"],
        ["--what"],
        ["--machine", "8xnothing"],
        ["--mps-daemons", "swarm"],
    ],
    ids=["long path", "no directory", "unknown option", "unknown machine", "unknown home of daemons"],
)
def test_what_the_operator_got_wrong_is_exit_code_2_and_no_traceback(
    start: list[str], options: list[str]
) -> None:
    answer = run([*start, *options])
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "Traceback" not in answer.stderr
    assert answer.stderr


def test_standard_input_that_is_at_its_end_ends_it_at_once(short_dir: Path) -> None:
    answer = run([*MODULE, "--socket", str(short_dir / "s"), "--machine", "l4", "--until-eof"])
    assert answer.returncode == 0
    assert not (short_dir / "s").exists()


async def observed(hardware: RemoteHardware) -> Inventory:
    """Ask until the helper serves: its socket has a name before it listens."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(DriverUnavailable):
                return await hardware.observe()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_supervisors_signal_ends_it_cleanly(short_dir: Path, number: signal.Signals) -> None:
    path = short_dir / "s"
    helper = await asyncio.create_subprocess_exec(*MODULE, "--socket", str(path), "--machine", "2xl4")
    hardware = RemoteHardware(path)
    assert len((await observed(hardware)).gpus) == 2
    helper.send_signal(number)
    async with asyncio.timeout(30):
        assert await helper.wait() == 0
    assert not path.exists()
    await hardware.close()


def test_the_helper_is_small_and_imports_what_it_uses(short_dir: Path) -> None:
    """No click, no TLS, no simulation with the real driver, no pynvml with the simulation."""
    argv = helper_argv(short_dir / "s", machine=None, driver_root=short_dir)
    assert argv[1:4] == MODULE[1:]
    told = run([argv[0], "-X", "importtime", *argv[1:]]).stderr
    modules = {
        line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")
    }
    assert "partage.edges.hardware.nvml" in modules
    unwanted = {
        "click",
        "rich",
        "_ssl",
        "grpclib",
        "yaml",
        "google.protobuf",
        "partage.sim.node.hardware",
        "pynvml",
    }
    assert not modules & unwanted


def test_the_face_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        _ = hardware.no_such_thing
    assert hardware.command.name == "hardware"


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="systemd runs here, and would be asked")
async def test_where_daemons_have_to_be_units_none_is_started_without_systemd(
    node: StubNode, short_dir: Path
) -> None:
    node.add_h100s(1)
    path = short_dir / "h.sock"
    argv = helper_argv(path, driver_root=node.root, run_dir=short_dir / "run")
    hardware = RemoteHardware(path, [*argv, "--mps-daemons=systemd"])
    try:
        gpu = (await hardware.observe()).gpus[0].uuid
        with pytest.raises(Unsupported, match="MPS daemons are to be units of the node's systemd, and "):
            await hardware.perform(StartDaemon(gpu, DaemonSpec(gpu, gpu)))
        assert await hardware.daemons() == ()
    finally:
        await hardware.close()

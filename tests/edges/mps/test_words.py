"""What the control programs of three branches answer, word for word: NVIDIA's own, and the simulated one.

Recorded of 535.261.03, 550.163.01 and 555.58.02, without a GPU, and so without a server.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.model.mps import CONTROL_PROGRAM
from partage.sim.mps.node import MpsNode, install_programs
from partage.units import GIB
from tests.edges.mps.subjects import GPUS
from tests.nvidia.packages import BRANCHES, unpacked

pytestmark = pytest.mark.real

NONE = "Cannot find MPS control daemon process\n"
NO_USER = "A user id (UID) is required to start a new server\n"
_LIMIT, _READ = "set_default_device_pinned_mem_limit", "get_default_device_pinned_mem_limit"
_THREADS = "set_default_active_thread_percentage"

WORDS = [
    ("get_server_list", ""),
    ("ps", "Server not found\n"),
    ("x", 'Unknown command "x"\n'),
    ("", 'Unknown command ""\n'),
    ("help", 'Unknown command "help"\n'),
    ("lspart", 'Unknown command "lspart"\n'),
    ("get_client_list 99", "Server 99 not found\n"),
    ("get_client_list", "Server 0 not found\n"),
    ("get_active_thread_percentage 99", "Server 99 not found\n"),
    ("set_active_thread_percentage 99 10", "Server 99 not found\n"),
    ("get_device_pinned_mem_limit 99 0", "Server 99 not found\n"),
    ("set_device_pinned_mem_limit 99 0 2G", "Server 99 not found\n"),
    ("shutdown_server 99", "Server 99 not found\n"),
    ("terminate_client 1 2", "Server 1 not found\nServer 1 not found!\n1\n"),
    ("get_device_client_list 99", "Server 99 not found\n"),
    ("start_server", NO_USER),
    ("start_server -uid x", NO_USER),
    (f"{_THREADS} 25", "25.0\n"),
    (f"{_THREADS} 12.5", "12.5\n"),
    (f"{_THREADS} 0", "12.5\n"),
    (f"{_THREADS} 101", "12.5\n"),
    (f"{_THREADS} abc", "12.5\n"),
    (f"{_THREADS} 33.333", "33.3\n"),
    ("get_default_active_thread_percentage", "33.3\n"),
    (f"{_READ} 0", ""),
    (f"{_READ}", ""),
    (f"{_LIMIT} 1 2G", ""),
    (f"{_READ} 1", "2G\n"),
    (f"{_LIMIT} {GPUS[0]} 3G", ""),
    (f"{_READ} {GPUS[0]}", ""),
]
"""A command and its answer, in this order."""

STATUS = {
    "get_server_status 1": "Server 1 not found\n",
    "get_server_status": "A server PID is required\n",
    "get_server_status abc": "A server PID is required\n",
}
"""Not of 535, which has no such command."""

AMOUNTS = {
    "2G": "2G\n",
    "2048M": "2G\n",
    "3500M": "3G\n",
    "20378M": "19G\n",
    "1023M": "1023M\n",
    "1500000M": "1464G\n",
    "10GB": "10G\n",
    "512MB": "512M\n",
    "1.5G": "1M\n",
    "0M": "",
    "5": "5M\n",
    "6K": "6M\n",
    "2g": "2G\n",
    "1024": "1G\n",
    "2G x": "2G\n",
    "abc": "",
    "": "",
}
"""A limit that is set to how it is printed."""


class Program:
    """One control program, and its daemon's directories."""

    def __init__(self, program: Path, place: Path) -> None:
        self.pipe, log = place / "pipe", place / "log"
        for directory in (self.pipe, log):
            directory.mkdir()
        self._program = program
        self._environment = {
            "PATH": f"{program.parent}:/usr/bin:/bin",
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(log),
            "CUDA_VISIBLE_DEVICES": GPUS[0],
        }

    def run(self, *options: str, command: str = "") -> tuple[int, str]:
        """Its exit code and what it prints. command: a line on its standard input.

        The output goes to a file: a daemon keeps it open.
        """
        with (self.pipe.parent / "said").open("w+") as said:
            done = subprocess.run(
                [self._program, *options],
                env=self._environment,
                input=None if options else f"{command}\n",
                stdout=said,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=60,
            )
            said.seek(0)
            return done.returncode, said.read()


@pytest.fixture(params=BRANCHES)
def branch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["NVIDIA's", "simulated"])
def program(request: pytest.FixtureRequest, branch: str, short_dir: Path) -> Iterator[Program]:
    if request.param == "simulated":
        node = MpsNode.of_branch(int(branch), dict.fromkeys(GPUS, 80 * GIB))
        one = Program(install_programs(short_dir / "bin", node), short_dir)
    else:
        one = Program(unpacked(branch) / "usr/bin" / CONTROL_PROGRAM, short_dir)
    yield one
    one.run(command="quit")


def test_it_answers_as_recorded(program: Program, branch: str) -> None:
    assert program.run(command="ps") == (1, NONE)
    if branch != "555":
        assert program.run("-d", "-multiuser-server") == (1, NONE)
        assert program.run(command="ps") == (1, NONE), "there is no daemon"
    assert program.run("-d") == (0, "")
    assert program.run("-d") == (1, "An instance of this daemon is already running\n")
    assert (program.pipe / f"{CONTROL_PROGRAM}.pid").exists() is (branch != "535")

    for command, answer in WORDS:
        assert program.run(command=command) == (0, answer), command
    for command, answer in STATUS.items():
        unknown = 'Unknown command "get_server_status"\n'
        assert program.run(command=command) == (0, unknown if branch == "535" else answer), command
    for amount, printed in AMOUNTS.items():
        assert program.run(command=f"{_LIMIT} 0 {amount}") == (0, "")
        assert program.run(command=f"{_READ} 0") == (0, printed), amount
    assert program.run(command="quit") == (0, "")


def test_one_server_for_all_users_is_known_to_555(program: Program, branch: str) -> None:
    if branch != "555":
        pytest.skip("refused by older ones: see above")
    assert program.run("-d", "-multiuser-server") == (0, "")
    assert program.run(command="get_server_list") == (0, "")

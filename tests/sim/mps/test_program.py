"""The simulated control program as a program: how it starts, refuses to, and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.sim.mps.client import CudaError, MpsConnection, NoDaemon
from partage.sim.mps.node import MpsNode, install_programs
from partage.units import GIB
from tests.kubelet_script import wait_for
from tests.sim.mps import programs

GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
ROOT = os.geteuid() == 0
NOBODY = 65534


class Program:
    def __init__(self, directory: Path) -> None:
        self.pipe, self.log = directory / "pipe", directory / "log"
        self.pipe.mkdir(parents=True)
        self.log.mkdir()
        self.path = install_programs(directory / "bin", MpsNode({GPU: 16 * GIB}))
        self.of_tests = programs.install_programs(directory / "tests/usr/bin", MpsNode({GPU: 16 * GIB}))
        self.env = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}

    def run(self, *options: str, says: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return self._run(self.path, options, says, self.env | env)

    def run_of_tests(self, *options: str, says: str = "") -> subprocess.CompletedProcess[str]:
        return self._run(self.of_tests, options, says, self.env)

    def _run(
        self, path: Path, options: tuple[str, ...], says: str, env: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [path, *options], input=says, env=env, capture_output=True, text=True, timeout=20, check=False
        )

    def both_say(self, *options: str, says: str = "") -> tuple[int, str, str]:
        """Exit code, output and errors: of the program, and of that of tests, which must not differ."""
        first, second = self.run(*options, says=says), self.run_of_tests(*options, says=says)
        told = (first.returncode, first.stdout, first.stderr)
        assert (second.returncode, second.stdout, second.stderr) == told
        return told


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    with contextlib.suppress(subprocess.TimeoutExpired):
        made.run(says="quit -t 0\n")


def test_it_goes_to_the_background_and_leaves_its_pid(program: Program):
    assert program.run("-d").returncode == 0
    pid = int((program.pipe / "nvidia-cuda-mps-control.pid").read_text())
    assert b"nvidia-cuda-mps-control" in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert os.getsid(pid) != os.getsid(0)
    said = "Starting control daemon using socket"
    wait_for(lambda: said in (program.log / "control.log").read_text(), what="its first line")


def has_ended(pid: int) -> bool:
    """A killed process whose parent has not looked yet holds nothing any more."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except FileNotFoundError:
        return True


def test_several_commands_are_answered_in_turn(program: Program):
    program.run("-d")
    asked = program.run(says="set_default_active_thread_percentage 20\nget_server_list\nps\n")
    assert asked.stdout.splitlines()[0] == "20.0"
    assert asked.stdout.splitlines()[1:] == ["Server not found"], "as NVIDIA's program without a server"


def test_without_a_daemon_it_says_that_there_is_none(program: Program):
    asked = program.run(says="get_server_list\n")
    assert (asked.returncode, asked.stderr) == (1, "Cannot find MPS control daemon process\n")
    with pytest.raises(NoDaemon):
        MpsConnection(program.pipe, {})


def test_a_second_daemon_does_not_start(program: Program):
    program.run("-d")
    second = program.run("-d")
    assert (second.returncode, second.stderr) == (1, "An instance of this daemon is already running\n")


def test_a_killed_daemon_is_in_nobodys_way(program: Program):
    program.run("-d")
    pid = int((program.pipe / "nvidia-cuda-mps-control.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: has_ended(pid), what="the daemon's end")
    assert program.run("-d").returncode == 0


@pytest.mark.parametrize("missing", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"])
def test_a_directory_that_is_not_there_keeps_it_from_starting(program: Program, missing: str):
    refused = program.run("-d", **{missing: str(program.pipe / "nowhere")})
    assert refused.returncode == 1
    assert "nowhere" in refused.stderr or "No such file" in refused.stderr


@pytest.mark.parametrize("options", [("-x",), ("-d", "-x"), ("--help",)])
def test_an_unknown_option_keeps_it_from_starting(program: Program, options: tuple[str, ...]):
    assert program.run(*options).returncode == 1
    assert not (program.pipe / "control").exists()


def test_it_quits_once_the_last_client_has_gone(program: Program):
    program.run("-d")
    client = MpsConnection(program.pipe, {})
    with subprocess.Popen([program.path], stdin=subprocess.PIPE, env=program.env, text=True) as quitting:
        assert quitting.stdin is not None
        quitting.stdin.write("quit\n")
        quitting.stdin.close()
        while True:  # until it takes nobody any more
            try:
                MpsConnection(program.pipe, {}).close()
            except CudaError:
                break
        client.launch()
        assert quitting.poll() is None
        client.close()
        assert quitting.wait(10) == 0
    assert list(program.pipe.iterdir()) == []


def test_with_a_timeout_it_does_not_wait_for_clients(program: Program):
    program.run("-d")
    client = MpsConnection(program.pipe, {})
    assert program.run(says="quit -t 0\n").returncode == 0
    with pytest.raises(CudaError):
        client.launch()
    client.close()


def test_a_server_without_a_gpu_exits_and_its_client_is_told(program: Program):
    program.run("-d", CUDA_VISIBLE_DEVICES="GPU-of-nobody")
    with pytest.raises(CudaError, match="CUDA_ERROR_MPS_CONNECTION_FAILED"):
        MpsConnection(program.pipe, {})
    assert "exited with status 1" in (program.log / "control.log").read_text()


@pytest.mark.skipif(not ROOT, reason="a server of another user takes root")
def test_a_server_that_cannot_pass_a_parent_of_its_pipe_exits(program: Program):
    """So it goes below /run/nvidia with mode 0700, and root's clients do not notice."""
    program.pipe.parent.chmod(0o700)
    program.run("-d")
    program.run(says=f"start_server -uid {NOBODY}\n")
    while "exited with status 1" not in (program.log / "control.log").read_text():
        program.run(says="get_server_list\n")
    MpsConnection(program.pipe, {}).close()


def test_nonsense_on_the_socket_ends_the_connection_and_not_the_daemon(program: Program):
    program.run("-d")
    for nonsense in (b"{}\n", b"[]\n", b"\xff\n", b'{"env": 3}\n', b'{"env": {}}\n{"do": "allocate"}\n'):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(str(program.pipe / "control"))
            sock.sendall(nonsense)
            while sock.recv(4096):
                pass
    MpsConnection(program.pipe, {}).close()


def test_the_program_of_tests_says_the_same(program: Program):
    assert program.both_say(says="ps\n") == (1, "", "Cannot find MPS control daemon process\n")
    assert program.both_say("-d", "-x")[0] == program.both_say("--help")[0] == 1
    assert program.run_of_tests("-d").returncode == 0
    assert program.both_say("-d") == (1, "", "An instance of this daemon is already running\n")
    told = program.both_say(says="  get_default_active_thread_percentage\n\nget_server_list\nnonsense\nps")
    assert told == (0, '100.0\nUnknown command ""\nUnknown command "nonsense"\nServer not found\n', "")
    assert program.both_say() == (0, "", "")
    with subprocess.Popen([program.path], stdin=subprocess.PIPE, env=program.env, text=True) as first:
        opened = program.log / "control.log"
        wait_for(lambda: opened.read_text().rstrip().endswith("NEW UI"), what="its connection")
        assert program.both_say(says="ps\n") == (0, "", ""), "sent away without a word"
        first.kill()
    wait_for(lambda: program.run(says="ps\n").stdout, what="its end")


# --- version 3 of its language -------------------------------------------------------------------------


@pytest.fixture
def named(program: Program) -> Iterator[Program]:
    """A daemon of version 3, without a server."""
    assert program.run("-d", "-p", "3").returncode == 0
    yield program
    program.run("-q")


def test_a_command_is_its_arguments_and_a_server_has_a_directory_of_its_own(named: Program):
    assert named.run("server", "create", "training", "--uid=" + str(os.geteuid())).returncode == 0
    listed = named.run("server", "list", "training", "--format=csv,noheader").stdout
    assert listed.split(",")[:2] == ["training", str(os.geteuid())]
    assert (named.pipe / "training/default/control").is_socket()
    MpsConnection(named.pipe / "training/default", {}).close()
    assert named.run("server", "delete", "training").returncode == 0
    wait_for(lambda: named.run("server", "list", "training").returncode, what="the end of its process")
    with pytest.raises(NoDaemon):
        MpsConnection(named.pipe / "training/default", {})


def test_a_complaint_is_an_exit_code_and_words_on_standard_error(named: Program):
    refused = named.run("server", "delete", "nobody")
    assert (refused.returncode, refused.stdout, "nobody" in refused.stderr) == (1, "", True)


def test_the_program_of_tests_says_the_same_in_version_3(named: Program):
    assert named.both_say("server", "list", "--format=csv,noheader") == (0, "", "")
    code, said, error = named.both_say("server", "delete", "nobody")
    assert (code, said, "nobody" in error) == (1, "", True)
    assert named.run_of_tests("server", "create", "training").returncode == 0
    wait_for(lambda: "Ready" in named.run("server", "list").stdout, what="its process")
    assert named.both_say("server", "list", "training", "--format=csv,noheader")[1].startswith("training,")
    assert named.run_of_tests("-q").returncode == 0
    assert list(named.pipe.iterdir()) == []


def test_the_running_daemon_decides_which_language_counts(named: Program):
    assert named.run("-p", "2", "server", "list").returncode == 0
    assert named.run(says="get_server_list\n").returncode == 1


def test_the_variable_outranks_the_option(program: Program):
    assert program.run("-d", "-p", "2", CUDA_MPS_PROTOCOL_VERSION="3").returncode == 0
    assert program.run("server", "list").returncode == 0
    assert program.run("-q").returncode == 0
    assert list(program.pipe.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ("-d", "-p", "4"),
        ("-d", "-p", "3", "-multiuser-server"),
        ("-d", "-m"),
        ("-d", "-p", "3", "-a", "/nowhere"),
        ("-d", "-p"),
    ],
)
def test_options_of_another_version_keep_it_from_starting(program: Program, options: tuple[str, ...]):
    assert program.run(*options).returncode == 1
    assert not (program.pipe / "control").exists()


def test_a_file_that_is_no_configuration_keeps_it_from_starting(program: Program, tmp_path: Path):
    (tmp_path / "mps.toml").write_text("servers = {")
    refused = program.run("-d", "-p", "3", "-a", str(tmp_path / "mps.toml"))
    assert (refused.returncode, bool(refused.stderr)) == (1, True)

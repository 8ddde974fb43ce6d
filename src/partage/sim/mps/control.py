"""``nvidia-cuda-mps-control``: starts the daemon (-d, -f), or sends it commands.

Version 2 of the control interface has commands on standard input, version 3 as arguments. The daemon, not the
program, decides which version is in use.

Messages are NVIDIA's where these are known; a comment says where they are ours. Little is imported: the
program runs once for every single command.
"""

from __future__ import annotations

import os
import sys

from partage.sim.mps.wire import ERROR_PREFIX, QUIT, command_connection, daemon_listens

# Not typing: its import takes longer than all that the program does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable, Iterable, Sequence

_MODULES = ("server", "namespace", "client")

_PIPE, _LOG = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - NVIDIA's defaults


def main(argv: Sequence[str]) -> int:
    """Run the program; its exit code."""
    words = list(argv[1:])
    version = _value(words, "-p") or "2"
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _PIPE)
    if not words:
        return _command_line(pipe)
    if words[0] in (*_MODULES, QUIT):
        return _command(pipe, " ".join(words))
    if {"-d", "-f"} & set(words):
        version = os.environ.get("CUDA_MPS_PROTOCOL_VERSION", version)
        return _start(argv[0], pipe, words, version)
    return _fail("Usage: nvidia-cuda-mps-control [-d | -f] [-p 2|3] [MODULE VERB]")  # our words


def _value(words: list[str], option: str) -> str | None:
    """The word after an option; both are removed from ``words``. None where the option is missing."""
    if option not in words[:-1]:
        return None
    at = words.index(option)
    value = words[at + 1]
    del words[at : at + 2]
    return value


def _command(pipe: str, command: str) -> int:
    """Send one command, print its answer; the exit code."""
    return _converse(pipe, [command])


def _command_line(pipe: str) -> int:
    """Version 2: one command a line, until the input ends."""
    return _converse(pipe, sys.stdin)


def _converse(pipe: str, commands: Iterable[str]) -> int:
    """Give commands on one connection, print the answers; the exit code."""
    try:
        sock = command_connection(pipe)
    except OSError:
        return _fail("Cannot find MPS control daemon process")
    try:
        for command in commands:
            text = ask(sock, command.strip())
            if text is None:
                return 0  # without a word: as NVIDIA's program (535, 550, 555)
            if text.startswith(ERROR_PREFIX):
                return _fail(text.removeprefix(ERROR_PREFIX))
            if text:
                print(text, flush=True)  # noqa: T201 - a program's output
    finally:
        sock.close()
    return 0


def ask(sock: socket, command: str) -> str | None:
    """The answer; None if there is none: see ``CONTROL_HELLO``."""
    answer = b""
    try:
        sock.sendall(command.encode() + b"\n")
        while chunk := sock.recv(65536):
            answer += chunk
            size, newline, text = answer.partition(b"\n")
            if newline and len(text) == int(size):
                return text.decode()
    except OSError:
        pass
    return None


def _start(program: str, pipe: str, words: list[str], version: str) -> int:
    from pathlib import Path

    from partage.model.mps import MULTI_USER_OPTIONS
    from partage.sim.mps import daemon
    from partage.sim.mps.node import load_node

    programs = Path(program).resolve().parent
    node = load_node(programs)
    configuration = _value(words, "-a") if version == "3" else None
    options = set(words) - {"-d", "-f"}
    if version not in ("2", "3") or int(version) > node.protocol:
        return _fail(f"Unknown option: -p {version}")  # our words
    known = MULTI_USER_OPTIONS[int(version)]
    multi_user = known in options
    if daemon_listens(pipe):
        return _fail("An instance of this daemon is already running")
    if options - {known} or (multi_user and not node.multi_user):
        return _fail("Cannot find MPS control daemon process")  # 535, 550; 555 prints its help
    settings = daemon.DaemonSettings(
        pipe=Path(pipe),
        log=Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", _LOG)),
        programs=programs,
        node=node,
        devices=node.visible(os.environ.get("CUDA_VISIBLE_DEVICES")),
        multi_user=multi_user,
        environment=dict(os.environ),
        protocol=int(version),
        configuration=None if configuration is None else Path(configuration),
    )
    if "-d" in words:
        return _in_background(lambda report: daemon.main(settings, report))
    return daemon.main(settings, lambda error: print(error, file=sys.stderr))  # noqa: T201


def _in_background(run: Callable[[Callable[[str], None]], int]) -> int:
    """Fork twice, into a session of its own. Returns when the daemon has reported how its start went."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(reading)
        null = os.open(os.devnull, os.O_RDWR)
        for handle in range(3):
            os.dup2(null, handle)
        os._exit(run(lambda error: _report(writing, error)))
    os.close(writing)
    os.wait()
    with os.fdopen(reading, encoding="utf-8") as outcome:
        text = outcome.read()
    return 0 if text == "started" else _fail(text or "The control daemon ended at its start")


def _report(writing: int, error: str) -> None:
    os.write(writing, (error or "started").encode())
    os.close(writing)


def _fail(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 1

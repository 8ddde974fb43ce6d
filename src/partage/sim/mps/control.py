"""``nvidia-cuda-mps-control``: starts the daemon (-d, -f), or hands it commands.

In version 2 of its language they come on standard input, in version 3 as arguments. Which one counts is the
daemon's affair, whatever the program is told.

Where the words are known they are NVIDIA's; they are marked where they are ours. Little is imported: the
program is run for every single command.
"""

from __future__ import annotations

import os
import sys

# Not socket, and not typing: to import them takes longer than all that the program does.
from _socket import AF_UNIX, SOCK_STREAM, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ASKS = b"control "
"""How a control program begins; its command follows, and a newline. The answer ends with the connection."""
FAILED = "\x01"
"""How an answer of version 3 begins that is a complaint; the program then exits with 1, which is ours."""
MODULES = ("server", "namespace", "client")
QUIT = "-q"

_PIPE, _LOG = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - NVIDIA's defaults
_MULTI_USER = {2: "-multiuser-server", 3: "-m"}


def main(argv: Sequence[str]) -> int:
    """Run the program; its exit code."""
    words = list(argv[1:])
    version = _value(words, "-p") or "2"
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _PIPE)
    if not words:
        return _command_line(pipe)
    if words[0] in (*MODULES, QUIT):
        return _command(pipe, " ".join(words))
    if {"-d", "-f"} & set(words):
        version = os.environ.get("CUDA_MPS_PROTOCOL_VERSION", version)
        return _start(argv[0], pipe, words, version)
    return _fail("Usage: nvidia-cuda-mps-control [-d | -f] [-p 2|3] [MODULE VERB]")  # our words


def _value(words: list[str], option: str) -> str | None:
    """The word after an option, both taken out; None where it does not stand there."""
    if option not in words[:-1]:
        return None
    at = words.index(option)
    value = words[at + 1]
    del words[at : at + 2]
    return value


def _command(pipe: str, command: str) -> int:
    """One command of version 3."""
    try:
        text = _ask(pipe, command)
    except OSError:
        return _fail("Cannot find MPS control daemon process")
    if text.startswith(FAILED):
        return _fail(text.removeprefix(FAILED))
    if text:
        print(text)  # noqa: T201 - a program's output
    return 0


def _command_line(pipe: str) -> int:
    """One command a line, until the input ends; what each of them prints."""
    for line in sys.stdin:
        try:
            text = _ask(pipe, line.strip())
        except OSError:
            return _fail("Cannot find MPS control daemon process")
        if text.startswith(FAILED):
            return _fail(text.removeprefix(FAILED))
        if text:
            print(text)  # noqa: T201 - a program's output
        sys.stdout.flush()
    return 0


def _ask(pipe: str, command: str) -> str:
    """Raises OSError where nobody listens. A daemon that was told to quit answers by ending."""
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.connect(f"{pipe}/control")
        sock.sendall(ASKS + command.encode() + b"\n")
        return b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    finally:
        sock.close()


def _start(program: str, pipe: str, words: list[str], version: str) -> int:
    from pathlib import Path

    from partage.sim.mps import daemon
    from partage.sim.mps.node import load

    programs = Path(program).resolve().parent
    node = load(programs)
    configuration = _value(words, "-a") if version == "3" else None
    options = set(words) - {"-d", "-f"}
    if version not in ("2", "3") or int(version) > node.protocol:
        return _fail(f"Unknown option: -p {version}")  # our words
    known = _MULTI_USER[int(version)]
    multi_user = known in options
    if options - {known} or (multi_user and not node.multi_user):
        return _fail(f"Unknown option: {' '.join(sorted(options))}")  # our words
    if listens(pipe):
        return _fail("An instance of this daemon is already running")
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
    return daemon.main(settings, lambda complaint: print(complaint, file=sys.stderr))  # noqa: T201


def _in_background(run: Callable[[Callable[[str], None]], int]) -> int:
    """Fork twice, in a session of its own; done when the daemon has said how its start went."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(reading)
        null = os.open(os.devnull, os.O_RDWR)
        for handle in range(3):
            os.dup2(null, handle)
        os._exit(run(lambda complaint: _report(writing, complaint)))
    os.close(writing)
    os.wait()
    with os.fdopen(reading, encoding="utf-8") as outcome:
        complaint = outcome.read()
    return 0 if complaint == "started" else _fail(complaint or "The control daemon ended at its start")


def _report(writing: int, complaint: str) -> None:
    os.write(writing, (complaint or "started").encode())
    os.close(writing)


def listens(pipe: str) -> bool:
    """Whether a daemon serves this pipe directory, and this process may reach it."""
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.connect(f"{pipe}/control")
    except OSError:
        return False
    finally:
        sock.close()
    return True


def _fail(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 1

"""What goes over the helper's socket, byte for byte; and verbs of one checkout with the helper of another."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.freeze.place import Checkout, keep, place

_MACHINE = "2xh100-sxm5-80gb+2xl40s"
_POLICIES = ("02-time-slicing/ten", "04-mps-on-two-of-eight/policy", "06-mig/mixed", "01-whole-gpus/policy")
_LIMIT_S = 20


def frames(checkout: Checkout, folder: Path) -> None:
    """The conversation of ``apply``, ``assert`` and ``export`` with a helper on a simulated node."""
    home = Path(checkout.environment["HOME"])
    with _helper(checkout, home / "hw.sock"), _relay(home / "hw.sock", home / "relay.sock") as said:
        for words in _verbs():
            done = checkout.run(*words, "--hardware-socket", str(home / "relay.sock"), check=False)
            said.append(f"$ partage {' '.join(words)}: exit {done.returncode}")
    keep(folder, "frames.txt", [_settled(line) for line in said])


def cross(old: Checkout, new: Checkout) -> int:
    """Answers of verbs with the helper of their own checkout and with that of the other; 1: they differ."""
    different = 0
    with place() as home:
        for verbs_of, helper_of in ((old, new), (new, old)):
            answers = []
            for helper in (verbs_of, helper_of):
                with _helper(helper, home / "hw.sock"):
                    given = ("--hardware-socket", str(home / "hw.sock"))
                    done = [verbs_of.run(*words, *given, check=False) for words in _verbs()]
                answers.append([(one.returncode, one.stdout, one.stderr) for one in done])
            same = answers[0] == answers[1]
            words = "same" if same else "differ"
            print(f"verbs of {verbs_of.root} with the helper of {helper_of.root}: {words}")
            for words, mine, others in zip(_verbs(), *answers, strict=True):
                if mine != others:
                    different += 1
                    print("  partage", *words, mine, others, sep="\n    ")
    return int(different > 0)


def _verbs() -> Iterator[tuple[str, ...]]:
    yield ("export", "-o", "json")
    for name in _POLICIES:
        policy = f"examples/{name}.yaml"
        yield ("apply", "-f", policy, "-o", "json", "--state-dir", "state", "--run-dir", "run")
        yield ("assert", "-f", policy, "-o", "json", "--state-dir", "state", "--run-dir", "run")
        yield ("export", "-o", "json")


@contextmanager
def _helper(checkout: Checkout, path: Path) -> Iterator[None]:
    """It runs in the foreground, and ends with its standard input."""
    words = ("hardware", "--socket", str(path), "--machine", _MACHINE, "--run-dir", "run", "--until-eof")
    helper = subprocess.Popen(
        checkout.program(*words), env=checkout.environment, cwd=path.parent, stdin=subprocess.PIPE
    )
    try:
        _wait_for(path, helper)
        yield
    finally:
        helper.communicate(timeout=_LIMIT_S)


def _wait_for(path: Path, helper: subprocess.Popen[bytes]) -> None:
    for _ in range(_LIMIT_S * 20):
        with socket.socket(socket.AF_UNIX) as tried:
            try:
                tried.connect(str(path))
            except OSError:
                if helper.poll() is not None:
                    break
                threading.Event().wait(0.05)
            else:
                return
    raise RuntimeError(f"no helper at {path}")


@contextmanager
def _relay(helper: Path, path: Path) -> Iterator[list[str]]:
    """A socket whose messages go to the helper's and back. Yields the messages: ``> ``, ``< ``."""
    said: list[str] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(helper))
                for source, target, mark in ((client, server, "> "), (server, client, "< ")):
                    threading.Thread(target=_pass_on, args=(source, target, mark, said), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield said
        listening.shutdown(socket.SHUT_RDWR)


def _pass_on(source: socket.socket, target: socket.socket, mark: str, said: list[str]) -> None:
    with source.makefile("rb") as reader:
        try:
            while length := reader.read(4):
                body = reader.read(int.from_bytes(length, "big"))
                said.append(mark + body.decode())
                target.sendall(length + body)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return


def _settled(line: str) -> str:
    """Without the pid of the helper and moments, which no clock of ours decides."""
    line = re.sub(r'"pid":\d+', '"pid":0', line)
    if line.startswith("< "):
        answer = json.loads(line[2:])
        return "< " + json.dumps(answer, separators=(",", ":"), ensure_ascii=False)
    return line

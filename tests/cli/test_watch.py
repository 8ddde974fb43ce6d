"""``partage show --watch``."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

from partage.cli.main import run

SHOW = [sys.executable, "-m", "partage", "show", "--watch", "--interval", "0.1", "--machine"]


def _read_until(descriptor, wanted, times=1):
    """What comes until ``wanted`` has come so often; at most 20 s."""
    text, end = b"", time.monotonic() + 20
    while text.count(wanted) < times:
        assert select.select([descriptor], [], [], end - time.monotonic())[0], text
        text += os.read(descriptor, 65536)
    return text


def test_a_terminal_is_drawn_anew_until_ctrl_c_and_then_as_it_was():
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*SHOW, "1xl4"], env={**os.environ, "LC_ALL": "C.UTF-8"}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        text = _read_until(ours, b"\x1b[H", times=3)
        assert text.startswith(b"\x1b[?1049h")
        assert "░".encode() in text
        process.send_signal(signal.SIGINT)
        assert _read_until(ours, b"\x1b[?1049l")
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_elsewhere_one_answer_follows_the_other_and_a_lost_node_is_said_and_waited_for(tmp_path):
    machine = tmp_path / "machine.json"
    assert run(["record", "--machine", "1xl4", "--to", str(machine)]) == 0
    process = subprocess.Popen(
        [*SHOW, str(machine), "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        text = _read_until(process.stdout.fileno(), b"\n}\n", times=2)
        first, _ = json.JSONDecoder().raw_decode(text.decode())
        assert first["kind"] == "Node"
        machine.rename(tmp_path / "away.json")
        _read_until(process.stderr.fileno(), b"error: ")
        (tmp_path / "away.json").rename(machine)
        assert _read_until(process.stdout.fileno(), b"\n}\n", times=2)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.communicate()


def test_an_error_at_the_first_look_ends_it(capsys):
    assert run(["show", "--watch", "--machine", "nothing-like-it"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_standard_input_cannot_be_watched(capsys):
    assert run(["show", "--watch", "--machine", "1xl4", "-f", "-"]) == 2
    assert "standard input" in capsys.readouterr().err

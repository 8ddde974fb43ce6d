"""The helper without a network still answers on its socket."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partage.edges.hardware import frames
from partage.edges.host.unix_sockets import is_listening

_HELPER = ["-P", "-m", "partage.cli.hardware", "--machine", "l4", "--no-network"]


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave its network namespace")
def test_a_helper_without_network_answers_on_its_socket(short_dir: Path) -> None:
    path = short_dir / "s"
    helper = subprocess.Popen([sys.executable, *_HELPER, "--socket", str(path)])
    try:
        deadline = time.monotonic() + 20
        while not is_listening(path):
            assert helper.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(10)
            peer.connect(str(path))
            peer.sendall(frames.pack_message({"id": 1, "verb": "hello"}))
            assert json.loads(peer.recv(65536)[4:])["result"]["pid"] == helper.pid
        assert _namespace(helper.pid) != _namespace(os.getpid())
        devices = Path(f"/proc/{helper.pid}/net/dev").read_text().splitlines()[2:]
        assert {line.split(":")[0].strip() for line in devices} <= {"lo", "tunl0", "sit0", "ip6tnl0"}
    finally:
        helper.terminate()
        helper.wait(10)

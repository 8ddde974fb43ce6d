"""A real systemd as process 1 of a pid namespace, with cgroups, a /run and a mount namespace of its own.

It is the node of the tests; containers are processes in its pid namespace and in a cgroup elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path("/usr/lib/systemd/systemd")
DRIVER = "/run/nvidia/driver"
START_S = 20.0

BOOT = """
set -e
echo $$ > "$2/cgroup.procs"
exec unshare --pid --fork --mount --propagation private --cgroup --mount-proc --kill-child sh -ec '
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd /run/nvidia/driver
mount --rbind / /run/nvidia/driver
mount --make-rshared /
exec env -i PATH="$PATH" container=test SYSTEMD_UNIT_PATH="$1/units" \\
  /usr/lib/systemd/systemd --system --unit=node.target --log-target=console' sh "$1"
"""
UNIT = "[Unit]\nDescription=Of the test\nDefaultDependencies=no\n"


@dataclass
class Node:
    """pid: of its process 1, as the test sees it."""

    pid: int

    def enter(self, *command: str) -> list[str]:
        """The command line of a program on the node."""
        return ["nsenter", "--target", str(self.pid), "--pid", "--mount", "--cgroup", *command]

    def systemctl(self, *arguments: str) -> str:
        asked = self.enter("env", "-i", f"PATH={os.environ['PATH']}", "systemctl", *arguments)
        return subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False).stdout

    def run(self, text: str) -> str:
        asked = self.enter("sh", "-c", text)
        return subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout


def why_not(root: Path | None) -> str:
    """Why this machine cannot run it; empty: it can, as far as can be seen."""
    if root is None:
        return "the host's cgroup v2 tree cannot be written"
    missing = [name for name in ("unshare", "nsenter", "systemctl") if shutil.which(name) is None]
    return f"there is no {missing[0]}" if missing else "" if PROGRAM.exists() else f"there is no {PROGRAM}"


@contextlib.contextmanager
def real_systemd(root: Path) -> Iterator[Node]:
    """root: the host's cgroup v2."""
    cgroup = Path(tempfile.mkdtemp(prefix="partage-test-node-", dir=root))
    with tempfile.TemporaryDirectory(prefix="partage-node-", dir="/tmp") as directory:
        units = Path(directory, "units")
        units.mkdir()
        for name in ("node", "sysinit", "basic", "shutdown"):
            (units / f"{name}.target").write_text(UNIT)
        with Path(directory, "log").open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", BOOT, "sh", directory, str(cgroup)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Node(_process_1(process, Path(directory, "log")))
        finally:
            (cgroup / "cgroup.kill").write_text("1")
            process.wait()
            _remove(cgroup)


def _process_1(started: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_S
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
    while time.monotonic() < deadline and started.poll() is None:
        for child in children.read_text().split():
            if "active" in Node(int(child)).systemctl("is-active", "node.target").split():
                return int(child)
        time.sleep(0.05)
    raise RuntimeError(f"systemd did not start: {log.read_text()[-2000:]}")


def _remove(cgroup: Path) -> None:
    """Remove a cgroup with all below it, once its killed processes have left."""
    deadline = time.monotonic() + 10
    while "populated 1" in (cgroup / "cgroup.events").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for directory, _, _ in os.walk(cgroup, topdown=False):
        Path(directory).rmdir()


PYTHON = sys.executable

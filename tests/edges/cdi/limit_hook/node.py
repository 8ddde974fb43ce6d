"""A node with cgroup v2 and real containers: a mount namespace, the real runc, and the stand-in for NVML."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from partage.edges.cdi import limit_hook
from tests.compiled import compiled
from tests.edges.hardware.stub import StubNode

SOURCE = Path(limit_hook.__file__).parent
"""The hook's source, and the script that builds it."""

PROGRAM = "partage-limit-hook"
GROUP = f"partage-test-{os.getpid()}"
"""The cgroup above all that are made here."""


_IN_CGROUP2 = """\
#!/bin/sh
mounted='/bin/mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$0" "$@"'
exec /usr/bin/unshare --mount --propagation private /bin/sh -c "$mounted" {program} "$@"
"""


def built_hook(folder: Path) -> Path:
    """The hook, compiled into a folder."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    environment = os.environ | {"CFLAGS": "-Werror"}
    return compiled(
        folder / PROGRAM,
        [path for path in SOURCE.iterdir() if path.suffix in (".c", ".h") or path.name == "build"],
        lambda program: subprocess.run([SOURCE / "build", program], check=True, env=environment),
    )


def hook_in_cgroup2(program: Path, wrapper: Path) -> Path:
    """The hook as on a node with cgroup v2 alone, for one that has it beside v1. Written to wrapper."""
    wrapper.write_text(_IN_CGROUP2.format(program=program))
    wrapper.chmod(0o755)
    return wrapper


@dataclass(frozen=True, slots=True)
class Kept:
    """One line of what the driver was told."""

    gpu: str
    soft: int
    hard: int
    directory: str


def kept_limits(driver: StubNode) -> list[Kept]:
    """What the driver was told, in order."""
    file = driver.library.with_name("limits.txt")
    rows = [line.split(" ") for line in file.read_text().splitlines()] if file.exists() else []
    return [
        Kept(StubNode.uuid(int(gpu)), int(soft), int(hard), directory) for gpu, directory, soft, hard in rows
    ]


class CgroupNode:
    """A mount namespace with cgroup v2 at /sys/fs/cgroup, whatever the machine has there."""

    def __init__(self) -> None:
        if os.geteuid():
            pytest.skip("containers are started as root")
        for program in ("unshare", "nsenter"):
            if shutil.which(program) is None:
                pytest.skip(f"no {program}")
        mounts = "mount -t cgroup2 cgroup2 /sys/fs/cgroup && echo ready && exec cat"
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            pytest.skip("this machine mounts no cgroup v2")
        self._inside = ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt"]

    def run(
        self, *words: str | Path, stdin: str | bytes = b"", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """What a program says in this namespace."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        ended = subprocess.run(
            [*self._inside, *words], input=given, capture_output=True, timeout=timeout_s, check=False
        )
        texts = [text.decode(errors="replace") for text in (ended.stdout, ended.stderr)]
        return subprocess.CompletedProcess(ended.args, ended.returncode, *texts)

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        """A program in this namespace."""
        return subprocess.Popen([*self._inside, *words], **options)

    @contextmanager
    def process_in(self, cgroup: str) -> Iterator[int]:
        """The pid of a process in a cgroup that is made for it."""
        place = f"/sys/fs/cgroup{cgroup}"
        sleeper = self.start(
            "sh", "-c", f"mkdir -p {place} && echo $$ > {place}/cgroup.procs && echo ready && exec cat",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert sleeper.stdout is not None
            assert sleeper.stdout.readline() == b"ready\n"
            yield sleeper.pid
        finally:
            sleeper.communicate()
            self.remove_cgroup("/" + cgroup.split("/")[1])

    def remove_cgroup(self, cgroup: str) -> None:
        """With those below it; what was just ended may be in it for a moment."""
        place = f"/sys/fs/cgroup{cgroup}"
        remove = 'find "$1" -depth -type d -exec rmdir {} +; [ -e "$1" ] && sleep 0.05'
        self.run("sh", "-c", f"for turn in $(seq 100); do {remove} || exit 0; done", "sh", place)

    def close(self) -> None:
        """End the namespace."""
        self._process.communicate()


@dataclass(slots=True)
class Runc:
    """The real runc. folder: of its state and of bundles. image: a root file system."""

    node: CgroupNode
    folder: Path
    image: Path
    started: list[str] = field(default_factory=list)

    def bundle(
        self,
        id_: str,
        hooks: Sequence[dict[str, Any]],
        *args: str,
        env: Sequence[str] = (),
        mounts: Sequence[tuple[Path, str]] = (),
    ) -> Path:
        """A bundle of this container. mounts: what is mounted read-only, and where. args: its command."""
        made = self.folder / "bundles" / id_
        made.mkdir(parents=True)
        kinds = ("pid", "ipc", "uts", "mount")
        config = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": list(args),
                "env": ["PATH=/bin", *env],
                "cwd": "/",
            },
            "root": {"path": str(self.image), "readonly": True},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                *(
                    {"destination": to, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}
                    for source, to in mounts
                ),
            ],
            "hooks": {"createRuntime": list(hooks)},
            "linux": {
                "namespaces": [{"type": kind} for kind in kinds],
                "cgroupsPath": f"/{GROUP}/{id_}",
            },
        }
        (made / "config.json").write_text(json.dumps(config))
        return made

    def command(self, *words: str) -> list[str]:
        return ["runc", "--root", str(self.folder / "runc"), *words]

    def run(self, id_: str, bundle: Path) -> subprocess.CompletedProcess[str]:
        """Start it, wait for its end, remove it."""
        ended = self.node.run(*self.command("run", "--bundle", str(bundle), id_))
        self.node.run(*self.command("delete", "--force", id_))
        return ended

    def close(self) -> None:
        """Remove the cgroup above those of the containers."""
        self.node.remove_cgroup(f"/{GROUP}")

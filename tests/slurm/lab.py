"""Real Slurms on loopback: several slurmd on one host, fake device files, no systemd.

Three builds: that of this machine, and those of newer Debians in directories that ``make slurm`` fills; the
latter run in a chroot in a mount namespace of its own, which takes root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from partage.slurm.text.hostlist import expand_hostlist

_ROOTS = Path(os.environ.get("PARTAGE_SLURMS", Path(__file__).parents[2] / "build" / "slurm"))
_SUBREAPER = 36
_SETTINGS = "CPUs=16 RealMemory=2000"
_HARMLESS = re.compile(
    r"pmix|differs from hardware|hwloc_topo_load|Domain socket directory|/state/|Trying backup state|"
    r"keepalive interval|High latency for"
)
"""Of every Slurm that starts for the first time, of a closed connection, of a busy machine."""
_BASE = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
{auth}
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/s/%n
SlurmctldPidFile={d}/c.pid
SlurmdPidFile={d}/d-%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd-%n.log
DebugFlags=Gres
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=1
MailProg=/bin/true
FirstJobId={first}
Include {d}/partage/slurm.conf
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Build:
    """One installed Slurm. root: of a chroot; None: this machine's."""

    version: str
    root: Path | None = None

    def command(self, *words: str, run: Path | None = None) -> list[str]:
        """The command line that runs a program of this build. /tmp is the same inside and outside; /host is
        this machine, for scripts of jobs.

        run: what it finds as /run; None: an empty one. slurmctld and clients talk over a socket there, and
        each slurmd makes one, always of the same name.
        """
        if self.root is None:
            return list(words)
        inside = (
            'mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && mount --bind /tmp "$0/tmp" '
            f'&& {"mount -t tmpfs tmpfs" if run is None else f"mount --bind {run}"} "$0/run" '
            '&& mkdir -p "$0/host" && mount --rbind / "$0/host" '
            '&& exec chroot "$0" "$@"'
        )
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, str(self.root), *words]


def why_not(build: Build) -> str:
    """Why this build cannot be used here; empty if it can."""
    if build.root is None:
        missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
        return f"{missing[0]} is not installed ('make slurm' installs it as root)" if missing else ""
    if not (build.root / "usr/sbin/slurmctld").exists():
        return f"no Slurm in {build.root} ('make slurm' fills it as root)"
    return "" if os.getuid() == 0 else "a chroot takes root"


def _tested(build: Build) -> object:
    """The build as a parameter of a test, which is skipped where there is no such Slurm."""
    why = why_not(build)
    return pytest.param(
        build, marks=pytest.mark.skipif(bool(why), reason=why or "it is here"), id=build.version
    )


def _version_in(root: Path, otherwise: str) -> str:
    """Of the Slurm in this directory. A suite that is still made gets another one some day."""
    with contextlib.suppress(OSError):
        status = (root / "var/lib/dpkg/status").read_text()
        if found := re.search(r"^Package: slurmctld\n(?:.+\n)*?Version: ([\d.]+)", status, re.MULTILINE):
            return found[1]
    return otherwise


def _of_suite(suite: str, otherwise: str) -> Build:
    return Build(_version_in(_ROOTS / suite, otherwise), _ROOTS / suite)


OLD, NEW, NEWEST = Build("22.05.8"), _of_suite("trixie", "24.11.5"), _of_suite("forky", "26.05.5")
ALL = bool(os.environ.get("PARTAGE_SLURM_ALL"))
"""Whether each test is to run on every Slurm; ``make slurm`` sets it. ``make test-all`` runs those of jobs on
one, and the newest Slurm is tried by few of them."""
_NEWER = (NEW, NEWEST) if ALL else (NEW,)
NEWER = [_tested(build) for build in _NEWER]
BUILDS = [_tested(build) for build in (OLD, *_NEWER)]


def on(*builds: Build) -> list[object]:
    """The builds on which a test of jobs runs: all, or these."""
    return BUILDS if ALL else [_tested(build) for build in builds]


only_in_make_slurm = pytest.mark.skipif(not ALL, reason="make slurm runs it")


def free_ports(count: int) -> list[int]:
    """As many different ports that nothing listens on, below those that the kernel gives to clients."""
    found: set[int] = set()
    while len(found) < count:
        port = 12_000 + secrets.randbelow(20_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)


class Lab:
    """A cluster of the nodes of a configuration that ``partage slurm config`` wrote.

    files: its answer by name; ports and sizes of the nodes are added. idle: every node is to be idle, else
    only registered. Use as a context manager, or ``close`` it.
    """

    def __init__(self, build: Build, files: dict[str, str], nodes: list[str], *, idle: bool = True) -> None:
        self.build, self.nodes, self._idle = build, nodes, idle
        self.d = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
        self.d.chmod(0o755)
        self._up = False
        self._procs: list[subprocess.Popen[bytes]] = []
        for name in ("state", "s", "log", "run", "partage", "dev/nvidia-caps"):
            (self.d / name).mkdir(parents=True)
        self._conf(files)
        self.env = {**os.environ, "SLURM_CONF": str(self.d / "slurm.conf")}

    def _conf(self, files: dict[str, str]) -> None:
        port, *ports = free_ports(1 + len(self.nodes))
        host = socket.gethostname().partition(".")[0]
        user = pwd.getpwuid(os.getuid()).pw_name
        if self.build.root is not None:
            (self.d / "slurm.key").write_bytes(secrets.token_bytes(1024))
            (self.d / "slurm.key").chmod(0o600)
            auth = "AuthType=auth/slurm\nCredType=cred/slurm"
        else:
            (self.d / "munge.key").write_bytes(secrets.token_bytes(128))
            (self.d / "munge.key").chmod(0o400)
            auth = f"AuthType=auth/munge\nAuthInfo=socket={self.d}/m.sock"
        first = 1000 + secrets.randbelow(6000) * 10_000
        text = _BASE.format(host=host, port=port, user=user, auth=auth, d=self.d, first=first)
        (self.d / "slurm.conf").write_text(text)
        for paths in set(re.findall(r"(?i)files?\s*=\s*(\S+)", files["gres.conf"])):
            for device in _expanded(paths):
                with contextlib.suppress(FileExistsError):
                    (self.d / device.lstrip("/")).symlink_to("/dev/null")
        gres = files["gres.conf"].replace("/dev/nvidia", f"{self.d}/dev/nvidia")
        (self.d / "gres.conf").write_text(gres)
        (self.d / "cgroup.conf").write_text(files["cgroup.conf"])
        where = f"NodeHostname={host} NodeAddr=127.0.0.1"
        lines = [
            f"NodeName={node} {where} Port={at} {_SETTINGS} {_rest(files['slurm.conf'], node)}"
            for node, at in zip(self.nodes, ports, strict=True)
        ]
        others = [line for line in files["slurm.conf"].splitlines() if not line.startswith("NodeName=")]
        (self.d / "partage" / "slurm.conf").write_text("\n".join((*others, *lines)) + "\n")

    def run(self, *words: str, timeout: float = 20) -> subprocess.CompletedProcess[str]:
        """Run a program of the build."""
        return subprocess.run(
            self.build.command(*words, run=self.d / "run"),
            env=self.env,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def complaints(self) -> list[str]:
        """What ``slurmd -G`` says against the configuration; its exit code is 0 for most mistakes."""
        bad = []
        for node in self.nodes:
            done = self.run("slurmd", "-G", "-N", node, "-f", str(self.d / "slurm.conf"), timeout=40)
            said = (done.stdout + done.stderr).splitlines()
            bad += [f"{node}: {line}" for line in said if _is_complaint(line)]
            bad += [f"{node}: exit code {done.returncode}"] if done.returncode else []
        return bad

    def logged_complaints(self) -> list[str]:
        """The same in the logs of the daemons."""
        logs = (self.d / "log").glob("*.log")
        return [line for log in logs for line in log.read_text().splitlines() if _is_complaint(line)]

    def _spawn(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.d / "log" / f"{words[0]}-{len(self._procs)}.out").open("wb") as log:
            run = None if words[0] == "slurmd" else self.d / "run"
            proc = subprocess.Popen(
                self.build.command(*words, run=run),
                env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._procs.append(proc)
        return proc

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # orphaned slurmstepd come to us
        if self.build.root is None:
            d = self.d
            self._spawn(
                "munged", "-F", f"--socket={d}/m.sock", f"--key-file={d}/munge.key",
                f"--log-file={d}/log/munged.out", f"--pid-file={d}/m.pid", f"--seed-file={d}/m.seed",
            )  # fmt: skip
            self._until((d / "m.sock").exists)
        self._spawn("slurmctld", "-D", "-c", "-i")
        self._until(lambda: "is UP" in self.run("scontrol", "ping").stdout)
        self._up = True
        for node in self.nodes:
            self._spawn("slurmd", "-D", "-N", node)
        self._until(self._all_idle)

    def states(self) -> dict[str, str]:
        """Node to its state."""
        rows = (row.split() for row in self.run("sinfo", "-h", "-N", "-o", "%N %t").stdout.splitlines())
        return dict(row for row in rows if len(row) == 2)

    def _all_idle(self) -> bool:
        states = self.states().values()
        if not self._idle:
            return len(states) == len(self.nodes) and not any("unk" in one or "*" in one for one in states)
        return len(states) == len(self.nodes) and all(state == "idle" for state in states)

    def _until(self, true, seconds: float = 40, every: float = 0.02) -> None:
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end or any(proc.poll() is not None for proc in self._procs):
                raise RuntimeError(self.logs())
            time.sleep(every)

    def wait_for(self, true, seconds: float = 40) -> None:
        """Wait until ``true()``. Raises RuntimeError with the logs.

        Asking more often keeps the scheduler of 24.11 from its work, for 5 s.
        """
        self._until(true, seconds, 0.15)

    def logs(self) -> str:
        """The end of every log."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in (self.d / "log").iterdir())

    def __exit__(self, *exc: object) -> None:
        if self._up:
            with contextlib.suppress(Exception):
                self.run("scancel", "-u", str(os.getuid()), timeout=5)
                self._until(lambda: not self.run("squeue", "-h").stdout.strip(), 5, 0.15)
        for proc in reversed(self._procs):
            with contextlib.suppress(ProcessLookupError):
                proc.send_signal(signal.SIGTERM)
        for proc in reversed(self._procs):
            try:
                proc.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(proc.pid, signal.SIGKILL)
                proc.wait()
        _end_steps()
        ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)
        self.close()

    def close(self) -> None:
        """Remove the files of a lab that was not started."""
        shutil.rmtree(self.d, ignore_errors=True)


def _end_steps() -> None:
    """End what slurmstepd still runs, and itself; no other child of this process."""
    for step in _children(os.getpid(), "slurmstepd"):
        for pid in (*_children(step), step):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(step, 0)


def _children(parent: int, name: str = "") -> list[int]:
    """The processes of that parent whose name begins like that."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = stat.read_text().rpartition(") ")
            if rest.split()[1] == str(parent) and head.partition("(")[2].startswith(name):
                found.append(int(stat.parent.name))
    return found


def _is_complaint(line: str) -> bool:
    return re.search(r"error:|fatal:|WARNING", line) is not None and not _HARMLESS.search(line)


def _expanded(paths: str) -> list[str]:
    """The files; none for a list that is wrong on purpose."""
    try:
        return expand_hostlist(paths)
    except ValueError:
        return []


def _rest(conf: str, node: str) -> str:
    """What the written line of a node says after its name."""
    for line in conf.splitlines():
        name, _, rest = line.removeprefix("NodeName=").partition(" ")
        if line.startswith("NodeName=") and node in expand_hostlist(name):
            return rest
    raise AssertionError(f"{node} is not in {conf}")

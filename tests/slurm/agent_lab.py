"""A real Slurm with one node, the agent on it, and simulated GPUs that outlive the agent."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from partage.slurm.host.control import SlurmControl
from tests.slurm.decide import configs
from tests.slurm.lab import Build, Lab

MACHINE = "2xh100-sxm5-80gb"
_PROGRAMS = ("scontrol", "squeue")


def policy(layout: str, d: Path) -> str:
    """GPU 1 has this layout; empty: both GPUs are whole. Device files are those of the lab."""
    mig = f"gpus: [{{select: {{index: [1]}}, mig: {{layout: [{layout}]}}}}]\n" if layout else ""
    return f"version: partage/v1\nresources: {{driver-root: {d}}}\n{mig}"


class AgentLab(Lab):
    """The node's files are its own, included by gres.conf and slurm.conf; both GPUs are whole at first."""

    def __init__(
        self, build: Build, *, tracked: bool = False, low: bool = False, faults: Sequence[str] = ()
    ) -> None:
        """tracked: jobs are in cgroups of their own (v1). low: the node has less memory than slurm.conf says.
        faults: of the simulated node, as its file says them."""
        super().__init__(build, configs.files(configs.WHOLE, build.version, MACHINE), ["g1"], idle=not low)
        self.agents: list[subprocess.Popen[bytes]] = []
        for name in ("nodes", "bin", "agent", "kept"):
            (self.d / name).mkdir()
        for number in range(700):
            (self.d / "dev" / "nvidia-caps" / f"nvidia-cap{number}").symlink_to("/dev/null")
        if low:
            for path in (self.d / "slurm.conf", self.d / "partage" / "slurm.conf"):
                text = path.read_text().replace("SlurmdParameters=config_overrides\n", "")
                path.write_text(text.replace("CPUs=16 RealMemory=2000", "CPUs=1 RealMemory=900000000"))
        self._split()
        self._machine = MACHINE
        if faults:
            self._machine = str(self.d / "machine.yaml")
            gpu = "{name: NVIDIA H100 80GB HBM3}"
            Path(self._machine).write_text(f"gpus: [{gpu}, {gpu}]\nfaults: [{', '.join(faults)}]\n")
        for name in _PROGRAMS:
            self._script(name, [f"/usr/bin/{name}"], run=True)
        self._script("slurmd", ["/usr/sbin/slurmd", "-N", "g1"], run=False)
        pid = self.d / "d-g1.pid"
        self._write(
            "restart-slurmd",
            f"echo restart-slurmd >>{self.d}/log/calls\n"
            # Again and again: a slurmd that is told while it reads its files anew notices it only when
            # something else comes (_msg_engine in src/slurmd/slurmd/slurmd.c of 22.05).
            f'old=$(cat {pid}); while kill $old 2>/dev/null && ! grep -q "State:.Z" '
            f"/proc/$old/status; do sleep 0.05; done\n{self.d}/bin/slurmd </dev/null >/dev/null 2>&1 &\n",
        )
        for path in (self.d / "nodes").iterdir():
            os.utime(path, (1, 1))  # from before slurmd was started
        if tracked:
            conf = self.d / "slurm.conf"
            conf.write_text(conf.read_text().replace("proctrack/linuxproc", "proctrack/cgroup"))
            (self.d / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
        self.control = SlurmControl(self.d / "bin", self.env)
        self.set_policy("")

    def _split(self) -> None:
        """The node's lines into files of its own."""
        conf = self.d / "partage" / "slurm.conf"
        lines = conf.read_text().splitlines()
        (node,) = (line for line in lines if line.startswith("NodeName="))
        words = node.split()[1:]
        self.settings = " ".join(word for word in words if not word.startswith(("Gres=", "Features=")))
        nodes = self.d / "nodes"
        (nodes / "g1.slurm.conf").write_text(f"# Written by 'partage slurm config'\n{node}\n")
        others = [line for line in lines if not line.startswith("NodeName=")]
        conf.write_text("\n".join((*others, f"Include {nodes}/g1.slurm.conf")) + "\n")
        (nodes / "g1.gres.conf").write_text((self.d / "gres.conf").read_text())
        (self.d / "gres.conf").write_text(f"Include {nodes}/g1.gres.conf\n")

    def _script(self, name: str, words: list[str], *, run: bool) -> None:
        command = self.build.command(*words, run=self.d / "run" if run else None)
        self._write(
            name,
            f"export SLURM_CONF={self.d}/slurm.conf\necho {name} $1 >>{self.d}/log/calls\n"
            f'[ "$1" != reconfigure ] || [ ! -e {self.d}/no-reconfigure ] || exit 1\n'
            f'exec {shlex.join(command)} "$@"\n',
        )

    def _spawn(self, *words: str) -> subprocess.Popen[bytes]:
        """slurmd is a daemon here, so that the agent can restart it."""
        if words[0] != "slurmd":
            return super()._spawn(*words)
        proc = subprocess.Popen(
            [str(self.d / "bin" / "slurmd")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        proc.wait(20)
        return proc

    def _write(self, name: str, text: str) -> None:
        path = self.d / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)

    # --- the node -----------------------------------------------------------------------------

    def set_policy(self, layout: str) -> None:
        """Another policy, as an administrator would put it there."""
        beside = self.d / "policy.new"
        beside.write_text(policy(layout, self.d))
        beside.replace(self.d / "policy.yaml")

    def wait_for(self, true, seconds: float = 40) -> None:
        """As of every lab; the agent makes several requests before something is seen."""
        super().wait_for(true, seconds)

    def change_by_hand(self, layout: str) -> None:
        """An administrator makes a layout, and asks nobody."""
        file = self.d / "by-hand.yaml"
        file.write_text(policy(layout, self.d))
        words = ["apply", "--policy", str(file), "--hardware-socket", str(self.d / "agent" / "hardware.sock")]
        words += ["--state-dir", str(self.d / "by-hand"), "--pod-resources", "none"]
        subprocess.run([sys.executable, "-m", "partage", *words], check=True, capture_output=True, timeout=30)

    def __enter__(self) -> AgentLab:
        super().__enter__()
        socket = self.d / "agent" / "hardware.sock"
        words = [
            "hardware",
            "--machine",
            self._machine,
            "--socket",
            str(socket),
            "--run-dir",
            str(self.d / "agent"),
        ]
        self._procs.append(self._python("-m", "partage", *words))
        self._until(socket.exists)
        return self

    def start_agent(self, **environ: str) -> subprocess.Popen[bytes]:
        """The agent, with these variables beside its own; it ends with the lab."""
        given = {
            "directory": str(self.d),
            "version": self.build.version,
            "settings": self.settings,
            "state": str(self.d / "kept"),
        }
        agent = self._python("-m", "tests.slurm.fast_agent", json.dumps(given), **environ)
        self.agents.append(agent)
        return agent

    def _python(self, *words: str, **environ: str) -> subprocess.Popen[bytes]:
        with (self.d / "log" / "agent.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2], start_new_session=True, env={**os.environ, **environ},
            )  # fmt: skip

    def __exit__(self, *exc: object) -> None:
        for agent in self.agents:
            with contextlib.suppress(ProcessLookupError):
                agent.send_signal(signal.SIGKILL)
            agent.wait()
        super().__exit__(*exc)

    def stop_slurmd(self) -> None:
        """End it, as a shutdown does."""
        slurmd = int((self.d / "d-g1.pid").read_text())
        while os.waitpid(slurmd, os.WNOHANG) == (0, 0):
            os.kill(slurmd, signal.SIGTERM)
            time.sleep(0.05)

    def start_slurmd(self) -> None:
        """Start it, as a boot does."""
        self._spawn("slurmd")

    def called(self, words: str) -> int:
        """How often the agent, or a test, has called this program of Slurm."""
        return (self.d / "log" / "calls").read_text().splitlines().count(words)

    def close(self) -> None:
        """End slurmd too."""
        with contextlib.suppress(OSError, ValueError):
            self.stop_slurmd()
        for directory in sorted(Path("/sys/fs/cgroup/freezer/slurm_g1").glob("**"), reverse=True):
            with contextlib.suppress(OSError):  # what Slurm leaves there of a node that has ended
                directory.rmdir()
        super().close()

    # --- what is there -------------------------------------------------------------------------

    @property
    def node(self):
        """The node, as slurmctld knows it."""
        return self.control.node("g1")

    def types(self) -> list[str]:
        """The types of gres.conf, in its order."""
        return re.findall(r"Type=(\S+)", (self.d / "nodes" / "g1.gres.conf").read_text())

    def log(self) -> str:
        """The agent's log."""
        return (self.d / "log" / "agent.log").read_text()

    def submit(self, gres: str, seconds: int = 60) -> str:
        """A job that runs; its number."""
        done = self.run(
            "sbatch", "--parsable", "-o", "/dev/null", f"--gres={gres}", "--wrap", f"sleep {seconds}"
        )
        assert done.returncode == 0, done.stderr
        self.wait_for(lambda: any(str(job.job) == done.stdout.strip() for job in self.control.jobs("g1")))
        return done.stdout.strip()

    def restart_slurmd(self) -> None:
        """As the agent does it."""
        subprocess.run([str(self.d / "bin" / "restart-slurmd")], check=True, timeout=20)

    def replace_slurmctld(self) -> None:
        """End slurmctld and start it with what it has saved."""
        with self.without_slurmctld():
            pass

    @contextlib.contextmanager
    def without_slurmctld(self) -> Iterator[None]:
        """End slurmctld; start it afterwards with what it has saved."""
        (old,) = (one for one in self._procs if "slurmctld" in str(one.args))
        pid = int((self.d / "c.pid").read_text())
        self._procs.remove(old)
        os.kill(pid, signal.SIGTERM)
        old.wait(10)
        yield
        self._spawn("slurmctld", "-D", "-i")

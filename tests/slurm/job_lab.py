"""A real Slurm with the scripts of deploy/slurm, and the simulated MPS control program as its driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from partage.sim.mps.node import MpsNode
from partage.slurm.cluster import make_config
from partage.slurm.decide.type_names import TypeNames
from partage.slurm.host.devices_file import devices_text
from partage.slurm.host.job_records import read_records
from partage.slurm.model import SlurmVersion
from partage.slurm.text.conf_writer import config_files
from tests.sim.mps.programs import install_programs
from tests.slurm.decide import configs
from tests.slurm.lab import Build, Lab

_HERE = Path(__file__).parents[2]
SCRIPTS = _HERE / "deploy" / "slurm"


class JobLab(Lab):
    """Nodes that are alike, ``g1`` and so on, with a policy, and Partage around their jobs.

    multi_user: whether the control program can serve several users at the same time. everyone: the scripts
    run on a Python that every user can reach. conf: more lines of slurm.conf. select: SelectTypeParameters.
    nodes: how many; run_dir and what is said of records and daemons are those of the first. A job that is put
    back into the queue begins again after 20 s; without ``cred_expire`` after 130 s.
    """

    def __init__(
        self,
        build: Build,
        policy: str,
        machine: str = "2xh100-sxm5-80gb",
        *,
        multi_user: bool = True,
        everyone: bool = False,
        conf: str = "",
        idle: bool = True,
        nodes: int = 1,
        select: str = "CR_Core",
    ) -> None:
        names = [f"g{number + 1}" for number in range(nodes)]
        written = make_config(
            (configs.source(policy, machine, names),), SlurmVersion.parse(build.version), TypeNames("short")
        )
        super().__init__(build, config_files(written.config), names, idle=idle)
        self.devices = written.devices[0].devices
        self.run_dir = self.d / "p-g1"
        self.devices_file = self.d / "devices.json"
        self.devices_file.write_text(devices_text(written.devices[0]))
        driver = self.d / "driver"
        memory = {str(one.uuid): one.memory_bytes for one in self.devices}
        install_programs(driver / "usr/bin", MpsNode(memory, multi_user=multi_user))
        self._everyone = everyone
        python = _python_for_all(self.d) if everyone else sys.executable
        self._install_scripts(python, driver)
        text = (self.d / "slurm.conf").read_text()
        for before, after in (
            ("Parameters=CR_Core\n", f"Parameters={select}\n"),
            ("m.sock\n", "m.sock,cred_expire=10\n"),
            ("AuthType=auth/slurm\n", "AuthType=auth/slurm\nAuthInfo=cred_expire=10\n"),
        ):
            text = text.replace(before, after)
        (self.d / "slurm.conf").write_text(
            f"{text}Prolog={self.d}/prolog\nEpilog={self.d}/epilog\nTaskProlog={self.d}/task-prolog\n"
            f"PrologFlags=Alloc\n{conf}\n"
        )

    def _install_scripts(self, python: str, driver: Path) -> None:
        shims = self.d / "bin"
        shims.mkdir()
        values = {
            "PYTHON": python,
            "PATH": f"{shims}:/usr/sbin:/usr/bin:/sbin:/bin",
            "RUN_DIR": f"{self.d}/p-$SLURMD_NODENAME",
            "DEVICES": str(self.devices_file),
            "DRIVER_ROOT": str(driver),
        }
        for name in ("prolog", "epilog", "task-prolog"):
            text = (SCRIPTS / name).read_text()
            for key, value in values.items():
                text = re.sub(rf"^{key}=.*$", f"{key}={value}", text, flags=re.MULTILINE)
            # What a script says is kept, for the logs of a test that fails.
            script = self.d / f"{name}.real"
            script.write_text(text)
            into = f"2>>{self.d}/log/{name}.said" if name != "task-prolog" else ""
            inside = self.build.root is None or (self._everyone and name == "task-prolog")
            enter = "" if inside else "/usr/sbin/chroot /host "  # as which users there is no chroot
            (self.d / name).write_text(f"#!/bin/sh\nexec {enter}{script} {into}\n")
            for path in (script, self.d / name):
                path.chmod(0o755)
        for program in ("scontrol", "squeue"):
            self._shim(program)

    def _shim(self, program: str, before: str = "") -> None:
        """What the scripts find as a program of Slurm, outside the chroot and inside."""
        root, real = self.build.root, f'/usr/bin/{program} "$@"'
        run = real if root is None else f"chroot {root} {real}"
        shim = self.d / "bin" / program
        shim.write_text(f"#!/bin/sh\n{before}\n[ ! -d /host/usr ] || exec {real}\nexec {run}\n")
        shim.chmod(0o755)

    def silence_slurmctld(self, seconds: int) -> None:
        """The next time that a script asks, slurmctld is stopped before it answers, for so long."""
        pid = (self.d / "c.pid").read_text().strip()
        once, again = self.d / "stopped", f"(sleep {seconds}; kill -CONT {pid}) </dev/null >/dev/null 2>&1 &"
        self._shim("scontrol", f"[ -e {once} ] || {{ touch {once}; kill -STOP {pid}; {again} }}")

    def environment(self, *request: str, user: int | None = None) -> dict[str, str]:
        """What a job's task has in its environment; there must be room for the request."""
        done = self.srun(*request, "sh", "-c", "env -0", user=user)
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)

    def srun(self, *words: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run a job for which there is room, also as another user: it starts once the job before it has given
        back what it had, which takes long on a busy machine."""
        return self.run(*_become(user), "srun", "--immediate=60", *words, timeout=90)

    def batch(
        self, *words: str, wrap: str = "sleep 60", out: str = "/dev/null", user: int | None = None
    ) -> int:
        """Submit a job; its number."""
        done = self.run(*_become(user), "sbatch", "--parsable", "-o", out, *words, "--wrap", wrap)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def job_states(self) -> dict[int, str]:
        """Number to state of every job that has not ended."""
        rows = self.run("squeue", "-h", "-o", "%A %T").stdout.splitlines()
        return {int(job): state for job, state in (row.split() for row in rows)}

    def reason(self) -> str:
        """Why the node is not in service."""
        return self.run("sinfo", "-h", "-N", "-o", "%E").stdout.strip()

    @property
    def first_job(self) -> int:
        """The number of the first job."""
        match = re.search(r"^FirstJobId=(\d+)$", (self.d / "slurm.conf").read_text(), re.MULTILINE)
        assert match is not None
        return int(match[1])

    def fill_run_dir(self) -> None:
        """Put a file system there on which nothing can be written any more."""
        self.run_dir.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "tmpfs", str(self.run_dir)]
        subprocess.run(words, check=True)
        (self.run_dir / "jobs").mkdir()
        (self.run_dir / "filler").write_bytes(b"x" * 4096)

    def records(self) -> dict[int, str]:
        """The jobs that have a record, and what they have."""
        return {one.job: one.gres for one in read_records(self.run_dir).jobs}

    def daemons(self) -> list[str]:
        """The devices that have an MPS daemon."""
        return sorted(path.parent.parent.name for path in self.run_dir.glob("mps/*/pipe/*.pid"))

    def logs(self) -> str:
        """And what is left on the first node, with what squeue says."""
        left = f"records {self.records()}, daemons {self.daemons()}"
        queue = self.run("squeue", "-o", "%i %T %r %S").stdout if self._up else ""
        return f"{super().logs()}\n{left}\n{queue}"

    def __exit__(self, *exc: object) -> None:
        if exc[1] is not None:
            sys.stderr.write(self.logs())
        super().__exit__(*exc)

    def close(self) -> None:
        if self.run_dir.is_mount():
            subprocess.run(["umount", str(self.run_dir)], check=False)
        for pid_file in self.run_dir.glob("mps/*/pipe/*.pid"):
            try:
                os.kill(int(pid_file.read_text()), 9)
            except (OSError, ValueError):
                continue
        super().close()


def _become(user: int | None) -> list[str]:
    return [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def _python_for_all(directory: Path) -> str:
    """An interpreter that other users can run, with this Partage. sys.executable may be in root's home.

    In a chroot it is this machine's, which is there as /host, with this machine's libraries.
    """
    system = shutil.which("python3", path="/usr/bin")
    assert system is not None
    folders = [str(_HERE / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    wrapper = directory / "python"
    code = f"import sys; sys.path[:0] = ['$at' + one for one in {folders!r}]; "
    code += "from partage.cli.main import main; main()"
    libraries = f"/host/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    wrapper.write_text(
        "#!/bin/sh\nshift 3\nat= with=\n[ ! -d /host/usr ] || { at=/host; "
        f'with="$(echo {libraries}/ld-linux-*) --library-path {libraries}"; }}\n'
        f'exec $with $at{Path(system).resolve()} -I -c "{code}" "$@"\n'
    )
    wrapper.chmod(0o755)
    return str(wrapper)


def everyone_can_run() -> bool:
    """Whether there is such an interpreter, of this version, and other users can reach this directory."""
    system = shutil.which("python3", path="/usr/bin")
    here = all(parent.stat().st_mode & 0o001 for parent in (_HERE, *_HERE.parents))
    version = f"python3.{sys.version_info.minor}"
    return system is not None and here and Path(system).resolve().name == version

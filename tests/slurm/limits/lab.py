"""A real Slurm with cgroups of version 2, the plugin of memory limits, and a stand-in for NVML."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import json

from partage.plan.report import JobLimit
from partage.slurm import limits
from tests.edges.cdi.limit_hook.node import Kept
from tests.edges.hardware.stub import StubNode
from tests.slurm.job_lab import JobLab
from tests.slurm.lab import OLD, Build

SOURCE = Path(limits.__file__).parent
HERE = Path(__file__).parent
GROUP = f"partage-test-slurm-{os.getpid()}"
"""The cgroup that slurmd takes for the root of all."""

POLICY = """\
version: partage/v1
gpus: [{select: all, time-slicing: {replicas: 4, memory: hard}}]
"""
_MACHINE = """\
driver: 615.71.09
memory-limits: {backend}
gpus: [{{name: NVIDIA H100 80GB HBM3}}, {{name: NVIDIA H100 80GB HBM3}}]
"""
_NAMESPACE = r"""set -e
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /sys/fs/cgroup/{group}/system.slice
echo $$ >/sys/fs/cgroup/{group}/cgroup.procs
exec unshare --cgroup --mount --propagation private sh -c '
  umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && LD_PRELOAD={preload} exec "$@"' \
  sh "$@"
"""
_STEPD = (
    'touch "$0/run/stepd" && mount --bind "$0/usr/sbin/slurmstepd" "$0/run/stepd" && '
    'mount --bind {stepd} "$0/usr/sbin/slurmstepd" && exec chroot'
)
"""In a chroot, in place of ``exec chroot``. Since 24.11 slurmstepd starts itself again, by its own name."""


Looked = tuple[tuple[JobLimit, ...], tuple[str, ...]]
"""What is said of each job, and in which cgroups it was read."""


def built_plugin(folder: Path, build: Build = OLD) -> Path:
    """A folder with plugin and hook, compiled for this Slurm."""
    headers = (build.root or Path("/")) / "usr/include"
    if shutil.which("cc") is None or not (headers / "slurm/spank.h").exists():
        pytest.skip("needs a C compiler and spank.h ('make slurm' installs it as root)")
    flags = "-Werror" if build.root is None else f"-Werror -I{headers}"
    subprocess.run([SOURCE / "build", folder], check=True, env=os.environ | {"CFLAGS": flags})
    return folder


class _InCgroups(Build):
    """A Slurm whose slurmd finds cgroups of version 2 alone, and itself at their root."""

    def command(self, *words: str, run: Path | None = None) -> list[str]:
        known = super().command(*words, run=run)
        if words[0] != "slurmd" or "-D" not in words:
            return known
        d = Path(os.environ["PARTAGE_TEST_LIMITS"])
        inside = _NAMESPACE.format(group=GROUP, preload=d / "one_hierarchy.so")
        stepd = d / "slurmstepd"
        if self.root is None:
            known += ["-d", str(stepd)]
        else:
            known = [word.replace("exec chroot", _STEPD.format(stepd=stepd)) for word in known]
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, "sh", *known]


class LimitLab(JobLab):
    """One node with two time-sliced GPUs whose driver limits memory. built: of ``built_plugin``."""

    def __init__(
        self, build: Build, built: Path, driver: StubNode, folder: Path, *, backend: str, conf: str = ""
    ) -> None:
        machine = folder / "machine.yaml"
        machine.write_text(_MACHINE.format(backend=backend))
        plugstack = folder / "plugstack.conf"
        super().__init__(
            _InCgroups(build.version, build.root),
            POLICY,
            str(machine),
            conf=f"PlugStackConfig={plugstack}\n{conf}",
        )
        self.driver, self._folder = driver, folder
        driver.write(**{f"gpu.{at}.uuid": device.gpu for at, device in enumerate(self.devices)})
        plugstack.write_text(
            f"required {built}/partage_limits.so run-dir={self.run_dir} hook={built}/partage-limit-hook "
            f"driver-root={driver.root}\n"
        )
        preload = folder / "one_hierarchy.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", preload, HERE / "one_hierarchy.c", "-ldl"], check=True
        )
        stepd = folder / "slurmstepd"
        real = "/usr/sbin/slurmstepd" if build.root is None else "/run/stepd"
        stepd.write_text(f'#!/bin/sh\nLD_PRELOAD={preload} exec {real} "$@"\n')
        stepd.chmod(0o755)
        text = (self.d / "slurm.conf").read_text()
        text = text.replace("proctrack/linuxproc", "proctrack/cgroup").replace("task/none", "task/cgroup")
        (self.d / "slurm.conf").write_text(text)
        cgroup = (self.d / "cgroup.conf").read_text()
        (self.d / "cgroup.conf").write_text(f"{cgroup}\nCgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n")

    def kept(self) -> list[Kept]:
        """What the driver was told, in order; directories from the cgroup of the node's slurmsteps on."""
        file = self.driver.library.with_name("limits.txt")
        rows = [line.split(" ") for line in file.read_text().splitlines()] if file.exists() else []
        return [
            Kept(
                self.devices[int(gpu)].gpu, int(soft), int(hard), directory.partition("_slurmstepd.scope/")[2]
            )
            for gpu, directory, soft, hard in rows
        ]

    @contextlib.contextmanager
    def agent(self) -> Iterator[Callable[[], Looked]]:
        """What the node's agent sees when it looks now. It is outside of the namespace of cgroups that slurmd
        has here, so the driver is told the directories once more as they are called there.
        """
        agent = subprocess.Popen(
            [
                "unshare", "--mount", "--propagation", "private", "sh", "-c",
                'mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"', "sh",
                sys.executable, "-m", "tests.slurm.limits.look", self.run_dir, self.driver.root,
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[2],
        )  # fmt: skip
        assert agent.stdin is not None
        assert agent.stdout is not None
        told, within = self.driver.library.with_name("limits.txt"), "/sys/fs/cgroup/"
        known = 0

        def look() -> Looked:
            nonlocal known
            lines = told.read_text().splitlines(keepends=True) if told.exists() else []
            of_slurm = [line for line in lines[known:] if GROUP not in line]
            with told.open("a") as file:
                file.writelines(line.replace(within, f"{within}{GROUP}/", 1) for line in of_slurm)
            known = len(lines) + len(of_slurm)
            assert agent.stdin is not None
            assert agent.stdout is not None
            agent.stdin.write("\n")
            agent.stdin.flush()
            looked: Looked = json.decode(agent.stdout.readline(), type=Looked)
            return looked

        try:
            yield look
        finally:
            agent.communicate(timeout=30)

    def cgroups(self) -> list[str]:
        """Of jobs that there are now."""
        found = subprocess.run(
            [
                "unshare", "--mount", "--propagation", "private", "sh", "-c",
                f"mount -t cgroup2 cgroup2 /sys/fs/cgroup && find /sys/fs/cgroup/{GROUP} -type d -path "
                "'*_slurmstepd.scope/*' -not -path '*_slurmstepd.scope/*/*' "
                "-name '[js]*[0-9]*' -not -name 'slurm*'",
            ],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return sorted(Path(line).name for line in found.stdout.splitlines())

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        inside = (
            f"mount -t cgroup2 cgroup2 /sys/fs/cgroup && cd /sys/fs/cgroup/{GROUP} && "
            "for pid in $(find . -name cgroup.procs -exec cat {} +); do "
            'case "$(cat /proc/$pid/comm)" in slurmstepd|slurmd|sleep) kill -KILL $pid;; esac; done; '
            f"cd .. ; for turn in $(seq 100); do find {GROUP} -depth -type d -exec rmdir {{}} + 2>/dev/null; "
            f"[ -e {GROUP} ] || exit 0; sleep 0.05; done"
        )
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside]
        subprocess.run(words, check=False, capture_output=True)

"""A configless cluster: slurmd gets its files from slurmctld, and none is on its node."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

import pytest

from tests.slurm.decide import configs
from tests.slurm.job_lab import JobLab
from tests.slurm.lab import BUILDS, only_in_make_slurm

pytestmark = [
    pytest.mark.real,
    pytest.mark.xdist_group("slurm"),
    only_in_make_slurm,
    pytest.mark.skipif(os.getuid() != 0, reason="a mount namespace takes root"),
]


class ConfiglessLab(JobLab):
    """slurmd knows nothing but the address of slurmctld and where munged or its key is by default."""

    def __init__(self, build, policy) -> None:
        super().__init__(build, policy)
        conf = self.d / "slurm.conf"
        text = conf.read_text()
        (self.d / "gpus.conf").write_text((self.d / "partage" / "slurm.conf").read_text())
        text = text.replace(f"Include {self.d}/partage/slurm.conf", "Include gpus.conf")
        conf.write_text(f"{text}SlurmctldParameters=enable_configless\n")
        port = re.search(r"^SlurmctldPort=(\d+)$", text, re.MULTILINE)
        assert port is not None
        self._server = f"127.0.0.1:{port[1]}"

    def _spawn(self, *words):
        if words[0] != "slurmd":
            return super()._spawn(*words)
        slurmd = [*words, "--conf-server", self._server]
        if self.build.root is None:
            there = "mount -t tmpfs tmpfs /run && mkdir /run/munge"
            munge = f"ln -s {self.d}/m.sock /run/munge/munge.socket.2"
            command = ["unshare", "--mount", "sh", "-c", f"{there} && {munge} && exec {shlex.join(slurmd)}"]
        else:
            key = f"mount -t tmpfs tmpfs /etc/slurm && install -m 600 {self.d}/slurm.key /etc/slurm"
            command = self.build.command("sh", "-c", f"{key} && exec {shlex.join(slurmd)}")
        env = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
        with (self.d / "log" / "slurmd.out").open("wb") as log:
            proc = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._procs.append(proc)
        return proc


@pytest.mark.parametrize("build", BUILDS)
def test_nodes_get_all_files_and_the_scripts_find_them(build):
    """Also the included file, as it is named without a path; what is named with one is not sent."""
    with ConfiglessLab(build, configs.MPS) as lab:
        sent = lab.d / "s" / "g1" / "conf-cache"
        assert {"slurm.conf", "gres.conf", "cgroup.conf", "gpus.conf"} <= {one.name for one in sent.iterdir()}
        env = lab.environment("--gres=mps:25")
        assert env["CUDA_VISIBLE_DEVICES"] == lab.devices[0].uuid
        assert env["PARTAGE_SHARES"] == "mps:25"
        lab.run("scancel", "-u", "root")
        lab.wait_for(lambda: lab.records() == {})
        assert lab.environment("--gres=gpu:h100_shared:2")["PARTAGE_SHARES"] == "gpu:h100_shared:2"

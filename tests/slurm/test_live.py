"""``partage slurm check --live`` beside a real slurmctld."""

import os
import re

import pytest

from partage.cli.main import run
from partage.doctor.decide.observation import SlurmState
from partage.doctor.gather_slurm import slurm_seen
from partage.doctor.host.root import DoctorPlace, NodeRoot
from partage.sim.node.files.load import load_machine
from tests.slurm.agent_lab import AgentLab
from tests.slurm.lab import BUILDS

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]


@pytest.mark.parametrize("build", BUILDS)
def test_what_slurmctld_has_not_read_is_named_with_what_makes_it_read(build, capsys, monkeypatch):
    """And that does make it read, on this release."""
    with AgentLab(build) as lab:
        monkeypatch.setenv("SLURM_CONF", str(lab.d / "slurm.conf"))

        def said(*more):
            files = [str(lab.d / name) for name in ("slurm.conf", "gres.conf")]
            code = run(["slurm", "check", *files, "--slurm-bin", str(lab.d / "bin"), *more])
            return code, capsys.readouterr().out

        assert said("--live", "--node", "g1")[0] == 0
        assert said("--no-live", "--slurm-version", build.version)[0] == 0
        mine = lab.d / "nodes" / "g1.slurm.conf"
        mine.write_text(re.sub(r"Gres=\S+", "Gres=gpu:h100:1", mine.read_text()))
        conf = lab.d / "partage" / "slurm.conf"
        conf.write_text(conf.read_text().replace("GresTypes=gpu", "GresTypes=gpu,mps"))
        code, out = said()  # the files of the running Slurm are compared without being asked
        plain = " ".join(out.split())
        assert code == 3
        assert "slurmctld has Gres=gpu:h100:2 for node g1" in plain
        assert "slurmctld has GresTypes=gpu: without mps" in plain
        lab.run("scontrol", "reconfigure")
        if build.version < "23.11":
            assert "restart slurmctld and slurmd" in plain
            assert lab.node.gres == "gpu:h100:2"
            lab.restart_slurmd()
            lab.replace_slurmctld()
        lab.wait_for(lambda: lab.node.gres == "gpu:h100:1")
        assert lab.control.settings().gres_types == ("gpu", "mps")
        lab.wait_for(lambda: "slurmctld has" not in said()[1])


@pytest.mark.parametrize("build", BUILDS[:1])
def test_the_doctor_asks_slurmctld_too(build, monkeypatch):
    """With simulated GPUs; the rest of the verb does not matter here."""
    with AgentLab(build) as lab:
        monkeypatch.setenv("SLURM_CONF", str(lab.d / "slurm.conf"))
        place = DoctorPlace(NodeRoot(), "/k", "/s", "/r", node_name="g1", slurm_bin=lab.d / "bin")
        gpus = load_machine("2xh100-sxm5-80gb").inventory

        def seen() -> SlurmState:
            found = slurm_seen(place, gpus, os.environ)
            assert isinstance(found, SlurmState)
            return found

        before = seen()
        assert (before.live, before.live_unseen) == ((), "")
        mine = lab.d / "nodes" / "g1.slurm.conf"
        mine.write_text(re.sub(r"Gres=\S+", "Gres=gpu:h100:1", mine.read_text()))
        assert "slurmctld has Gres=gpu:h100:2 for node g1" in " ".join(map(str, seen().live))


def test_no_slurmctld_is_exit_code_5(capsys, tmp_path, monkeypatch):
    (tmp_path / "gres.conf").write_text("Name=gpu Type=a File=/dev/nvidia0\n")
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    words = ["slurm", "check", str(tmp_path / "gres.conf"), "--slurm-bin", str(tmp_path)]
    assert run([*words, "--live"]) == 5
    assert "Unable to contact" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert run([*words, "--slurm-version", "24.11"]) == 0

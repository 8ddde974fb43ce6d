"""The options of ``partage agent --slurm``, and what keeps it from starting."""

import pytest

from partage.faces.cli.main import run

SLURM = ["agent", "--slurm", "--machine", "1xh100-sxm5-80gb", "--slurm-version", "24.11.5"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["agent", "--slurm-node", "g1"], "--slurm-node needs --slurm"),
        ([*SLURM, "--slurm-settings", "CPUs=4"], "needs --slurm-writes shared"),
        ([*SLURM, "--slurm-node", "../g1"], "is not the name of a node"),
        ([*SLURM, "--slurm-node", "g[1-2]"], "is not the name of a node"),
        ([*SLURM, "--slurm-version", "new"], "is not a version of Slurm"),
        ([*SLURM, "--slurm-writes", "shared", "--slurm-settings", "Gres=gpu:1"], "written by Partage"),
    ],
)
def test_options_that_do_not_go_together(words, said, capsys, tmp_path):
    assert run([*words, "--state-dir", str(tmp_path / "s"), "--run-dir", str(tmp_path / "r")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_gres_conf_of_somebody_else_stays(capsys, tmp_path):
    conf = tmp_path / "gres.conf"
    conf.write_text("Name=gpu File=/dev/nvidia0\n")
    where = [
        "--slurm-dir",
        str(tmp_path),
        "--state-dir",
        str(tmp_path / "s"),
        "--run-dir",
        str(tmp_path / "r"),
    ]
    assert run([*SLURM, *where]) == 2
    assert "Partage did not write it" in capsys.readouterr().err
    assert conf.read_text() == "Name=gpu File=/dev/nvidia0\n"

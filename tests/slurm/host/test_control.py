"""scontrol and squeue as programs: deadline, environment, errors."""

import pytest

from partage.errors import Absent, Rejected, Unreachable, Unsatisfiable
from partage.slurm.host.control import SlurmControl
from partage.slurm.host.programs import SlurmCommands
from partage.slurm.model import SlurmVersion


def _control(tmp_path, environ=None, deadline_s=5.0, **scripts):
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return SlurmControl(tmp_path, environ or {}, deadline_s)


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("echo 'Node x not found'; exit 1", Absent, "not found"),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", Unreachable, "Unable to contact"),
        ("echo 'Invalid node state specified' >&2; exit 1", Rejected, "Invalid node state"),
        ("exit 3", Rejected, "exit code 3"),
        ("echo hello", Rejected, "no answer of 'scontrol show node'"),
        ("exec sleep 30", Unreachable, "no answer within 0.2 s"),
    ],
)
def test_errors(script, error, said, tmp_path):
    with pytest.raises(error, match=said):
        _control(tmp_path, deadline_s=0.2 if "sleep" in script else 5, scontrol=script).node("x")


def test_nothing_of_the_environment_reaches_it_but_slurm_conf(tmp_path):
    log = tmp_path / "log"
    control = _control(
        tmp_path,
        {"SLURM_CONF": "/x/slurm.conf", "LD_PRELOAD": "/evil.so", "SCONTROL_ALL": "1", "PATH": "/evil"},
        scontrol=f"env > {log}; pwd >> {log}; echo $# >> {log}",
    )
    control.drain("g1", "two\nlines;  $(touch /x)")
    said = log.read_text()
    assert "SLURM_CONF=/x/slurm.conf" in said
    assert "TZ=UTC" in said
    assert not any(word in said for word in ("LD_PRELOAD", "SCONTROL_ALL", "/evil"))
    assert said.splitlines()[-1] == "4"  # update, node, state, reason: one line, and no shell


def test_a_squeue_without_json_is_asked_again_without(tmp_path):
    script = 'case "$1" in --json) echo "unrecognized option" >&2; exit 1;; *) echo "7|RUNNING|0|root";; esac'
    (job,) = _control(tmp_path, squeue=script).jobs("g1")
    assert (job.job, job.gpus) == (7, None)


def test_the_version_where_there_is_no_slurm_conf_yet(tmp_path):
    """Also of a configless node before slurmd runs: scontrol says nothing at all there (seen on 22.05.8)."""
    dumb = "echo 'scontrol: fatal: Unable to process configuration file' >&2; exit 1"
    control = _control(tmp_path, scontrol=dumb, slurmd='[ "$1" = -V ] && echo slurm-wlm 24.11.5')
    assert control.version() == SlurmVersion(24, 11, 5)
    assert _control(tmp_path, scontrol="echo slurm 23.11.4").version() == SlurmVersion(23, 11, 4)
    with pytest.raises(Rejected, match="Unable to process configuration file"):
        _control(tmp_path, scontrol=dumb, slurmd="exit 1").version()


def test_no_scontrol(tmp_path):
    commands = SlurmCommands(str(tmp_path), {}, 5.0)
    assert commands.found("scontrol") is None
    with pytest.raises(Unsatisfiable, match="scontrol is not installed here"):
        commands.run("scontrol", "--version")

"""``partage explain job`` beside a real slurmctld."""

import json
import shlex

import pytest

from partage.cli.main import run
from tests.slurm.job_lab import JobLab
from tests.slurm.lab import OLD, on, only_in_make_slurm

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]

POLICY = "version: partage/v1\ngpus: [{select: {index: [0]}, mps: {replicas: 4}}]\n"


@only_in_make_slurm
@pytest.mark.parametrize("build", on(OLD))
def test_the_job_that_it_says_has_to_end_is_the_one(build, capsys):
    with JobLab(build, POLICY) as lab:
        programs = lab.d / "programs"
        programs.mkdir()
        for name in ("squeue", "scontrol"):
            there = shlex.join(build.command(f"/usr/bin/{name}", run=lab.d / "run"))
            script = f'#!/bin/sh\nexport SLURM_CONF={lab.d}/slurm.conf\nexec {there} "$@"\n'
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)

        def explained(job):
            options = ["--slurm-bin", str(programs), "--run-dir", str(lab.run_dir), "-o", "json"]
            code = run(["explain", "job", str(job), *options])
            return code, json.loads(capsys.readouterr().out)

        first = lab.batch("--gres=mps:60")
        lab.wait_for(lambda: lab.job_states()[first] == "RUNNING")
        lab.wait_for(lambda: first in lab.records())
        code, document = explained(first)
        (held,) = document["holds"]
        assert (code, held["gres"], held["guarantee"]) == (0, "mps:60 of 100", "advisory")
        second = lab.batch("--gres=mps:60")
        lab.wait_for(lambda: explained(second)[1]["slurmSays"] == "Resources")
        code, document = explained(second)
        assert (code, document["standing"], document["nodes"][0]["jobs"]) == (1, "waits", [first])
        lab.run("scancel", str(first))
        lab.wait_for(lambda: explained(second)[1]["standing"] == "runs")

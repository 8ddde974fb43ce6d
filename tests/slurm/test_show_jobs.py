"""The Slurm jobs of ``partage show``."""

import io
import json
import os
import pwd

from rich.console import Console

from partage.answers.documents.show import node_document
from partage.answers.render.tables import jobs_table
from partage.cli.main import run
from partage.model.gpu_use import Processes
from partage.slurm.host.job_records import JobRecords
from partage.slurm.show_jobs import is_slurm_node, shown_jobs
from tests.slurm.decide.test_job_processes import FIRST, MACHINE, SECOND, _process, _record


def test_job_user_and_share_come_from_the_record_of_the_prolog(tmp_path):
    with JobRecords(tmp_path, make=True) as records:
        records.put(_record(7))
    assert is_slurm_node(tmp_path)
    rows = (_process(3, FIRST, 7), _process(4, SECOND, uid=os.getuid()))
    shown = shown_jobs(MACHINE, lambda: Processes(rows, hidden="some are hidden"), tmp_path, "g1")
    assert shown is not None
    assert [(one.job, one.user, one.share) for one in shown.processes] == [
        ("7", "anna", "mps:25 of 100"),
        ("", pwd.getpwuid(os.getuid()).pw_name, ""),
    ]
    document = node_document(MACHINE, {}, None, shown.processes)
    assert document.slurm_processes == shown.processes
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(jobs_table(shown.processes))
    assert "7.batch" in text.getvalue()
    assert "no job" in text.getvalue()


def test_a_record_that_cannot_be_read_is_told(capsys, tmp_path):
    """A process of its job would otherwise look as if Slurm had given it nothing."""
    with JobRecords(tmp_path, make=True):
        (tmp_path / "jobs" / "7.json").write_text("{")
    words = ["show", "--machine", "1xh100-sxm5-80gb", "--run-dir", str(tmp_path), "--jobs"]
    for output in ("table", "json"):
        assert run([*words, "-o", output]) == 0
        out, err = capsys.readouterr()
        assert err.startswith(f"warning: {tmp_path}/jobs/7.json cannot be read: ")
        assert "cannot be read" not in out


def test_show_has_them_where_they_are_asked_for(capsys, tmp_path):
    words = ["show", "--machine", "1xh100-sxm5-80gb", "--run-dir", str(tmp_path), "-o", "json"]
    assert run([*words, "--jobs"]) == 0
    assert json.loads(capsys.readouterr().out)["slurmProcesses"] == []
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["slurmProcesses"] is None

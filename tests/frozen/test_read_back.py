"""What an older release has written is read by this one: nothing is lost, nothing is set aside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from partage.edges.files.journal import Unfinished, read_journal
from partage.edges.files.state import StateDir
from partage.edges.files.usage_days import read_usage_days
from partage.edges.mps.record import load_record
from partage.model.share import Guarantee
from partage.slurm.host.job_records import read_records
from tests.frozen import values

RELEASES = sorted(path for path in Path(__file__).parent.iterdir() if (path / "state.json").exists())


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def written(request, tmp_path: Path) -> Path:
    """A copy: what cannot be read would be set aside."""
    return Path(shutil.copytree(request.param, tmp_path / "written"))


def test_the_state(written: Path) -> None:
    state = StateDir(written)
    try:
        loaded = state.load(0.0)
    finally:
        state.close()
    assert loaded.problems == ()
    saved = loaded.state
    assert saved is not None
    assert saved.policy is not None
    assert saved.policy.source.endswith("native.yaml")
    assert len(saved.serving) == 4
    offers = [offer for serving in saved.serving.values() for offer in serving.offer]
    assert {offer.strategy.value for offer in offers} == {"mps", "exclusive"}
    assert all(isinstance(offer.guarantee, Guarantee) for offer in offers)
    assert saved.original
    assert not list(written.glob("state.json.*")), "set aside"


def test_the_journal(written: Path) -> None:
    unfinished = read_journal(written)
    assert isinstance(unfinished, Unfinished), unfinished
    assert unfinished.header == values.HEADER


def test_the_journal_cut_off_after_any_record(written: Path) -> None:
    path = written / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + 2 * len(values.STEPS) + 2
    for number in range(1, len(lines) + 1):
        path.write_bytes(b"".join(lines[:number]) + b'{"type":"step-d')
        assert isinstance(read_journal(written), Unfinished), number


def test_the_record_of_a_daemon(written: Path) -> None:
    assert load_record(written / "daemon.json") == values.DAEMON


def test_the_days_of_use(written: Path) -> None:
    assert read_usage_days(written) == (values.DAY,)


def test_the_record_of_a_job(written: Path) -> None:
    assert read_records(written).jobs == (values.JOB,)

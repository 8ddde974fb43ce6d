"""Records of jobs on the disk, and what root does not take from other users."""

import os
import threading
import time

import pytest
from msgspec.structs import replace

from partage.model.ids import GpuUuid
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.slurm.host.job_records import JobRecords, Records, read_records
from partage.slurm.host.root_directory import RootDirectory, read_root_file
from partage.slurm.model import GresName, JobDevice, JobId, JobRecord

UUID = GpuUuid("GPU-00000000-0000-0000-0000-000000000003")
DEVICE = JobDevice(
    index=2, name="3", uuid=UUID, gpu=UUID, type="h100_shared", strategy=Strategy.MPS, gres=GresName.MPS,
    memory_bytes=20 << 30, total_bytes=80 << 30, guarantee=Guarantee.ADVISORY, units=25, units_of=100,
)  # fmt: skip
RECORD = JobRecord(JobId(41), 1000, (DEVICE,), "alice")
as_root = pytest.mark.skipif(os.getuid() != 0, reason="takes root")


def test_what_is_written_is_read(tmp_path):
    with JobRecords(tmp_path, make=True) as records, records.locked(1):
        records.put(RECORD)
        records.put(JobRecord(JobId(7), 0, ()))
        assert records.of_task(JobId(41)) == Records((RECORD,))
        assert records.of_task(JobId(42)) == Records()
    assert [one.job for one in read_records(tmp_path).jobs] == [7, 41]
    assert oct((tmp_path / "jobs").stat().st_mode)[-3:] == "755"
    assert oct((tmp_path / "jobs/41.json").stat().st_mode)[-3:] == "644"
    assert RECORD.gres == "mps:25"
    with JobRecords(tmp_path) as records:
        assert records.remove(JobId(41))
        assert not records.remove(JobId(41))
    assert [one.job for one in read_records(tmp_path).jobs] == [7]


def test_limits_stand_beside_the_record_and_go_with_it(tmp_path):
    limited = replace(RECORD, devices=(replace(DEVICE, limited=True),))
    with JobRecords(tmp_path, make=True) as records:
        records.put(limited)
        assert (tmp_path / "jobs/41.limits").read_text() == f"1 job\n{UUID}={20 << 30}\n"
        assert oct((tmp_path / "jobs/41.limits").stat().st_mode)[-3:] == "644"
        assert JobId(41) not in records.limits_held()
        (tmp_path / "jobs/41.held").touch()
        assert JobId(41) in records.limits_held()
        assert JobId(4) not in records.limits_held()
        assert records.read() == Records((limited,))
        records.put(limited)  # the job begins again
        assert JobId(41) not in records.limits_held()
        (tmp_path / "jobs/41.held").touch()
        records.put(RECORD)
        assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["41.json"]
        records.put(limited)
        records.remove(JobId(41))
        assert list((tmp_path / "jobs").iterdir()) == []


def test_a_task_of_a_component_finds_its_record(tmp_path):
    """It is told the number of the job's first component, which may be on another node."""
    second = replace(RECORD, job=JobId(8), leader=JobId(7))
    with JobRecords(tmp_path, make=True) as records:
        records.put(RECORD)
        records.put(second)
        assert records.of_task(JobId(7)) == Records((second,))
        first = replace(RECORD, job=JobId(7), leader=JobId(7))
        records.put(first)
        assert records.of_task(JobId(7)) == Records((first,))


def test_what_cannot_be_read_is_named(tmp_path):
    """It is not the same as none: its job has GPUs."""
    with JobRecords(tmp_path, make=True) as records:
        records.put(RECORD)
        records.put(replace(RECORD, job=JobId(42), version=9))
        jobs = tmp_path / "jobs"
        (jobs / "43.json").write_text("{")
        (jobs / "44.json").symlink_to(jobs / "41.json")
        (jobs / "45.json").write_bytes((jobs / "41.json").read_bytes())
        found = records.read()
        assert found.jobs == (RECORD,)
        assert sorted(found.unreadable) == [42, 43, 44, 45]
        assert found.unreadable[JobId(42)] == f"{jobs}/42.json cannot be read: its version is 9, not 1"
        assert found.unreadable[JobId(45)] == f"{jobs}/45.json cannot be read: it is the record of job 41"
        assert records.of_task(JobId(43)) == Records((), {JobId(43): found.unreadable[JobId(43)]})
        assert sorted(found.without(JobId(41), JobId(43)).unreadable) == [42, 44, 45]
        assert found.without(JobId(41)).jobs == ()
    assert read_records(tmp_path) == found
    assert read_records(tmp_path / "absent") == Records()


def test_whether_a_record_is_the_same():
    other = replace(RECORD, uid=7)
    assert Records((RECORD,)).same(JobId(41), Records((RECORD,)))
    assert not Records((RECORD,)).same(JobId(41), Records((other,)))
    assert not Records((RECORD,)).same(JobId(41), Records())
    assert not Records((), {JobId(41): "x"}).same(JobId(41), Records((RECORD,)))


def test_once_in_a_while(tmp_path):
    with JobRecords(tmp_path, make=True) as records, records.locked(1):
        assert records.asked_within(60)  # the file is new
        for time_s in (time.time() - 61, time.time() + 3600):  # the clock was ahead
            os.utime(tmp_path / "jobs/.lock", (time_s, time_s))
            assert not records.asked_within(60)
            assert records.asked_within(60)


def test_what_is_no_record_is_left_out(tmp_path):
    with JobRecords(tmp_path, make=True) as records:
        records.put(RECORD)
    jobs = tmp_path / "jobs"
    (jobs / "42.json").write_bytes((jobs / "41.json").read_bytes())  # says that it is job 41
    (jobs / "43.json").write_text("{}")
    (jobs / "44.json").symlink_to(jobs / "41.json")
    (jobs / "x.json").write_bytes(b"")
    os.mkfifo(jobs / "45.json")
    assert read_records(tmp_path).jobs == (RECORD,)
    assert read_records(tmp_path / "absent").jobs == ()


def test_one_at_a_time(tmp_path):
    with (
        JobRecords(tmp_path, make=True) as first,
        JobRecords(tmp_path) as second,
        first.locked(1),
        pytest.raises(TimeoutError, match="another prolog"),
        second.locked(0.02),
    ):
        pass
    order = []
    with JobRecords(tmp_path) as first, JobRecords(tmp_path) as second:

        def wait():
            with second.locked(10):
                order.append("second")

        with first.locked(1):
            thread = threading.Thread(target=wait)
            thread.start()
            order.append("first")
        thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("part", ["run", "run/jobs"])
def test_no_link_is_followed(tmp_path, part):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / part
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(NotADirectoryError, match="is a link or no directory"):
        JobRecords(tmp_path / "run", make=True)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_directory_that_others_can_write_is_not_used(tmp_path, mode):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs").chmod(mode)
    with pytest.raises(PermissionError, match="can be written by other users"):
        JobRecords(tmp_path)


@as_root
def test_a_directory_of_another_user_is_not_used(tmp_path):
    (tmp_path / "run/jobs").mkdir(parents=True)
    os.chown(tmp_path / "run", 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to user 65534"):
        JobRecords(tmp_path / "run")


def test_a_file_that_others_can_write_is_not_read(tmp_path):
    file = tmp_path / "devices.json"
    file.write_text("{}")
    assert read_root_file(file, 10) == b"{}"
    file.chmod(0o666)
    with pytest.raises(PermissionError):
        read_root_file(file, 10)
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(OSError, match=r"[Ll]inks"):
        read_root_file(file, 10)
    with pytest.raises(OSError, match="absolute"):
        RootDirectory(tmp_path.relative_to("/"))


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path, monkeypatch):
    """/dev/full cannot stand in for a directory: the rename is what must not happen."""
    with JobRecords(tmp_path, make=True) as records:
        records.put(RECORD)
        monkeypatch.setattr(os, "rename", _full)
        with pytest.raises(OSError, match="No space"):
            records.put(JobRecord(JobId(41), 7, ()))
    assert read_records(tmp_path).jobs == (RECORD,)
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["41.json"]


def _full(*_args, **_named):
    raise OSError(28, "No space left on device")

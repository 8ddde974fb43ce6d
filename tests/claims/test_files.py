"""The files of the claims' records: whatever happens to one, the others count, and it is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.decide.cdi import KIND, ClaimCdi
from partage.claims.files import LIMIT_BYTES, ClaimCdiFiles, ClaimRecordFiles, LoadedRecords
from partage.claims.model.grant import ClaimRecord, ClaimState, GrantedShare, ShareConfig, by_boot, prepared
from partage.codec.values import encode
from partage.errors import HardwareError
from partage.model.claim import ClaimRef
from partage.model.policy import WatchAction
from partage.model.share import Guarantee
from tests.claims.offers import amounts

ROW = amounts(0, 79)


def record(name: str, units: int = 3, boot_id: str = "boot-1") -> ClaimRecord:
    share = GrantedShare(
        request="req/sub",
        pool="node-a-partage",
        device="gpu-00000000",
        share_id="s1",
        uuid=ROW.device,
        gpu=ROW.gpu,
        resource=ROW.resource,
        ids=ROW.share_ids[:units],
        memory_bytes=ROW.memory_bytes * units,
        cores=25,
        guarantee=Guarantee.GUARDED,
        config=ShareConfig(watch=WatchAction.KILL),
    )
    return ClaimRecord(ClaimRef("team-a", name, f"uid-{name}"), ClaimState.STARTED, boot_id, (share,))


def done(name: str) -> ClaimRecord:
    return prepared(record(name), [(f"gpu.partage.dev/claim=uid-{name}-gpu-00000000-s1", "x/gpu=GPU-0")])


def kept(folder: Path, *records: ClaimRecord) -> ClaimRecordFiles:
    files = ClaimRecordFiles(folder)
    for one in records:
        files.save(one)
    return files


def file(folder: Path, name: str = "a") -> Path:
    return folder / "claims" / f"uid-{name}.json"


def there(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "claims").iterdir())


def changed(path: Path, change: Any) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


# --- what is written comes back ------------------------------------------------------------------


def test_nothing_is_there_at_first(tmp_path: Path) -> None:
    assert ClaimRecordFiles(tmp_path / "later").load() == LoadedRecords()


def test_what_is_written_comes_back_also_to_another_agent(tmp_path: Path) -> None:
    records = kept(tmp_path, done("b"), record("a"))
    for reader in (records, ClaimRecordFiles(tmp_path)):
        assert reader.load() == LoadedRecords((record("a"), done("b")))
    assert file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "claims").stat().st_mode & 0o777 == 0o700
    assert there(tmp_path) == ["uid-a.json", "uid-b.json"]


def test_the_last_record_of_a_claim_counts(tmp_path: Path) -> None:
    kept(tmp_path, record("a"), done("a"))
    assert ClaimRecordFiles(tmp_path).load().records == (done("a"),)


def test_what_is_removed_is_gone_and_may_be_removed_again(tmp_path: Path) -> None:
    records = kept(tmp_path, done("a"), done("b"))
    for _ in range(2):
        records.remove("uid-a")
        assert ClaimRecordFiles(tmp_path).load() == LoadedRecords((done("b"),))


def test_two_agents_that_take_turns_see_what_the_other_wrote(tmp_path: Path) -> None:
    old, new = ClaimRecordFiles(tmp_path), ClaimRecordFiles(tmp_path)
    for number in range(20):
        writer, reader = (old, new) if number % 2 else (new, old)
        wanted = record("a", units=number % 5)
        writer.save(wanted)
        assert reader.load().records == (wanted,)


def test_the_answer_has_the_requests_that_pods_name() -> None:
    (device,) = done("a").answer
    assert (device.request, device.pool, device.device) == ("req", "node-a-partage", "gpu-00000000")
    assert (device.share_id, len(device.cdi_devices)) == ("s1", 2)
    assert done("a").gpus == {"gpu-00000000": ROW.gpu}


def test_only_the_claim_s_own_file_is_written(tmp_path: Path) -> None:
    """So a prepare costs the same with one claim and with a thousand."""
    kept(tmp_path, *(done(f"n{number}") for number in range(5)), done("a"))
    before = {name: (tmp_path / "claims" / name).stat().st_ino for name in there(tmp_path)}
    kept(tmp_path, record("a"))
    after = {name: (tmp_path / "claims" / name).stat().st_ino for name in there(tmp_path)}
    assert {name for name in after if after[name] != before[name]} == {"uid-a.json"}


# --- versions ------------------------------------------------------------------------------------


def test_what_a_newer_version_added_is_passed_over(tmp_path: Path) -> None:
    kept(tmp_path, done("a"))

    def newer(document: dict[str, Any]) -> None:
        document["more"] = 1
        document["record"]["more"] = {"a": [1]}
        document["record"]["shares"][0]["more"] = None

    changed(file(tmp_path), newer)
    assert ClaimRecordFiles(tmp_path).load() == LoadedRecords((done("a"),))


def test_what_an_older_version_did_not_write_has_its_default(tmp_path: Path) -> None:
    plain = replace(record("a"), shares=(replace(record("a").shares[0], config=ShareConfig()),))
    kept(tmp_path, plain)

    def older(document: dict[str, Any]) -> None:
        for key in ("config", "adminAccess"):
            del document["record"]["shares"][0][key]
        del document["record"]["answer"]

    changed(file(tmp_path), older)
    assert ClaimRecordFiles(tmp_path).load() == LoadedRecords((plain,))


def former(folder: Path, *records: ClaimRecord) -> Path:
    path = folder / "claims.json"
    path.write_bytes(encode({"version": "partage-claims/1", "records": list(records)}))
    return path


def test_the_one_file_of_an_older_version_is_taken_over(tmp_path: Path) -> None:
    """What is in a file of its own is newer: an agent was killed on the way."""
    old = former(tmp_path, record("a"), done("b"))
    kept(tmp_path, done("a"))
    assert ClaimRecordFiles(tmp_path).load() == LoadedRecords((done("a"), done("b")))
    assert not old.exists()
    assert there(tmp_path) == ["uid-a.json", "uid-b.json"]
    ClaimRecordFiles(tmp_path).remove("uid-b")
    assert ClaimRecordFiles(tmp_path).load() == LoadedRecords((done("a"),))


def test_the_one_file_of_an_older_version_stays_where_nothing_can_be_written(tmp_path: Path) -> None:
    old = former(tmp_path, done("b"))
    (tmp_path / "claims").write_text("in the way")
    loaded = ClaimRecordFiles(tmp_path).load()
    assert loaded.records == (done("b"),)
    assert "stays for now" in loaded.problems[-1]
    assert old.exists()


def test_a_damaged_file_of_an_older_version_is_set_aside(tmp_path: Path) -> None:
    old = former(tmp_path, done("b"))
    old.write_bytes(old.read_bytes()[:-9])
    kept(tmp_path, done("a"))
    loaded = ClaimRecordFiles(tmp_path).load()
    assert loaded.records == (done("a"),)
    assert loaded.problems[0].endswith("it was set aside as claims.json.corrupt-1")


def test_another_boot_is_told_apart() -> None:
    records = [record("a"), record("b", boot_id="boot-0")]
    now, before = by_boot(records, "boot-1")
    assert (list(now), list(before)) == (["uid-a"], ["uid-b"])
    assert by_boot(records, "") == ({one.claim.uid: one for one in records}, {})


# --- damage --------------------------------------------------------------------------------------


@given(st.data())
def test_a_file_that_is_cut_anywhere_is_set_aside_and_costs_no_other(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    kept(folder, done("a"), record("b", units=79))
    content = file(folder).read_bytes()
    length = data.draw(st.integers(0, len(content.rstrip()) - 1))
    file(folder).write_bytes(content[:length])
    records = ClaimRecordFiles(folder)
    loaded = records.load()
    assert loaded.records == (record("b", units=79),)
    assert loaded.damaged == {"uid-a"}
    assert f"{file(folder)} cannot be used: " in loaded.problems[0]
    assert loaded.problems[0].endswith("it was set aside as uid-a.json.corrupt-1")
    assert (folder / "claims" / "uid-a.json.corrupt-1").read_bytes() == content[:length]
    records.save(record("a"))
    assert ClaimRecordFiles(folder).load() == LoadedRecords((record("a"), record("b", units=79)))


@given(st.data())
def test_a_wrong_byte_loses_no_record_in_silence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    kept(folder, done("a"))
    content = bytearray(file(folder).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    file(folder).write_bytes(content)
    loaded = ClaimRecordFiles(folder).load()
    assert len(loaded.records) + len(loaded.problems) == 1
    assert all(one.claim.uid == "uid-a" for one in loaded.records)


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"[]",
        b'{"version": "partage-claim/2", "record": {}}',
        b'{"record": {}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=len,
)
def test_what_is_no_such_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    kept(tmp_path, record("b"))
    file(tmp_path).write_bytes(content)
    loaded = ClaimRecordFiles(tmp_path).load()
    assert (loaded.records, len(loaded.problems)) == ((record("b"),), 1)
    assert loaded.problems[0].isprintable()
    assert len(loaded.problems[0]) < 500
    assert there(tmp_path) == ["uid-a.json.corrupt-1", "uid-b.json"]


def test_another_version_is_set_aside_whatever_is_in_it(tmp_path: Path) -> None:
    kept(tmp_path, done("a"))
    changed(file(tmp_path), lambda document: document.update(version="partage-claim/2"))
    loaded = ClaimRecordFiles(tmp_path).load()
    assert (loaded.records, "its version is 'partage-claim/2'" in loaded.problems[0]) == ((), True)


def test_the_record_of_another_claim_is_set_aside(tmp_path: Path) -> None:
    kept(tmp_path, done("a")).directory.joinpath("uid-a.json").rename(file(tmp_path, "c"))
    loaded = ClaimRecordFiles(tmp_path).load()
    assert (loaded.records, "of the claim 'uid-a'" in loaded.problems[0]) == ((), True)


def test_what_is_said_of_damage_can_be_printed(tmp_path: Path) -> None:
    kept(tmp_path, done("a"))
    changed(file(tmp_path), lambda document: document["record"].update(state="\u001b[31m"))
    loaded = ClaimRecordFiles(tmp_path).load()
    assert loaded.records == ()
    assert loaded.problems[0].isprintable()


def test_a_prepared_claim_without_its_answer_is_damaged(tmp_path: Path) -> None:
    kept(tmp_path, done("a"))
    changed(file(tmp_path), lambda document: document["record"].pop("answer"))
    loaded = ClaimRecordFiles(tmp_path).load()
    assert (loaded.records, "0 answers of 1 shares" in loaded.problems[0]) == ((), True)


def test_what_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    kept(tmp_path, record("b"))
    file(tmp_path).mkdir()
    loaded = ClaimRecordFiles(tmp_path).load()
    assert (loaded.records, there(tmp_path)) == ((record("b"),), ["uid-a.json", "uid-b.json"])
    assert "cannot read" in loaded.problems[0]


def test_a_directory_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("")
    loaded = ClaimRecordFiles(tmp_path).load()
    assert (loaded.records, "cannot read" in loaded.problems[0]) == ((), True)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    kept(tmp_path, record("b"))
    with file(tmp_path).open("wb") as stream:
        stream.truncate(LIMIT_BYTES + 1)
    assert "longer than" in ClaimRecordFiles(tmp_path).load().problems[0]


def test_the_half_of_an_agent_that_was_killed_is_removed(tmp_path: Path) -> None:
    kept(tmp_path, record("b"))
    file(tmp_path).with_suffix(".json.new").write_bytes(b'{"vers')
    assert ClaimRecordFiles(tmp_path).load() == LoadedRecords((record("b"),))
    assert there(tmp_path) == ["uid-b.json"]


def test_what_cannot_be_written_is_an_error_and_the_old_file_stays(tmp_path: Path) -> None:
    records = kept(tmp_path, record("a"))
    file(tmp_path).with_suffix(".json.new").mkdir()
    with pytest.raises(HardwareError, match="cannot be written"):
        records.save(done("a"))
    assert ClaimRecordFiles(tmp_path).load().records == (record("a"),)


def test_what_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    file(tmp_path).mkdir(parents=True)
    with pytest.raises(HardwareError, match="cannot be removed"):
        ClaimRecordFiles(tmp_path).remove("uid-a")


@pytest.mark.parametrize("uid", ["", "../a", "a/b", "a.b", "x" * 65])
def test_a_uid_is_no_path(tmp_path: Path, uid: str) -> None:
    records = ClaimRecordFiles(tmp_path)
    odd = replace(record("a"), claim=ClaimRef("team-a", "a", uid))
    for call in (lambda: records.save(odd), lambda: records.remove(uid)):
        with pytest.raises(HardwareError, match="is no UID of a claim"):
            call()


def test_text_that_is_not_unicode_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="cannot be written"):
        ClaimRecordFiles(tmp_path).save(replace(record("a"), boot_id="\udcff"))


def test_nothing_is_flushed_while_a_pod_waits_and_only_what_is_prepared_is_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush takes longer than all the rest of a prepare, and after a loss of power nothing is left of what
    was only begun. The CDI file is written anew then, before a container can start."""
    flushed: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: flushed.append(Path(f"/proc/self/fd/{file}").readlink().name)
    )
    files, cdi_files = ClaimRecordFiles(tmp_path), ClaimCdiFiles(tmp_path / "cdi")
    files.save(record("begun"))
    for name in ("a", "gone"):
        files.save(record(name))
        cdi_files.write(done(name), ClaimCdi({"cdiVersion": "0.5.0", "kind": KIND, "devices": []}, ()))
        files.save(done(name))
    files.remove("uid-gone")
    assert not flushed
    files.flush()
    assert flushed == ["uid-a.json", "claims"]
    files.flush()
    assert len(flushed) == 2


def test_records_that_cannot_be_flushed_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = kept(tmp_path, done("a"))

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)  # no disk here fails when it is told to
    with pytest.raises(HardwareError, match=r"cannot be flushed .* Input/output error"):
        files.flush()
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    files.flush()
    assert len(flushed) == 2, "the record and the directory, once the disk can"

"""The file of the claims' records: whatever happens to it, the good ones count, and the rest is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.host.records import LIMIT_BYTES, RECORDS_FILE, LoadedRecords, RecordsFile
from partage.claims.model.grant import GrantedShare, ShareConfig
from partage.claims.model.record import ClaimRecord, ClaimState, by_boot, prepared
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


def file(folder: Path) -> Path:
    return folder / RECORDS_FILE


def aside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != RECORDS_FILE)


def changed(folder: Path, change: Any) -> None:
    document = json.loads(file(folder).read_bytes())
    change(document)
    file(folder).write_text(json.dumps(document))


# --- what is written comes back ------------------------------------------------------------------


def test_nothing_is_there_at_first(tmp_path: Path) -> None:
    assert RecordsFile(tmp_path / "later").load() == LoadedRecords()


def test_what_is_written_comes_back_also_to_another_agent(tmp_path: Path) -> None:
    records = RecordsFile(tmp_path)
    records.save([done("b"), record("a")])
    for reader in (records, RecordsFile(tmp_path)):
        assert reader.load() == LoadedRecords((record("a"), done("b")))
    assert file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert aside(tmp_path) == []


def test_a_claim_is_kept_once_and_the_last_record_counts(tmp_path: Path) -> None:
    RecordsFile(tmp_path).save([record("a"), done("a")])
    assert RecordsFile(tmp_path).load().records == (done("a"),)


def test_two_agents_that_take_turns_see_what_the_other_wrote(tmp_path: Path) -> None:
    old, new = RecordsFile(tmp_path), RecordsFile(tmp_path)
    for number in range(20):
        writer, reader = (old, new) if number % 2 else (new, old)
        wanted = (record("a", units=number % 5), record(f"n{number % 3}"))
        writer.save(wanted)
        assert reader.load().records == wanted


def test_the_answer_has_the_requests_that_pods_name() -> None:
    (device,) = done("a").answer
    assert (device.request, device.pool, device.device) == ("req", "node-a-partage", "gpu-00000000")
    assert (device.share_id, len(device.cdi_devices)) == ("s1", 2)
    assert done("a").gpus == {"gpu-00000000": ROW.gpu}


# --- versions ------------------------------------------------------------------------------------


def test_what_a_newer_version_added_is_passed_over(tmp_path: Path) -> None:
    RecordsFile(tmp_path).save([done("a")])

    def newer(document: dict[str, Any]) -> None:
        document["more"] = 1
        document["records"][0]["more"] = {"a": [1]}
        document["records"][0]["shares"][0]["more"] = None

    changed(tmp_path, newer)
    assert RecordsFile(tmp_path).load() == LoadedRecords((done("a"),))


def test_what_an_older_version_did_not_write_has_its_default(tmp_path: Path) -> None:
    plain = replace(record("a"), shares=(replace(record("a").shares[0], config=ShareConfig()),))
    RecordsFile(tmp_path).save([plain])

    def older(document: dict[str, Any]) -> None:
        for key in ("config", "adminAccess"):
            del document["records"][0]["shares"][0][key]
        del document["records"][0]["answer"]

    changed(tmp_path, older)
    assert RecordsFile(tmp_path).load() == LoadedRecords((plain,))


def test_another_boot_is_told_apart() -> None:
    records = [record("a"), record("b", boot_id="boot-0")]
    now, before = by_boot(records, "boot-1")
    assert (list(now), list(before)) == (["uid-a"], ["uid-b"])
    assert by_boot(records, "") == ({one.claim.uid: one for one in records}, {})


# --- damage --------------------------------------------------------------------------------------


@given(st.data())
def test_a_file_that_is_cut_anywhere_is_set_aside_and_said(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    RecordsFile(folder).save([done("a"), record("b", units=79)])
    content = file(folder).read_bytes()
    length = data.draw(st.integers(0, len(content.rstrip()) - 1))
    file(folder).write_bytes(content[:length])
    records = RecordsFile(folder)
    loaded = records.load()
    assert loaded.records == ()
    assert f"{file(folder)} cannot be used: " in loaded.problems[0]
    assert loaded.problems[0].endswith("it was set aside as claims.json.corrupt-1")
    assert (folder / "claims.json.corrupt-1").read_bytes() == content[:length]
    records.save([record("c")])
    assert RecordsFile(folder).load() == LoadedRecords((record("c"),))


@given(st.data())
def test_a_wrong_byte_loses_no_record_in_silence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    RecordsFile(folder).save([done("a"), record("b")])
    content = bytearray(file(folder).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1).filter(lambda at: content[at] not in b"ab"))
    content[place] = data.draw(st.integers(0, 255))
    file(folder).write_bytes(content)
    loaded = RecordsFile(folder).load()
    assert len(loaded.records) <= 2
    assert loaded.problems or len(loaded.records) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"[]",
        b'{"version": "partage-claims/2", "records": []}',
        b'{"records": []}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=len,
)
def test_what_is_no_such_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    file(tmp_path).write_bytes(content)
    loaded = RecordsFile(tmp_path).load()
    assert (loaded.records, len(loaded.problems)) == ((), 1)
    assert loaded.problems[0].isprintable()
    assert len(loaded.problems[0]) < 500
    assert aside(tmp_path) == ["claims.json.corrupt-1"]


def test_one_damaged_record_costs_no_other(tmp_path: Path) -> None:
    RecordsFile(tmp_path).save([done("a"), record("b")])
    changed(tmp_path, lambda document: document["records"][0].update(state="\u001b[31m"))
    records = RecordsFile(tmp_path)
    loaded = records.load()
    assert loaded.records == (record("b"),)
    assert "record 0" in loaded.problems[0]
    assert loaded.problems[0].isprintable()
    assert loaded == records.load()
    assert aside(tmp_path) == ["claims.json.corrupt-1"]
    records.save(loaded.records)
    assert RecordsFile(tmp_path).load() == LoadedRecords((record("b"),))
    assert b"uid-a" in (tmp_path / "claims.json.corrupt-1").read_bytes()


def test_a_prepared_claim_without_its_answer_is_damaged(tmp_path: Path) -> None:
    RecordsFile(tmp_path).save([done("a")])
    changed(tmp_path, lambda document: document["records"][0].pop("answer"))
    loaded = RecordsFile(tmp_path).load()
    assert (loaded.records, "0 answers of 1 shares" in loaded.problems[0]) == ((), True)


def test_what_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    file(tmp_path).mkdir()
    loaded = RecordsFile(tmp_path).load()
    assert (loaded.records, aside(tmp_path)) == ((), [])
    assert "cannot read" in loaded.problems[0]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with file(tmp_path).open("wb") as stream:
        stream.truncate(LIMIT_BYTES + 1)
    assert "longer than" in RecordsFile(tmp_path).load().problems[0]


def test_what_cannot_be_written_is_an_error_and_the_old_file_stays(tmp_path: Path) -> None:
    records = RecordsFile(tmp_path)
    records.save([record("a")])
    (tmp_path / f"{RECORDS_FILE}.new").mkdir()
    with pytest.raises(HardwareError, match="cannot be written"):
        records.save([record("b")])
    assert RecordsFile(tmp_path).load().records == (record("a"),)


def test_text_that_is_not_unicode_is_an_error(tmp_path: Path) -> None:
    odd = replace(record("a"), boot_id="\udcff")
    with pytest.raises(HardwareError, match="cannot be written"):
        RecordsFile(tmp_path).save([odd])

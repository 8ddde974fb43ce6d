"""The JSON documents: their rows, and that answers and docs have the keys that their types describe."""

import json
from pathlib import Path

import msgspec
import pytest

from partage.answers.documents.document import Document
from partage.answers.documents.node import gpu_row
from partage.answers.documents.resources import resource_rows
from partage.cli.main import run
from partage.codec.values import decode
from partage.model.geometry import Placement
from partage.model.gpu import MigMode
from partage.model.ids import GpuUuid, ResourceName
from partage.units import GIB
from partage.values import Answer
from tests.answers.nodes import EXCLUSIVE, GUARDED, HARD, MIG, MPS, NONE, SLICED, gpu, offering
from tools.reference.documents import all_documents, rows_of

GPU_0 = GpuUuid("GPU-0")
ROOT = Path(__file__).parents[2]
KEYS = Path(__file__).with_name("document_keys.txt")
POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, mps: {replicas: 4}}
  - {select: {index: [1]}, mig: {layout: [3g.40gb, 2g.20gb], time-slicing: {replicas: 2, interval: long}}}
"""


DOCUMENTS = tuple(all_documents())
STRUCTS = tuple(dict.fromkeys((*DOCUMENTS, *rows_of(DOCUMENTS).values())))


def test_a_resource_of_one_strategy_names_it_with_its_count_and_its_gpus():
    (row,) = resource_rows({GpuUuid(f"GPU-{n}"): (offering(n, MPS, 4, GUARDED),) for n in (0, 1)})
    assert row.name == "nvidia.com/gpu"
    assert row.count == 8
    assert row.strategy == "mps"
    assert row.guarantee == "guarded"
    assert [(one.index, one.count, one.memory_bytes) for one in row.gpus] == [
        (0, 4, 20 * GIB),
        (1, 4, 20 * GIB),
    ]


def test_several_strategies_under_one_name_are_mixed_with_the_weakest_guarantee():
    (row,) = resource_rows(
        {GPU_0: (offering(0, EXCLUSIVE, 1, HARD),), GpuUuid("GPU-1"): (offering(1, SLICED, 4, NONE),)}
    )
    assert row.strategy == "mixed"
    assert row.guarantee == "none"
    assert [one.strategy for one in row.gpus] == ["exclusive", "time-slicing"]
    assert [one.guarantee for one in row.gpus] == ["hard", "none"]


def test_mig_devices_of_one_gpu_are_one_row_with_the_smallest_share():
    devices = tuple(
        offering(
            0, EXCLUSIVE, 1, HARD, strategy=MIG, device=f"MIG-{n}", index=f"0:{n}", memory_bytes=size * GIB
        )
        for n, size in enumerate((40, 10))
    )
    (row,) = resource_rows({GPU_0: devices})
    (one,) = row.gpus
    assert one.count == 2
    assert one.memory_bytes == 10 * GIB
    assert [device.uuid for device in one.devices] == ["MIG-0", "MIG-1"]


def test_a_planned_device_has_no_uuid_yet():
    planned = offering(
        0, EXCLUSIVE, 1, HARD, strategy=MIG, placement=Placement(0, 4), resource=ResourceName("nvidia.com/x")
    )
    (row,) = resource_rows({GPU_0: (planned,)})
    assert row.gpus[0].planned is True
    assert row.gpus[0].devices[0].uuid is None


def test_a_gpu_row_says_mode_and_mig_in_words():
    row = gpu_row(gpu(3, ("3g.40gb", 4, 4, 40)))
    assert row.index == 3
    assert row.compute_mode == "default"
    assert row.mig_mode == MigMode(current=True, pending=True)
    assert row.mig_devices[0].placement == Placement(4, 4)


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_key_of_a_document_is_documented(struct):
    text = (ROOT / "docs" / "reference" / "json.md").read_text()
    keys = [field.encode_name for field in msgspec.structs.fields(struct)]
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_no_key_becomes_public_by_accident():
    """A key that is in a document once cannot be renamed: the list is edited by hand, on purpose."""
    lines = [
        f"{struct.__name__}: {' '.join(field.encode_name for field in msgspec.structs.fields(struct))}"
        for struct in sorted(STRUCTS, key=lambda struct: struct.__name__)
    ]
    assert lines == KEYS.read_text().splitlines(), f"all keys of documents stand in {KEYS.name}"


def test_a_decision_that_is_printed_says_so():
    printed = [struct for struct in STRUCTS if ".decide." in struct.__module__]
    assert printed
    assert [struct.__name__ for struct in printed if not issubclass(struct, Answer)] == []


@pytest.mark.parametrize(
    "command",
    [
        "show",
        "show --policy policy.yaml",
        "plan --policy policy.yaml",
        "plan --policy nothing.yaml",
        "plan --demand 3g.40gb=2,1g.10gb=9",
        "apply --policy policy.yaml",
        "apply --policy policy.yaml --dry-run",
        "assert --policy policy.yaml",
        "check policy.yaml",
        "simulate story.yaml",
    ],
)
def test_an_answer_is_the_document_that_its_type_describes(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)
    Path("story.yaml").write_text("steps: [{say: hello}]")
    run([*command.split(), "--machine", "2xh100-sxm5-80gb", "-o", "json"])
    answer = capsys.readouterr().out
    kinds = {struct.__name__: struct for struct in STRUCTS if issubclass(struct, Document)}
    assert list(json.loads(answer))[:2] == ["apiVersion", "kind"]
    decode(kinds[f"{json.loads(answer)['kind']}Document"], answer.encode())

"""The JSON that plan and show answer with."""

from pathlib import Path

from partage.faces.documents import gpu_row, resource_rows
from partage.model.ids import GpuUuid, ResourceName
from partage.units import GIB
from tests.faces.nodes import EXCLUSIVE, GUARDED, HARD, MIG, MPS, NONE, SLICED, gpu, offering

GPU_0 = GpuUuid("GPU-0")


def test_a_resource_of_one_strategy_names_it_with_its_count_and_its_gpus():
    (row,) = resource_rows({GpuUuid(f"GPU-{n}"): (offering(n, MPS, 4, GUARDED),) for n in (0, 1)})
    assert row["name"] == "nvidia.com/gpu"
    assert row["count"] == 8
    assert row["strategy"] == "mps"
    assert row["guarantee"] == "guarded"
    assert [(one["index"], one["count"], one["memoryBytes"]) for one in row["gpus"]] == [
        (0, 4, 20 * GIB),
        (1, 4, 20 * GIB),
    ]


def test_several_strategies_under_one_name_are_mixed_with_the_weakest_guarantee():
    (row,) = resource_rows(
        {GPU_0: (offering(0, EXCLUSIVE, 1, HARD),), GpuUuid("GPU-1"): (offering(1, SLICED, 4, NONE),)}
    )
    assert row["strategy"] == "mixed"
    assert row["guarantee"] == "none"
    assert [one["strategy"] for one in row["gpus"]] == ["exclusive", "time-slicing"]
    assert [one["guarantee"] for one in row["gpus"]] == ["hard", "none"]


def test_mig_devices_of_one_gpu_are_one_row_with_the_smallest_share():
    devices = tuple(
        offering(
            0, EXCLUSIVE, 1, HARD, strategy=MIG, device=f"MIG-{n}", index=f"0:{n}", memory_bytes=size * GIB
        )
        for n, size in enumerate((40, 10))
    )
    (row,) = resource_rows({GPU_0: devices})
    (one,) = row["gpus"]
    assert one["count"] == 2
    assert one["memoryBytes"] == 10 * GIB
    assert [device["uuid"] for device in one["devices"]] == ["MIG-0", "MIG-1"]


def test_a_planned_device_has_no_uuid_yet():
    planned = offering(
        0, EXCLUSIVE, 1, HARD, strategy=MIG, planned=True, resource=ResourceName("nvidia.com/x")
    )
    (row,) = resource_rows({GPU_0: (planned,)})
    assert row["gpus"][0]["planned"] is True
    assert row["gpus"][0]["devices"][0]["uuid"] is None


def test_a_gpu_row_says_mode_and_mig_in_words():
    row = gpu_row(gpu(3, ("3g.40gb", 4, 4, 40)))
    assert row["index"] == 3
    assert row["computeMode"] == "default"
    assert row["migMode"] == {"current": True, "pending": True}
    assert row["migDevices"][0]["placement"] == {"start": 4, "size": 4}


def test_every_key_of_a_document_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    (resource,) = resource_rows({GPU_0: (offering(0, MPS, 4, GUARDED, threads_percent=25),)})
    keys = [*resource, *resource["gpus"][0], *resource["gpus"][0]["devices"][0], *gpu_row(gpu(0))]
    assert [key for key in keys if f"`{key}`" not in text] == []

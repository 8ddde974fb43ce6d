"""What pods ask for or have of a node's GPUs, in thousandths."""

from __future__ import annotations

from decimal import Decimal

import pytest

from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.translate import need_of
from partage.claims.decide.book import BookDevice
from partage.claims.model.slices import slice_of_json
from partage.units import GIB
from partage.whatif.decide.gpu_amounts import (
    CannotPlay,
    ClaimedPart,
    GpuAmount,
    GpuNode,
    amount_of_need,
    amount_of_parts,
    amount_of_resources,
)
from tests.admission.pods import container, pod
from tests.scheduler.objects import device, slices

A100 = "NVIDIA-A100-SXM4-80GB"


def node(gpus: int = 4, gpu_gib: int = 80, labels: dict[str, str] | None = None, **units: int) -> GpuNode:
    return GpuNode(
        "n",
        A100,
        gpus,
        gpu_bytes=gpu_gib * GIB,
        units={
            f"nvidia.com/{name.replace('__', '-').replace('_', '.')}": count for name, count in units.items()
        },
        labels=labels or {},
    )


@pytest.mark.parametrize(
    ("asked", "of", "wanted"),
    [
        ({"gpu": 2}, node(gpu=4), (2, 1000)),
        ({"gpu": 1}, node(gpu=3), (1, 1000)),  # one of four GPUs is not healthy
        ({"gpu": 1}, node(gpu=40), (1, 100)),
        ({"gpu.shared": 1}, node(gpu_shared=8, labels={"nvidia.com/gpu.replicas": "2"}), (1, 500)),
        ({"gpu.shared": 3}, node(gpu_shared=12), (3, 333)),
        ({"gpu": 1}, node(gpu=2, gpu_shared=6), (1, 1000)),
        ({"gpu.shared": 1}, node(gpu=2, gpu_shared=6, labels={"nvidia.com/gpu.replicas": "3"}), (1, 333)),
        ({"gpu.shared": 1}, node(gpu=2, gpu_shared=6), "asking for nvidia.com/gpu.shared, and how much"),
        ({"gpu.shared": 1}, node(gpu=2), "which no allowed node lists"),
        ({"mig-1g.10gb": 2}, node(), (2, 125)),
        ({"mig-1g.10gb.shared": 1}, node(labels={"nvidia.com/mig-1g.10gb.replicas": "2"}), (1, 62)),
        ({"mig-3g.40gb": 1, "mig-1g.10gb": 1}, node(), (2, 500)),
        ({"mig-1g.10gb": 1}, node(gpu_gib=0), "asking for nvidia.com/mig-1g.10gb"),
        ({"gpu": 0}, node(gpu=4), None),
        ({"gpumem": 4}, node(gpu=4), None),
    ],
)
def test_resources_of_a_device_plugin(
    asked: dict[str, int], of: GpuNode, wanted: tuple[int, int] | str | None
) -> None:
    devices = [(f"nvidia.com/{name}", count) for name, count in asked.items()]
    if isinstance(wanted, str):
        with pytest.raises(CannotPlay, match=wanted):
            amount_of_resources(devices, of)
        return
    found = amount_of_resources(devices, of)
    assert found == (None if wanted is None else GpuAmount(*wanted))


def test_a_unit_of_hami_is_a_gpu() -> None:
    of = GpuNode("n", A100, 4, gpu_bytes=80 * GIB, units={"nvidia.com/gpu": 40}, split=True)
    assert amount_of_resources([("nvidia.com/gpu", 1)], of) == GpuAmount(1, 1000)


HAMI = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 20480}


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (pod(container(HAMI)), (2, 250)),
        (pod(container({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 33})), (1, 330)),
        (pod(container({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 100})), (1, 1000)),
        (pod(container({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 8192})), (1, 100)),
        (pod(container(), annotations={"gpu-fraction": "0.5"}), (1, 500)),
        (pod(container({"aliyun.com/gpu-mem": 20})), (1, 250)),
        (pod(container({"nvidia.com/gpu-10gb": 1})), (1, 125)),
        (
            pod(
                container({"nvidia.com/gpu": 1}),
                nodeSelector={"cloud.google.com/gke-max-shared-clients-per-gpu": "4"},
            ),
            (1, 250),
        ),
        # Two containers have different GPUs, as far as a trace can say it; an init container has ended.
        (
            pod(container(HAMI), container({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 40960}, "b")),
            (3, 500),
        ),
        (pod(container(HAMI), initContainers=[container({"nvidia.com/gpu": 4}, "i")]), (2, 250)),
        (pod(container({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 90_000})), "more memory than a GPU has"),
    ],
)
def test_words_of_other_systems(document: dict[str, object], wanted: tuple[int, int] | str) -> None:
    need = need_of(document, DialectSettings())
    assert need is not None
    if isinstance(wanted, str):
        with pytest.raises(CannotPlay, match=wanted):
            amount_of_need(need, node())
    else:
        assert amount_of_need(need, node()) == GpuAmount(*wanted)


def test_nobodys_words_are_no_need_of_another_system() -> None:
    assert need_of(pod(container({"nvidia.com/gpu": 1})), DialectSettings()) is None


def published(**more: object) -> BookDevice:
    spec = slice_of_json(slices("n", [device(0, **more)])["spec"])  # type: ignore[arg-type]
    return BookDevice(spec.driver, spec.pool.name, spec.devices[0])


MIG = {"type": {"string": "mig"}, "profile": {"string": "3g.40gb"}, "mode": {"string": "mig"}}


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        (ClaimedPart(published(memory=80 * GIB), {"memory": Decimal(20 * GIB)}), (1, 250)),
        (ClaimedPart(published(memory=80 * GIB), {"memory": Decimal(80 * GIB)}), (1, 1000)),
        (
            ClaimedPart(published(mode="replicas"), {"shares": Decimal(1), "memory": Decimal(0)}),
            (1, 250),
        ),
        (ClaimedPart(published(mode="whole")), (1, 1000)),
        (ClaimedPart(published(mode="mig", attributes=MIG)), (1, 500)),
    ],
)
def test_devices_of_claims(part: ClaimedPart, wanted: tuple[int, int]) -> None:
    assert amount_of_parts([part], node()) == GpuAmount(*wanted)


def test_several_devices_count_as_if_each_were_the_largest() -> None:
    shared = published(memory=80 * GIB)
    parts = [ClaimedPart(shared, {"memory": Decimal(size * GIB)}) for size in (10, 20)]
    assert amount_of_parts(parts, node()) == GpuAmount(2, 250)
    assert amount_of_parts([], node()) is None

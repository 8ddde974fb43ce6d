"""How much is asked for, from the smallest share to the largest GPU."""

from __future__ import annotations

import pytest

from partage.lab.bench.memory import tensor_sizes, thirds_tried
from partage.lab.tenant import CUDA_NEEDS_BYTES, beyond_bytes, data_bytes, has_room, piece_bytes
from partage.units import GIB, MIB

# Limit, and what one client had of it on driver 615.71 (NVIDIA's Dynamo project), in MiB.
MEASURED = [(2048, 1536), (3000, 2560), (5120, 4864), (10240, 9728), (30000, 29184), (48943, 48128)]


@pytest.mark.parametrize(("limit_mib", "usable_mib"), MEASURED)
def test_what_a_client_surely_has_is_less_than_what_one_had(limit_mib, usable_mib):
    assert data_bytes(limit_mib * MIB) <= usable_mib * MIB


@pytest.mark.parametrize(
    ("limit_mib", "data_mib", "piece_mib"),
    [
        (256, 0, 16),
        (1000, 0, 62),
        (1024, 0, 64),
        (1741, 716, 108),  # 1.7 GiB
        (2048, 1024, 128),
        (5120, 4096, 320),
        (6144, 5120, 384),
        (20480, 17066, 1280),
        (143360, 119466, 8960),  # 140 GiB
    ],
)
def test_figures_from_the_smallest_share_to_the_largest_gpu(limit_mib, data_mib, piece_mib):
    limit = limit_mib * MIB
    assert data_bytes(limit) == data_mib * MIB
    assert piece_bytes(limit) == piece_mib * MIB


@pytest.mark.parametrize("limit", [*(n * 256 * MIB for n in range(1, 561)), 1741 * MIB, 256 * MIB + 1])
def test_whole_pieces_pass_the_limit_before_they_pass_what_is_tried(limit):
    piece = piece_bytes(limit)
    assert piece % (2 * MIB) == 0
    assert 16 <= limit // piece <= 19
    assert limit < beyond_bytes(limit) // piece * piece <= beyond_bytes(limit)
    assert data_bytes(limit) <= limit * 5 // 6
    assert data_bytes(limit) + CUDA_NEEDS_BYTES <= limit or data_bytes(limit) == 0


@pytest.mark.parametrize(
    ("amount_mib", "device_gib", "room"),
    [
        (4 * 1024, 5, True),
        (4 * 1024 + 1, 5, False),
        (72 * 1024, 80, True),
        (73 * 1024, 80, False),
        (1, 1, False),
    ],
)
def test_a_device_keeps_room_for_what_cuda_needs(amount_mib, device_gib, room):
    assert has_room(amount_mib * MIB, device_gib * GIB) is room


@pytest.mark.parametrize(
    ("limit_mib", "thirds"),
    [(256, (3.0,)), (1741, (1.2, 3.0)), (3072, (2.0, 3.0)), (6144, (2.5, 3.0)), (143360, (2.5, 3.0))],
)
def test_bench_tries_as_many_thirds_as_surely_fit(limit_mib, thirds):
    limit = limit_mib * MIB
    assert thirds_tried(limit) == thirds
    for tried in thirds[:-1]:
        assert sum(tensor_sizes(limit, tried)) <= limit - CUDA_NEEDS_BYTES
    assert thirds_tried(limit, on_gpu=False) == (2.5, 3.0)

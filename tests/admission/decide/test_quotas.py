"""Quotas that count a pod as it was written, and not as it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from partage.admission.decide.quotas import NamespaceQuota, uncounted
from tests.admission.pods import container, pod, translated

HAMI = pod(container({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}))
VOLCANO = pod(container({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000}))
SHARES = pod(
    container({"nvidia.com/gpu": 1}), nodeSelector={"cloud.google.com/gke-max-shared-clients-per-gpu": "4"}
)
PARTS = pod(container(), annotations={"gpu-fraction": "0.5"})
OF_GPUS, OF_SHARES = (
    f"{name}.deviceclass.resource.k8s.io/devices" for name in ("gpu.partage.dev", "share.partage.dev")
)


@pytest.mark.parametrize(
    ("document", "limits", "lost", "counts"),
    [
        (HAMI, ["requests.nvidia.com/gpumem"], "requests.nvidia.com/gpumem", OF_GPUS),
        (HAMI, ["limits.nvidia.com/gpumem"], "limits.nvidia.com/gpumem", OF_GPUS),
        (HAMI, ["requests.nvidia.com/gpu", "pods"], "requests.nvidia.com/gpu", OF_GPUS),
        (VOLCANO, ["requests.volcano.sh/vgpu-memory"], "requests.volcano.sh/vgpu-memory", OF_GPUS),
        (SHARES, ["requests.nvidia.com/gpu", OF_GPUS], "requests.nvidia.com/gpu", OF_SHARES),
        # Nothing is lost where the claims are counted, or nothing of the pod was.
        (HAMI, ["requests.nvidia.com/gpumem", OF_GPUS], None, ""),
        (HAMI, ["requests.nvidia.com/gpucores", "requests.cpu", "pods"], None, ""),
        (PARTS, ["requests.nvidia.com/gpu"], None, ""),
        (HAMI, [], None, ""),
    ],
)
def test_what_is_no_longer_counted(
    document: dict[str, Any], limits: list[str], lost: str | None, counts: str
) -> None:
    quotas = [NamespaceQuota("other", frozenset({"pods"})), NamespaceQuota("gpus", frozenset(limits))]
    found = uncounted(translated(document), "team", quotas)
    if lost is None:
        assert found is None
        return
    assert found == (
        f"the ResourceQuota gpus of namespace team limits {lost}, and counts nothing of a claim",
        f"a quota on {counts} counts devices of claims, not memory",
    )


def test_a_quota_that_counts_may_be_another_one() -> None:
    quotas = [
        NamespaceQuota("old", frozenset({"requests.nvidia.com/gpumem"})),
        NamespaceQuota("new", frozenset({OF_GPUS})),
    ]
    assert uncounted(translated(HAMI), "team", quotas) is None

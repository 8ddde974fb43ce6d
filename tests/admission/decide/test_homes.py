"""How long a place is looked for: a tenant has written what is asked for, and the API server waits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from partage.admission.decide.homes import HomeNode, Homes, home_node
from partage.admission.decide.template import sizes_of
from partage.admission.decide.translate import AdmissionTerms, RefusedPod
from partage.claims.decide import scheduling
from partage.claims.decide.book import devices_in
from partage.claims.manifests import device_class_of
from partage.claims.model.slices import SliceSpec
from partage.codec.values import decode, encode
from partage.units import GIB
from tests.admission.pods import container, pod, translated
from tests.admission.serving import gpu
from tests.scheduler.objects import classes, slices

CLASSES = {
    one["metadata"]["name"]: device_class_of(one["metadata"]["name"], encode(one["spec"]))
    for one in classes()
}


def home(gpus: int, memory: int = 80 * GIB) -> HomeNode:
    found = slices("n", [gpu(number, memory=memory) for number in range(gpus)])
    return home_node(devices_in([decode(SliceSpec, encode(found["spec"]), strict=False)]))


@pytest.fixture
def looks() -> Iterator[list[int]]:
    """Devices that were looked at, all together."""
    seen, look = [0], scheduling._PlaceSearch._reason.__code__

    def count(frame: FrameType, event: str, _: object) -> None:
        seen[0] += event == "call" and frame.f_code is look

    before = sys.getprofile()
    sys.setprofile(count)
    yield seen
    sys.setprofile(before)


@pytest.mark.parametrize(("gpus", "kinds"), [(8, 1), (8, 40), (112, 1), (112, 12)])
@pytest.mark.parametrize("containers", [9, 64])
def test_what_has_no_place_is_refused_after_so_many_looks(
    gpus: int, kinds: int, containers: int, looks: list[int]
) -> None:
    """Each GPU holds one of these, and there is one too many: without a bound all ways would be tried."""
    homes = Homes([home(gpus, (70 + number) * GIB) for number in range(kinds)], CLASSES)
    amounts = [{"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(60_000 + n)} for n in range(containers)]
    document = pod(*(container(limits, f"c{number}") for number, limits in enumerate(amounts)))
    asked = translated(document, AdmissionTerms(sizes=sizes_of(homes.devices)))
    found = homes.refusal(asked)
    assert isinstance(found, RefusedPod) is (containers > gpus)
    # Also where much is tried, no more than two tries for each device that is asked for, on each kind.
    assert looks[0] <= 2 * 8_000 + kinds * gpus * 3 * containers

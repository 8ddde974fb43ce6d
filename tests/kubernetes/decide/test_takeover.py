"""Which changes of plugins lose something for running pods."""

import pytest

from partage.kubernetes.decide.takeover import Exchange, problems_of
from partage.model.ids import PodUid, ResourceName, ShareId

GPU = ResourceName("nvidia.com/gpu")
A, B, C = (ShareId(f"GPU-00000000-0000-0000-0000-00000000000{n}") for n in "abc")
POD = frozenset({PodUid("p")})


@pytest.mark.parametrize(
    ("listed", "held", "offered", "mps", "said"),
    [
        ({A, B}, {A}, {A, B}, False, []),
        ({A, B}, {A}, {B}, False, ["error: 1 held ids would"]),
        ({A, B}, {A}, {A}, False, ["warning: 1 free ids"]),
        ({A}, {A}, {A, B, C}, False, ["warning: 2 more ids"]),
        ({A}, {A}, {A}, True, ["error: 1 shares under MPS"]),
        ({A}, set(), {A}, True, []),
        ({"nvidia0"}, {"nvidia0"}, {A}, False, ["error: 1 held ids of another form", "warning: 1 more ids"]),
        (set(), {A}, {A}, False, []),
        (set(), {A}, set(), False, ["error: 1 held ids would"]),
    ],
)
def test_held_ids_decide(listed, held, offered, mps, said):
    exchange = Exchange(
        "Partage",
        {GPU: frozenset(listed), ResourceName("vendor.com/nic"): frozenset({ShareId("eth0")})},
        {GPU: dict.fromkeys(held, POD)},
        {GPU: frozenset(offered)},
        frozenset({GPU} if mps else ()),
    )
    assert exchange.resources == (GPU,)
    found = [f"{one.severity}: {one.message}" for one in problems_of(exchange)]
    assert len(found) == len(said)
    assert all(text.startswith(start) for text, start in zip(found, said, strict=True))

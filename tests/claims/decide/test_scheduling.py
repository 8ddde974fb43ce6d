"""What claims get of a node, as the real allocator of Kubernetes 1.36.4 and 1.37.2 gave it for these devices
(facts of the project on DRA), and as the agent's own function then gives it.
"""

from decimal import Decimal
from pathlib import Path
from time import process_time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.decide.allocation import grant
from partage.claims.decide.book import ClaimBook, Taking, book_of_offer, devices_in
from partage.claims.decide.classes import chart_classes
from partage.claims.decide.device_reasons import (
    CapacityTaken,
    CapacityTooSmall,
    ClassSelectsOthers,
    DeviceTainted,
    DeviceTaken,
    NoSuchCapacity,
    RuleForbids,
    SelectorBroken,
    SelectorSaysNo,
    TakenHere,
)
from partage.claims.decide.scheduling import Placed, PodClaim, Unplaced, allocated, place
from partage.claims.decide.slices import slices_of
from partage.claims.manifests import ClaimObjectReader, read_or_refuse
from partage.claims.model.claim import ClaimSpec, DeviceClass
from partage.claims.model.grant import Granted
from partage.claims.model.names import OWN_NAMES
from partage.claims.model.slices import Capacity, ServerVersion
from partage.edges.files.catalogue import geometry_of
from partage.plan.serve.claim_offer import Closed
from tests.claims.offers import amounts, devices, machine, mig, offers, replicas, slices, whole

DRIVER = OWN_NAMES.driver

CLASSES, SERVER = chart_classes(), ServerVersion(1, 37, 2)
GPU, SHARE, MIG = "gpu.partage.dev", "share.partage.dev", "mig.partage.dev"
PROFILE = f"device.attributes['{DRIVER}'].profile"


def book(*rows, **more) -> ClaimBook:
    return book_of_offer(offers(*rows), machine(*rows), "node-a", geometry_of, **more)


def exactly(name="req", of=GPU, *selectors, **more):
    amounts_ = {key: more.pop(key) for key in ("memory", "cores", "shares", "gpus") if key in more}
    asks = {"deviceClassName": of, **more}
    if selectors:
        asks["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    if amounts_:
        asks["capacity"] = {"requests": amounts_}
    return {"name": name, "exactly": asks}


def claim(*requests, name="claim", **more) -> PodClaim:
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests), **more}},
    }
    spec = read_or_refuse(ClaimObjectReader(document))
    assert isinstance(spec, ClaimSpec)
    return PodClaim(name, spec, "team")


def one_after_another(there: ClaimBook, *claims: PodClaim) -> list[tuple[str, ...] | None]:
    """Of each claim the devices that it gets, each kept by those before; None: none."""
    found: list[tuple[str, ...] | None] = []
    for one in claims:
        placed = place([one], there, CLASSES)
        if isinstance(placed, Unplaced):
            found.append(None)
            continue
        new = [Taking(got.device.key, one.name, (), got.amounts) for got in placed.given if not got.way.admin]
        there = replace(there, takings=(*there.takings, *new))
        found.append(tuple(got.device.device.name[-1] for got in placed.given))
    return found


def test_the_classes_are_those_that_the_chart_makes():
    rendered = Path(__file__).parents[2] / "deploy" / "rendered" / "all.yaml"
    made = {
        one["metadata"]["name"]: DeviceClass(
            one["metadata"]["name"], tuple(row["cel"]["expression"] for row in one["spec"]["selectors"])
        )
        for one in yaml.safe_load_all(rendered.read_text())
        if one and one["kind"] == "DeviceClass"
    }
    assert made == CLASSES


TWO, ONE = (amounts(0, 79), amounts(1, 79)), (amounts(0, 79),)


@pytest.mark.parametrize(
    ("rows", "asked", "got"),
    [
        (TWO, [{}, {}, {}], [("0",), ("1",), None]),
        (ONE, [{"memory": "10Gi"}, {}], [("0",), None]),
        (ONE, [{}, {"memory": "10Gi"}], [("0",), None]),
        (
            ONE,
            [{"memory": "10Gi"}, {"memory": "60Gi", "cores": "50"}, {"memory": "10Gi"}, {"memory": "9Gi"}],
            [("0",), ("0",), None, ("0",)],
        ),
        (ONE, [{"memory": "1500Mi"}, {"memory": "78Gi"}, {"memory": "77Gi"}], [("0",), None, ("0",)]),
        (ONE, [{"memory": "80Gi"}], [None]),
        (ONE, [{"gpus": "1"}], [None]),
        (TWO, [{"count": 2, "memory": "1Gi"}], [("0", "1")]),
        (ONE, [{"count": 2, "memory": "1Gi"}], [None]),
        ((whole(0),), [{"memory": "10Gi"}, {}], [("0",), None]),
        (
            (replicas(0, 4),),
            [
                {"of": SHARE},
                {"of": SHARE, "shares": "1"},
                {"of": SHARE, "shares": "2"},
                {"of": SHARE, "memory": "2Gi"},
                {"of": SHARE},
            ],
            [("0",), ("0",), ("0",), None, None],
        ),
        # Whole GPUs come last, so an amount gets an amount.
        ((whole(0), amounts(1)), [{"memory": "10Gi"}], [("1",)]),
        (TWO, [{"allocationMode": "All"}, {"memory": "1Gi"}], [("0", "1"), None]),
        (TWO, [{"memory": "1Gi"}, {"allocationMode": "All"}], [("0",), None]),
        # One that only looks finds no full GPU, and counts for nothing afterwards.
        (ONE, [{}, {"adminAccess": True}], [("0",), None]),
        (ONE, [{"adminAccess": True}, {}], [("0",), ("0",)]),
    ],
)
def test_as_the_allocator_decides(rows, asked, got):
    claims = [
        claim(exactly("req", one.pop("of", GPU), **one), name=f"c{number}")
        for number, one in enumerate(map(dict, asked))
    ]
    assert one_after_another(book(*rows), *claims) == got


def test_two_requests_of_a_claim_can_be_of_one_gpu_and_rules_can_force_or_forbid_it():
    two = exactly("a", memory="30Gi"), exactly("b", memory="30Gi")
    uuid = f"{DRIVER}/uuid"
    assert one_after_another(book(*TWO), claim(*two)) == [("0", "0")]
    assert one_after_another(book(*TWO), claim(*two, constraints=[{"distinctAttribute": uuid}])) == [
        ("0", "1")
    ]
    large = exactly("a", memory="60Gi"), exactly("b", memory="60Gi")
    assert one_after_another(book(*TWO), claim(*large)) == [("0", "1")]
    assert one_after_another(book(*TWO), claim(*large, constraints=[{"matchAttribute": uuid}])) == [None]
    # The first device of the first request is not the answer: it goes back.
    held = Taking(book(*TWO).devices[0].key, "x", (), {"memory": Decimal(50 * 2**30)})
    back = claim(
        exactly("a", memory="20Gi"), exactly("b", memory="20Gi"), constraints=[{"matchAttribute": uuid}]
    )
    assert one_after_another(replace(book(*TWO), takings=(held,)), back) == [("1", "1")]


def test_the_first_alternative_that_is_there():
    best = {
        "name": "best",
        "firstAvailable": [
            {"name": "hard", "deviceClassName": MIG},
            {"name": "soft", "deviceClassName": GPU, "capacity": {"requests": {"memory": "10Gi"}}},
        ],
    }
    there = book(mig(0, 0), amounts(1))
    placed = place([claim(best)], there, CLASSES)
    assert isinstance(placed, Placed)
    assert [one.way.name for one in placed.given] == ["best/hard"]
    taken = replace(there, takings=(Taking(placed.given[0].device.key, "x"),))
    placed = place([claim(best)], taken, CLASSES)
    assert isinstance(placed, Placed)
    assert [one.way.name for one in placed.given] == ["best/soft"]


def held(key, **more):
    return Taking(key, "claim team/a", ("team/p",), {name: Decimal(value) for name, value in more.items()})


@pytest.mark.parametrize(
    ("row", "asked", "takings", "reason", "text"),
    [
        (amounts(0), exactly(of=MIG), {}, ClassSelectsOthers, "is offered as amounts of memory"),
        (
            mig(0, 0),
            exactly("r", MIG, f"{PROFILE} == '3g.40gb'"),
            {},
            SelectorSaysNo,
            "it has profile 1g.10gb",
        ),
        (
            amounts(0),
            exactly("r", GPU, f"{PROFILE} == '3g.40gb'"),
            {},
            SelectorBroken,
            "gives the whole pod up",
        ),
        (amounts(0), exactly(gpus="1"), {}, NoSuchCapacity, "it has memory, cores"),
        (replicas(0), exactly(of=SHARE, memory="1Gi"), {}, NoSuchCapacity, "it has shares"),
        (amounts(0), exactly(memory="80Gi"), {}, CapacityTooSmall, "has memory 79Gi in all, 80Gi is asked"),
        (
            amounts(0),
            exactly(memory="30Gi"),
            {"memory": 60 * 2**30},
            CapacityTaken,
            "has 19Gi of 79Gi of memory left, 30Gi is asked for: held by claim team/a",
        ),
        (whole(0), exactly(), {"memory": 0}, DeviceTaken, "is taken: held by claim team/a"),
        (
            amounts(0),
            exactly(cores="60", memory="1Gi"),
            {"memory": 2**30, "cores": 50},
            CapacityTaken,
            "has 50 of 100 of cores left",
        ),
    ],
)
def test_why_a_device_is_not_enough(row, asked, takings, reason, text):
    there = book(row)
    if takings:
        there = replace(there, takings=(held(there.devices[0].key, **takings),))
    missed = place([claim(asked)], there, CLASSES)
    assert isinstance(missed, Unplaced)
    ((_, why),) = missed.ways[0].devices
    assert isinstance(why, reason)
    assert text in str(why)


def test_a_closed_device_is_tainted_until_the_request_tolerates_it():
    row = amounts(0)
    ill = book(row, closed={row.device: Closed("unhealthy", "is not healthy", "79")})
    missed = place([claim(exactly())], ill, CLASSES)
    assert isinstance(missed, Unplaced)
    assert isinstance(missed.ways[0].devices[0][1], DeviceTainted)
    tolerant = claim(exactly(tolerations=[{"key": f"{DRIVER}/unhealthy", "operator": "Exists"}]))
    assert isinstance(place([tolerant], ill, CLASSES), Placed)


def test_what_another_request_of_the_pod_gets_and_what_a_rule_forbids_is_said():
    missed = place([claim(exactly("a")), claim(exactly("b"))], book(*ONE), CLASSES)
    assert isinstance(missed, Unplaced)
    assert missed.request.name == "b"
    assert missed.ways[0].devices[0][1] == TakenHere("a")
    rule = {"distinctAttribute": f"{DRIVER}/uuid"}
    small = exactly("a", memory="1Gi"), exactly("b", memory="1Gi")
    missed = place([claim(*small, constraints=[rule])], book(*ONE), CLASSES)
    assert isinstance(missed, Unplaced)
    assert isinstance(missed.ways[0].devices[0][1], RuleForbids)


def test_of_a_pool_only_the_newest_slices_count_and_only_amounts_that_can_be_read():
    (spec,) = slices_of(devices(amounts(0), whole(1)), machine(amounts(0), whole(1)), {}, SERVER, geometry_of)
    old, new = (replace(spec, pool=replace(spec.pool, generation=number)) for number in (1, 2))
    odd = replace(new.devices[0], capacity={"memory": Capacity("12 apples")})
    found = devices_in([old, replace(new, devices=(odd, new.devices[1]))])
    assert [one.device.name for one in found] == ["gpu-00000001"]


def test_requests_that_a_tenant_has_made_hard_end_soon():
    """Each fits alone, and all never together: there are more ways than anybody can try."""
    rows = [amounts(number, 2) for number in range(16)]
    requests = [exactly(f"r{number}", memory="1Gi") for number in range(30)]
    together = {"requests": ["r0", "r29"], "distinctAttribute": f"{DRIVER}/mode"}
    started = process_time()
    missed = place([claim(*requests, constraints=[together])], book(*rows), CLASSES)
    assert isinstance(missed, Unplaced)
    assert missed.request.name == "r29"
    assert process_time() - started < 20


ROWS = (amounts(0, 20), slices(1, 10), replicas(2, 4), whole(3), mig(4, 0), mig(4, 1))
REQUESTS = st.one_of(
    st.builds(
        lambda memory, cores: exactly(memory=f"{memory}Mi", cores=str(cores)),
        st.integers(0, 22_000),
        st.integers(0, 110),
    ),
    st.builds(lambda shares: exactly(of=SHARE, shares=str(shares)), st.integers(0, 5)),
    st.builds(lambda count: exactly(of=MIG, count=count), st.integers(1, 3)),
    st.just(exactly()),
)


@given(st.lists(REQUESTS, max_size=12))
def test_what_the_scheduler_would_give_the_agent_gives(asked):
    """One truth about room: the books of the scheduler and of the agent never part."""
    there = book(*ROWS)
    assert there.served is not None
    kept: list[Granted] = []
    for number, request in enumerate(asked):
        one = claim(request, name=f"c{number}")
        placed = place([one], there, CLASSES)
        if isinstance(placed, Unplaced):
            continue
        written = allocated(one, placed.given, CLASSES)
        answer = grant(written, written.ref, there.served, kept)
        assert isinstance(answer, Granted), answer
        kept.append(answer)
        new = tuple(Taking(got.device.key, one.name, (), got.amounts) for got in placed.given)
        there = replace(there, takings=(*there.takings, *new))
        assert there.served is not None
        # What the agent's ids say of the node is the same book.
        holds = {
            (share.resource, id_): granted.claim.name
            for granted in kept
            for share in granted.shares
            for id_ in share.ids
        }
        again = book(*ROWS, held=holds)
        for device in there.devices:
            for name in ("memory", "shares"):
                assert _sum(again, device.key, name) == _sum(there, device.key, name)


def _sum(there: ClaimBook, key, name) -> Decimal:
    return sum((one.amounts.get(name, Decimal(0)) for one in there.of_device(key)), Decimal(0))

"""Devices that use up counters together, as the scheduler counts them."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.decide.allocation import grant
from partage.claims.decide.book import BookDevice, ClaimBook, Taking, book_of_offer, counters_in, devices_in
from partage.claims.decide.charge import CountersLeft
from partage.claims.decide.classes import chart_classes
from partage.claims.decide.device_reasons import CountersTaken, LackingCounter, TakenHere
from partage.claims.decide.on_demand import demands_of
from partage.claims.decide.scheduling import Placed, PodClaim, Unplaced, allocated, place
from partage.claims.model.claim import ClaimRequest, ClaimSpec, DeviceAsk
from partage.claims.model.grant import Granted
from partage.claims.model.names import OWN_NAMES
from partage.claims.model.slices import Counter, CounterSet, CounterUse, Pool, SliceDevice, SliceSpec
from partage.edges.files.catalogue import geometry_of
from partage.model.claim import GpuDemand
from partage.model.ids import GPU_CLASS, MIG_CLASS
from partage.model.layout import LayoutItem
from tests.claims.decide.test_on_demand import GPU_0
from tests.plan.offers import node

CLASSES = chart_classes()
PROFILES = ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
WHOLE = ""


def book(demand: GpuDemand | None = None) -> ClaimBook:
    """A node whose only GPU has nothing made on it. demand: what claims wait for."""
    wanted = {GPU_0.uuid: demand or GpuDemand()}
    return book_of_offer({}, node(GPU_0), "node-a", geometry_of, demands=wanted)


def asks(profile: str, name: str = "c") -> PodClaim:
    selectors = (f"device.attributes['{OWN_NAMES.driver}'].profile == '{profile}'",) if profile else ()
    way = DeviceAsk("gpu", MIG_CLASS if profile else GPU_CLASS, selectors=selectors)
    return PodClaim(name, ClaimSpec(name, (ClaimRequest("gpu", (way,)),)), "team")


@given(st.lists(st.sampled_from([*PROFILES, WHOLE]), max_size=9))
def test_scheduler_agent_and_the_book_of_what_is_not_made_yet_never_part(order: list[str]) -> None:
    there, kept = book(), list[Granted]()
    for number, profile in enumerate(order):
        one = asks(profile, f"c{number}")
        placed = place([one], there, CLASSES)
        # Of the same claims the node knows only what they wait for.
        waiting = book(demands_of(kept, {}).get(GPU_0.uuid))
        assert type(place([one], waiting, CLASSES)) is type(placed)
        if isinstance(placed, Unplaced):
            continue
        assert place([one], waiting, CLASSES) == placed
        assert there.served is not None
        written = allocated(one, placed.given, CLASSES)
        answer = grant(written, written.ref, there.served, kept)
        assert isinstance(answer, Granted), answer
        kept.append(answer)
        new = tuple(Taking(got.device.key, one.name, (), got.amounts) for got in placed.given)
        there = replace(there, takings=(*there.takings, *new))


def test_what_is_not_made_yet_is_nobodys_by_name_and_is_said() -> None:
    there = book(GpuDemand(parts=(LayoutItem.parse("3g.40gb@4"), LayoutItem.parse("1g.10gb@0"))))
    missed = place([asks("4g.40gb")], there, CLASSES)
    assert isinstance(missed, Unplaced)
    (said,) = {
        str(reason)
        for device, reason in missed.ways[0].devices
        if device.text("profile") == "4g.40gb" and isinstance(reason, CountersTaken)
    }
    assert said == "needs 1 of memory-slice-0, of which other devices leave 0 of 1"


def test_two_requests_of_a_pod_are_not_given_devices_that_exclude_each_other() -> None:
    missed = place([asks("7g.80gb", "a"), asks(WHOLE, "b")], book(), CLASSES)
    assert isinstance(missed, Unplaced)
    assert missed.claim.name == "b"
    assert missed.ways[0].devices[-1][1] == TakenHere("gpu")
    assert isinstance(place([asks("3g.40gb", "a"), asks("3g.40gb", "b")], book(), CLASSES), Placed)


# --- of any driver ---------------------------------------------------------------------------------


def published(*uses: tuple[str, int], shared: str = "", most: int = 4, generation: int = 1) -> ClaimBook:
    """A pool with one counter and devices that use it up; ``shared`` can have several holders."""
    pool = Pool("pool", generation, 2)
    devices = tuple(
        SliceDevice(
            name,
            allow_multiple_allocations=True if name == shared else None,
            consumes_counters=(CounterUse("gpu-0", {"engines": Counter(str(amount))}),),
        )
        for name, amount in uses
    )
    slices = [
        SliceSpec("d", "n", pool, shared_counters=(CounterSet("gpu-0", {"engines": Counter(str(most))}),)),
        SliceSpec("d", "n", replace(pool, generation=0), shared_counters=(CounterSet("gpu-0", {}),)),
        SliceSpec("d", "n", pool, devices),
    ]
    return ClaimBook(devices_in(slices), counters=counters_in(slices))


def named(there: ClaimBook, name: str) -> BookDevice:
    return next(one for one in there.devices if one.device.name == name)


def test_who_has_to_end_for_a_device() -> None:
    there = published(("a", 1), ("b", 2), ("c", 1), ("d", 3))
    takings = tuple(
        Taking(named(there, name).key, f"claim t/{name}", pods)
        for name, pods in (("a", ("t/p",)), ("b", ("t/q",)), ("c", ()))
    )
    left = CountersLeft(replace(there, takings=takings))
    assert left.lacking(named(there, "d")) == CountersTaken(
        (
            LackingCounter(
                "engines",
                Decimal(3),
                Decimal(0),
                Decimal(4),
                ("claim t/a", "claim t/b", "claim t/c"),
                {("t/p",): Decimal(1), ("t/q",): Decimal(2)},
            ),
        )
    )
    assert CountersLeft(replace(there, takings=takings[2:])).lacking(named(there, "d")) is None


def test_a_shared_device_uses_up_its_counters_once() -> None:
    there = published(("all", 3), ("small", 1), ("large", 2), shared="all")
    two = tuple(Taking(named(there, "all").key, f"claim t/{name}", (f"t/{name}",)) for name in "ab")
    left = CountersLeft(replace(there, takings=two))
    assert left.lacking(named(there, "small")) is None
    assert left.lacking(named(there, "all")) is None
    lacking = left.lacking(named(there, "large"))
    assert lacking is not None
    assert lacking.lacking[0].by_pods == {("t/a", "t/b"): Decimal(3)}


def test_a_set_that_is_not_published_limits_nothing() -> None:
    there = replace(published(("a", 5)), counters={})
    assert CountersLeft(there).lacking(named(there, "a")) is None

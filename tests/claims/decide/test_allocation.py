"""What a claim gets of what was allocated to it: each kind, each refusal, and that nothing is given twice."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.claims.decide.allocation import grant
from partage.claims.decide.devices import ClaimDevices
from partage.claims.decide.status import device_status, held_now
from partage.claims.model.claim import Claim, ClaimConfig, ClaimResult, ConfigSource
from partage.claims.model.grant import (
    ClaimRecord,
    ClaimState,
    EnforcedBy,
    Granted,
    RefusalReason,
    RefusedClaim,
)
from partage.claims.model.names import NVIDIA_NAMES, OWN_NAMES
from partage.model.claim import ClaimRef
from partage.model.ids import GpuUuid, ResourceName, ShareId, device_of
from partage.model.policy import WatchAction
from partage.model.share import LONGEST_REFUSAL, DeviceOffer, Guarantee
from partage.model.strategy import Interval, Strategy
from partage.plan.serve.claim_offer import InForce
from partage.plan.serve.ledger_entry import Hold
from partage.units import GIB, MIB
from tests.claims.offers import AMOUNTS, amounts, devices, mig, replicas, slices, whole

DRIVER = OWN_NAMES.driver

POOL = "node-a-partage"
PLUGIN = ResourceName("nvidia.com/gpu")


def ref(name: str) -> ClaimRef:
    return ClaimRef("team-a", name, f"uid-{name}")


def result(
    row: DeviceOffer | str, request: str = "req", share: str | None = None, /, **consumed: int
) -> ClaimResult:
    name = row if isinstance(row, str) else next(iter(devices(row).rows))
    shared = None if isinstance(row, str) or not row.traits.in_shares else "share-0"
    return ClaimResult(request, POOL, name, DRIVER, share or shared, consumed)


def claim(name: str, *results: ClaimResult, configs: tuple[ClaimConfig, ...] = ()) -> Claim:
    return Claim(ref(name), allocated=True, results=results, configs=configs)


def config(
    parameters: str, source: ConfigSource = ConfigSource.CLAIM, *requests: str, driver: str = DRIVER
) -> ClaimConfig:
    return ClaimConfig(source, requests, driver, parameters.encode())


def asks(one: Claim, node: ClaimDevices, *kept: Granted, **more) -> Granted | RefusedClaim:
    return grant(one, one.ref, node, kept, **more)


def granted(one: Claim, node: ClaimDevices, *kept: Granted, **more) -> Granted:
    found = asks(one, node, *kept, **more)
    assert isinstance(found, Granted), found
    return found


def refused(one: Claim, node: ClaimDevices, *kept: Granted, **more) -> tuple[str, str]:
    found = asks(one, node, *kept, **more)
    assert isinstance(found, RefusedClaim), found
    start = f"claim team-a/{one.ref.name} "
    assert found.text.startswith(start)
    assert len(found.text) <= LONGEST_REFUSAL
    return found.reason.value, found.text.removeprefix(start)


def numbers(found: Granted) -> list[list[int]]:
    """The numbers of the units or shares of each."""
    return [[int(id_.rpartition("-" if "-_-" in id_ else ":")[2]) for id_ in one.ids] for one in found.shares]


# --- each kind -----------------------------------------------------------------------------------


def test_a_whole_gpu() -> None:
    row = whole(0)
    (share,) = granted(claim("a", result(row)), devices(row)).shares
    assert (share.ids, share.memory_bytes, share.guarantee) == (row.share_ids, 80 * GIB, Guarantee.HARD)
    assert (share.device, share.uuid, share.gpu, share.resource) == (
        "gpu-00000000",
        row.device,
        row.gpu,
        AMOUNTS,
    )


def test_an_amount_takes_the_lowest_free_units() -> None:
    row = amounts(0, 8)
    node = devices(row)
    a = granted(claim("a", result(row, memory=3 * GIB, cores=25)), node)
    b = granted(claim("b", result(row, memory=2 * GIB, cores=0)), node, a)
    c = granted(claim("c", result(row, memory=4 * GIB)), node, b)
    assert [numbers(one) for one in (a, b, c)] == [[[0, 1, 2]], [[3, 4]], [[0, 1, 2, 5]]]
    assert (a.shares[0].memory_bytes, a.shares[0].cores) == (3 * GIB, 25)


def test_a_claim_that_names_no_amount_has_all_of_the_card() -> None:
    row = amounts(0, 8)
    node = devices(row)
    for consumed in ({}, {"memory": 8 * GIB, "cores": 0}):
        assert numbers(granted(claim("a", result(row, **consumed)), node)) == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_replicas() -> None:
    row = replicas(0, 4)
    node = devices(row)
    a = granted(claim("a", result(row, shares=1, memory=0)), node)
    b = granted(claim("b", result(row, shares=2, memory=0)), node, a)
    assert [numbers(one) for one in (a, b)] == [[[0]], [[1, 2]]]
    assert b.shares[0].memory_bytes == 40 * GIB


def test_a_mig_device_beside_another_of_its_gpu() -> None:
    rows = [mig(0, 0), mig(0, 1)]
    node = devices(*rows)
    first, second = node.rows
    a = granted(claim("a", result(first)), node)
    b = granted(claim("b", result(second)), node, a)
    assert [one.shares[0].ids for one in (a, b)] == [rows[0].share_ids, rows[1].share_ids]


def test_several_requests_of_one_claim_may_have_shares_of_one_gpu() -> None:
    row = slices(0, 8)
    one = claim("a", result(row, "x", "s1", memory=3 * GIB), result(row, "y/alt", "s2", memory=5 * GIB))
    found = granted(one, devices(row))
    assert numbers(found) == [[0, 1, 2], [3, 4, 5, 6, 7]]
    assert [share.asked for share in found.shares] == ["x", "y"]


def test_what_the_claim_had_itself_is_not_in_its_way() -> None:
    row = amounts(0, 8)
    one = claim("a", result(row, memory=8 * GIB))
    before = granted(one, devices(row))
    assert granted(one, devices(row), before) == before


def test_admin_access_holds_nothing_and_is_given_of_a_full_card() -> None:
    row = amounts(0, 8)
    node = devices(row)
    full = granted(claim("a", result(row)), node)
    looks = claim("admin", replace(result(row, memory=8 * GIB), admin_access=True))
    found = granted(looks, node, full)
    assert (found.shares[0].ids, found.shares[0].memory_bytes, found.shares[0].admin_access) == ((), 0, True)
    assert granted(claim("b", result(row)), node, found).shares[0].ids == row.share_ids


def test_admin_access_is_given_however_the_card_is_shared_now() -> None:
    row = whole(0)
    looks = replace(result(row, "req", "s", memory=GIB), admin_access=True)
    assert granted(claim("admin", looks), devices(row)).shares[0].ids == ()


# --- refusals ------------------------------------------------------------------------------------


def test_the_claim_itself() -> None:
    row = whole(0)
    node, one = devices(row), claim("a", result(row))
    new = grant(one, replace(one.ref, uid="uid-old"), node)
    assert isinstance(new, RefusedClaim)
    assert (new.reason, "uid-old" in new.text, "uid-a" in new.text) == (RefusalReason.REPLACED, True, True)
    assert refused(replace(one, allocated=False, results=()), node)[0] == "not-allocated"
    assert refused(claim("a", replace(result(row), driver="gpu.nvidia.com")), node)[0] == "not-ours"


def test_results_of_other_drivers_are_not_looked_at() -> None:
    row = whole(0)
    other = ClaimResult("nic", "somewhere", "eth0", "dranet", None)
    assert len(granted(claim("a", other, result(row)), devices(row)).shares) == 1


def test_names_that_are_not_known_here() -> None:
    row = whole(0)
    node = devices(row)
    reason, text = refused(claim("a", replace(result(row), pool="node-b-partage")), node)
    assert (reason, "node-b-partage" in text, POOL in text) == ("pool", True, True)
    reason, text = refused(claim("a", result("gpu-ffffffff")), node)
    assert (reason, "gpu-ffffffff" in text, "gpu-00000000" in text) == ("device", True, True)


def test_a_name_that_means_another_gpu_now() -> None:
    row = whole(0)
    recorded = {"gpu-00000000": GpuUuid("GPU-00000000-dead-0000-0000-000000000000")}
    reason, text = refused(claim("a", result(row)), devices(row), recorded=recorded)
    assert (reason, "dead" in text, row.device in text) == ("other-gpu", True, True)
    granted(claim("a", result(row)), devices(row), recorded={"gpu-00000000": row.device})


@pytest.mark.parametrize(
    ("now", "consumed"),
    [
        (whole(0), {"memory": 10 * GIB, "cores": 0}),
        (whole(0), {"shares": 1, "memory": 0}),
        (replicas(0), {"memory": 10 * GIB, "cores": 0}),
        (replicas(0), {"shares": 1, "memory": GIB}),
        (replicas(0), {}),
        (amounts(0), {"shares": 1, "memory": 0}),
    ],
)
def test_a_card_that_is_shared_in_another_way_now(now: DeviceOffer, consumed: dict[str, int]) -> None:
    one = replace(result(now), consumed=consumed, share_id="s")
    reason, text = refused(claim("a", one), devices(now))
    assert (reason, "GPU 0" in text, "delete the pod" in text) == ("kind", True, True)


@pytest.mark.parametrize(
    ("row", "consumed", "said"),
    [
        (amounts(0, 8), {"memory": GIB + 1}, "not a multiple of 1 GiB"),
        (amounts(0, 8), {"memory": 1500 * MIB}, "not a multiple of 1 GiB"),
        (amounts(0, 8), {"memory": 0}, "not a multiple of 1 GiB"),
        (amounts(0, 8), {"memory": -GIB}, "not a multiple of 1 GiB"),
        (amounts(0, 8), {"memory": 9 * GIB}, "8 GiB in all"),
        (amounts(0, 8), {"memory": GIB * 10**90}, "8 GiB in all"),
        (amounts(0, 8), {"memory": GIB, "cores": 101}, "100 %"),
        (replicas(0, 4), {"shares": 5, "memory": 0}, "4 shares in all"),
        (replicas(0, 4), {"shares": 0, "memory": 0}, "not one or more"),
    ],
)
def test_amounts_that_cannot_be(row: DeviceOffer, consumed: dict[str, int], said: str) -> None:
    reason, text = refused(claim("a", result(row, **consumed)), devices(row))
    assert (reason, said in text) == ("amount", True), text


def test_more_than_is_free_names_the_holders_and_what_is_free() -> None:
    row = amounts(0, 79)
    node = devices(row)
    a = granted(claim("a", result(row, memory=60 * GIB)), node)
    b = granted(claim("b", result(row, memory=9 * GIB)), node, a)
    reason, text = refused(claim("c", result(row, memory=11 * GIB)), node, a, b)
    assert reason == "sum"
    assert text == (
        "was given 11 GiB of GPU 0 (gpu-00000000), of which 10 GiB is free of 79 GiB: claim team-a/a, "
        "claim team-a/b have the rest; it is tried again by itself, and succeeds once that has ended"
    )
    granted(claim("c", result(row, memory=10 * GIB)), node, a, b)


def test_the_whole_card_beside_a_part_and_a_part_beside_the_whole() -> None:
    row = amounts(0, 8)
    node = devices(row)
    part, all_ = claim("part", result(row, memory=GIB)), claim("all", result(row))
    assert refused(all_, node, granted(part, node))[0] == "sum"
    assert refused(part, node, granted(all_, node))[0] == "sum"


def test_a_whole_gpu_twice() -> None:
    row = whole(0)
    node = devices(row)
    reason, text = refused(claim("b", result(row)), node, granted(claim("a", result(row)), node))
    assert (reason, "GPU 0 (gpu-00000000), which is held by claim team-a/a;" in text) == ("held", True)


def test_cores_add_up_to_a_hundred() -> None:
    row = amounts(0, 8)
    node = devices(row)
    a = granted(claim("a", result(row, memory=GIB, cores=60)), node)
    reason, text = refused(claim("b", result(row, memory=GIB, cores=60)), node, a)
    assert (reason, "40 % are free: claim team-a/a has 60 %" in text) == ("sum", True)
    granted(claim("b", result(row, memory=GIB, cores=40)), node, a)


def test_cores_of_two_shares_of_one_claim_count_both() -> None:
    row = amounts(0, 8)
    node = devices(row)
    both = [result(row, name, name, memory=GIB, cores=30) for name in "xy"]
    a = granted(claim("a", *both), node)
    assert refused(claim("b", result(row, memory=GIB, cores=50)), node, a)[0] == "sum"
    granted(claim("b", result(row, memory=GIB, cores=40)), node, a)


@pytest.mark.parametrize(
    ("row", "hold"),
    [
        (amounts(0, 8), (PLUGIN, ShareId(whole(0).device))),
        (whole(0), (PLUGIN, ShareId(f"{whole(0).device}::3"))),
        (mig(0, 0), (PLUGIN, ShareId(whole(0).device))),
        (mig(0, 0), (PLUGIN, ShareId(mig(0, 0).device))),
        (whole(0), (AMOUNTS, ShareId(whole(0).device))),
        (amounts(0, 8), (AMOUNTS, amounts(0, 8).share_ids[7])),
    ],
)
def test_a_card_that_others_hold(row: DeviceOffer, hold: Hold) -> None:
    held = {hold: "pod team-b/train"}
    wanted = result(row)
    reason, text = refused(claim("a", wanted), devices(row), held=held)
    assert (reason, "pod team-b/train" in text, "tried again" in text) == ("held", True, True)


def test_holds_elsewhere_are_in_nobodys_way() -> None:
    rows = [amounts(0, 8), mig(1, 0), mig(1, 1)]
    held = {
        (PLUGIN, ShareId(whole(5).device)): "pod x/y",
        (PLUGIN, ShareId(rows[2].device)): "pod x/z",
        (AMOUNTS, amounts(0, 8).share_ids[7]): "pod x/v",
    }
    node = devices(*rows)
    first, second, _ = node.rows
    granted(claim("a", result(first, "req", "s", memory=7 * GIB), result(second, "mig")), node, held=held)


def test_units_of_another_size_are_in_the_way() -> None:
    """A record of before the unit was changed: the same ids, other amounts."""
    old, new = amounts(0, 8), amounts(0, 4, 2 * GIB)
    a = granted(claim("a", result(old, memory=2 * GIB)), devices(old))
    assert refused(claim("b", result(new, memory=2 * GIB)), devices(new), a)[0] == "held"


def test_a_request_for_two_gpus_under_mps_cannot_work() -> None:
    rows = [amounts(0, 8), amounts(1, 8)]
    node = devices(*rows)
    one = claim("a", *(result(row, memory=8 * GIB) for row in rows))
    reason, text = refused(one, node)
    assert (reason, "GPU 0, GPU 1" in text) == ("together", True)
    sliced = [slices(0, 8), slices(1, 8)]
    granted(claim("a", *(result(row, memory=8 * GIB) for row in sliced)), devices(*sliced))
    granted(claim("a", *(result(row, f"r{row.gpu_index}", memory=GIB) for row in rows)), node)


def test_the_same_share_twice_is_no_allocation() -> None:
    row = amounts(0, 8)
    one = result(row, memory=GIB)
    assert refused(claim("a", one, replace(one, request="b")), devices(row))[0] == "unreadable"


@pytest.mark.parametrize("uid", ["", "../../etc/x", "a" * 65, "a-", "x y", "ü"], ids=str.__len__)
def test_what_is_no_uid_gets_into_no_name(uid: str) -> None:
    row = amounts(0, 8)
    found = grant(Claim(ClaimRef("a", "b", uid), allocated=True), ClaimRef("a", "b", uid), devices(row))
    assert isinstance(found, RefusedClaim)
    assert found.reason is RefusalReason.UNREADABLE
    assert refused(claim("a", replace(result(row), share_id=uid)), devices(row))[0] == "unreadable"


def test_an_even_share_may_be_asked_for_with_memory_under_the_names_of_nvidias_driver() -> None:
    row = replicas(0, 4)
    node = devices(row, names=NVIDIA_NAMES)
    consumed = {"shares": 1, "memory": 2 * GIB}
    asked = ClaimResult("req", "node-a", "gpu-10", NVIDIA_NAMES.driver, "share-0", consumed)
    assert granted(claim("a", asked), node).shares[0].ids == row.share_ids[:1]
    cores = replace(asked, consumed={"shares": 1, "cores": 10})
    assert refused(claim("a", cores), node)[0] == "kind"
    own = result(row, shares=1, memory=2 * GIB)
    assert refused(claim("a", own), devices(row))[0] == "kind"


# --- configuration -------------------------------------------------------------------------------

SHARE = '"apiVersion": "partage.dev/v1", "kind": "ShareConfig"'
CLASS, CLAIM = ConfigSource.CLASS, ConfigSource.CLAIM


def configured(*configs: ClaimConfig, request: str = "req"):
    row = slices(0, 8)
    found = granted(claim("a", result(row, request, memory=GIB), configs=configs), devices(row))
    return found.shares[0].config


def test_later_entries_win_and_those_of_the_claim_over_those_of_the_class() -> None:
    found = configured(
        config(f'{{{SHARE}, "interval": "long", "watch": "off"}}', CLAIM),
        config(f'{{{SHARE}, "interval": "short", "guard": true}}', CLASS),
        config(f'{{{SHARE}, "guard": false}}', CLASS),
        config(f'{{{SHARE}, "guard": false}}', CLASS),
        config(f'{{{SHARE}, "watch": "kill"}}', CLAIM),
    )
    assert (found.interval, found.watch, found.guard) == (Interval.LONG, WatchAction.KILL, False)


def test_entries_for_other_requests_and_drivers_do_not_count() -> None:
    other = f'{{{SHARE}, "watch": "kill"}}'
    assert configured(config(other, CLAIM, "b"), config("{]", CLAIM, driver="gpu.nvidia.com")).watch is None
    for mine in (("req",), ("req/sub",), ("b", "req"), ()):
        assert configured(config(other, CLAIM, *mine), request="req/sub").watch is WatchAction.KILL
    assert configured(config(other, CLAIM, "req/other"), request="req/sub").watch is None


def test_off_in_yaml_1_1_is_false_in_json() -> None:
    assert configured(config(f'{{{SHARE}, "watch": false}}')).watch is WatchAction.OFF


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (f'{{{SHARE}, "intervall": "short"}}', "unknown field `intervall`"),
        (f'{{{SHARE}, "interval": "quick"}}', "'quick'"),
        (f'{{{SHARE}, "watch": true}}', "watch"),
        (f'{{{SHARE}, "guard": "yes"}}', "guard"),
        ('{"apiVersion": "partage.dev/v2", "kind": "ShareConfig"}', "partage.dev/v2"),
        ('{"apiVersion": "partage.dev/v1", "kind": "GpuConfig"}', "GpuConfig"),
        ('{"kind": "ShareConfig"}', "apiVersion"),
        ("[]", "object"),
        ("null", "object"),
        pytest.param("[" * 5000, "", id="nested"),
        pytest.param(f'{{{SHARE}, "\\u001b[31m": 1}}', "\\x1b[31m", id="colours"),
        pytest.param(f'{{{SHARE}, "{"k" * 9000}": 1}}', "kkk", id="long"),
    ],
)
def test_a_wrong_configuration_refuses_the_claim(parameters: str, said: str) -> None:
    row = slices(0, 8)
    for source, who in ((CLASS, "its class"), (CLAIM, "the claim")):
        one = claim("a", result(row, memory=GIB), configs=(config(parameters, source),))
        reason, text = refused(one, devices(row))
        assert (reason, said in text, who in text, text.isprintable()) == ("config", True, True, True), text


@pytest.mark.parametrize(
    ("row", "need", "refusal"),
    [
        (whole(0), "hard", False),
        (amounts(0, 8), "hard", True),
        (amounts(0, 8), "guarded", False),
        (slices(0, 8), "advisory", True),
        (slices(0, 8), "none", False),
    ],
)
def test_need(row: DeviceOffer, need: str, *, refusal: bool) -> None:
    one = claim("a", result(row), configs=(config(f'{{{SHARE}, "need": "{need}"}}'),))
    if refusal:
        reason, text = refused(one, devices(row))
        assert (reason, row.guarantee.value in text) == ("need", True)
    else:
        granted(one, devices(row))


def test_a_claim_that_brings_the_guard_has_what_the_guard_gives() -> None:
    row = slices(0, 8)
    one = claim("a", result(row), configs=(config(f'{{{SHARE}, "need": "advisory", "guard": true}}'),))
    assert granted(one, devices(row)).shares[0].guarantee is Guarantee.ADVISORY
    assert refused(one, devices(row), guard=False)[0] == "need"
    held = amounts(0, 8)
    one = claim("a", result(held), configs=(config(f'{{{SHARE}, "guard": true}}'),))
    assert granted(one, devices(held)).shares[0].guarantee is Guarantee.GUARDED
    guarded = replace(row, guard=True, guarantee=Guarantee.ADVISORY)
    without = claim("a", result(row), configs=(config(f'{{{SHARE}, "guard": false}}'),))
    assert granted(without, devices(guarded)).shares[0].guarantee is Guarantee.NONE


# --- what is asked of the node ---------------------------------------------------------------------


def asking(name: str, row: DeviceOffer, source: ConfigSource = ConfigSource.CLAIM, **keys: str) -> Claim:
    said = ", ".join(f'"{key}": "{value}"' for key, value in keys.items())
    return claim(name, result(row, memory=GIB), configs=(config(f"{{{SHARE}, {said}}}", source),))


def test_two_claims_of_a_gpu_cannot_have_different_time_slices() -> None:
    row = slices(0, 8)
    node = devices(row)
    first = granted(asking("a", row, interval="long"), node)
    assert granted(asking("b", row, interval="long"), node, first)
    assert granted(claim("c", result(row, memory=GIB)), node, first)
    reason, text = refused(asking("d", row, interval="short"), node, first)
    assert (reason, "of which claim team-a/a has long; it is tried again by itself" in text) == ("held", True)
    assert granted(asking("a", row, interval="short"), node, first)


@pytest.mark.parametrize(
    ("row", "said"),
    [(amounts(0, 8), "which is shared through MPS"), (mig(0, 1), "have no time slices of their own")],
)
def test_time_slices_where_there_are_none(row: DeviceOffer, said: str) -> None:
    one = claim("a", result(row), configs=(config(f'{{{SHARE}, "interval": "long"}}'),))
    reason, text = refused(one, devices(row))
    assert (reason, said in text) == ("config", True)


def test_a_time_slice_that_the_gpu_does_not_have() -> None:
    row, why = slices(0, 8), InForce(fixed_slices={slices(0, 8).gpu: "[Not Supported]"})
    reason, text = refused(asking("a", row, interval="long"), devices(row), in_force=why)
    assert (reason, "cannot be set: [Not Supported]" in text) == ("config", True)


@pytest.mark.parametrize("policy", list(WatchAction))
@pytest.mark.parametrize("asked", list(WatchAction))
def test_a_claim_cannot_exempt_itself_from_being_ended_and_a_class_can(
    policy: WatchAction, asked: WatchAction
) -> None:
    row = amounts(0, 8)
    on = InForce({row.gpu: policy})
    granted(asking("a", row, ConfigSource.CLASS, watch=asked), devices(row), in_force=on)
    own = asking("a", row, watch=asked)
    if policy is WatchAction.KILL and asked is not WatchAction.KILL:
        reason, text = refused(own, devices(row), in_force=on)
        assert (reason, "the policy says 'watch: kill'" in text) == ("config", True)
    else:
        granted(own, devices(row), in_force=on)


def test_what_the_class_says_is_the_least_for_its_claims() -> None:
    row = amounts(0, 8)
    both = (
        config(f'{{{SHARE}, "watch": "kill"}}', ConfigSource.CLASS),
        config(f'{{{SHARE}, "watch": "off"}}'),
    )
    _, text = refused(claim("a", result(row, memory=GIB), configs=both), devices(row))
    assert "its class says 'watch: kill'" in text


def test_what_nobody_watches_is_not_guarded() -> None:
    row = amounts(0, 8)
    (share,) = granted(asking("a", row, watch="off"), devices(row)).shares
    assert share.guarantee is Guarantee.ADVISORY
    assert refused(asking("a", row, watch="off", need="guarded"), devices(row))[0] == "need"


@pytest.mark.parametrize(
    ("row", "held_by"),
    [
        (whole(0), EnforcedBy.GPU),
        (mig(0, 1), EnforcedBy.MIG),
        (amounts(0, 8), EnforcedBy.NAMESPACE),
        (replace(amounts(0, 8), pipe="", limits_in_env=True), EnforcedBy.ENVIRONMENT),
        (replace(slices(0, 8), guard=True), EnforcedBy.GUARD),
        (replace(slices(0, 8), limited=True), EnforcedBy.DRIVER_LIMIT),
        (slices(0, 8), EnforcedBy.NOTHING),
    ],
)
def test_what_holds_a_share(row: DeviceOffer, held_by: EnforcedBy) -> None:
    (share,) = granted(claim("a", result(row)), devices(row)).shares
    assert (share.enforced, bool(share.slot)) == (held_by, held_by is EnforcedBy.NAMESPACE)
    limit_bytes = share.memory_bytes if held_by is EnforcedBy.DRIVER_LIMIT else None
    assert share.limit_bytes == limit_bytes


def test_a_limit_of_the_drivers_is_said_to_hold_once_it_was_read() -> None:
    row = replace(slices(0, 8), limited=True, guarantee=Guarantee.HARD)
    found = granted(asking("a", row, need="hard"), devices(row))
    record = ClaimRecord(found.claim, ClaimState.STARTED, "boot", found.shares)
    for read, said, enforced in (((), Guarantee.NONE, "False"), ((row.device,), Guarantee.HARD, "True")):
        now = held_now(record, devices(row), guard=False, limits_read=read)
        assert [share.guarantee for share in now.shares] == [said]
        (entry,) = device_status(now, "gpu.partage.dev", "2026-11-28T00:00:00Z")
        assert entry["conditions"][0]["status"] == enforced
        assert entry["data"]["means"] == "driver-limit"


# --- the law -------------------------------------------------------------------------------------

ROWS = (
    amounts(0, 8),
    replicas(1, 4),
    whole(2),
    mig(3, 0),
    mig(3, 1),
    slices(4, 5),
    replicas(5, 2, Strategy.MPS),
)
NODE = devices(*ROWS)
PLUGIN_HOLDS = [(PLUGIN, ShareId(row.device)) for row in ROWS]


@st.composite
def results(draw: st.DrawFn) -> ClaimResult:
    name = draw(st.sampled_from(list(NODE.rows)))
    row = NODE.rows[name]
    consumed: Mapping[str, int] = {}
    if row.by_memory:
        consumed = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "memory": st.integers(-1, 10).map(lambda units: units * GIB) | st.integers(0, 10 * GIB),
                    "cores": st.integers(0, 110),
                },
            )
        )
    elif row.traits.in_shares:
        consumed = {"shares": draw(st.integers(0, 5)), "memory": 0}
    share = draw(st.uuids(version=4).map(str)) if row.traits.in_shares else None
    return ClaimResult(draw(st.sampled_from("abc")), POOL, name, DRIVER, share, consumed)


@given(st.data())
def test_nothing_is_given_twice_and_no_card_gives_more_than_it_has(data: st.DataObject) -> None:
    """Claims come and go in any order, also those of which the scheduler knows nothing any more."""
    kept: dict[str, Granted] = {}
    held: dict[Hold, str] = {}
    for number in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["grant", "grant", "grant", "release", "plugin"])):
            case "grant":
                one = claim(str(number), *data.draw(st.lists(results(), min_size=1, max_size=4)))
                found = grant(one, one.ref, NODE, kept.values(), held)
                assert found == grant(one, one.ref, NODE, [*kept.values()][::-1], held)
                if isinstance(found, Granted):
                    kept[one.ref.uid] = found
            case "release" if kept:
                del kept[data.draw(st.sampled_from(sorted(kept)))]
            case "plugin":
                free = [hold for hold in PLUGIN_HOLDS if not _on(kept, hold)]
                held = dict.fromkeys(
                    data.draw(st.lists(st.sampled_from(free), max_size=2)) if free else [], "pod"
                )
        shares = [share for one in kept.values() for share in one.shares]
        ids = [(share.resource, id_) for share in shares for id_ in share.ids]
        assert len(set(ids)) == len(ids)
        slots = [(share.uuid, share.slot) for share in shares if share.slot]
        assert len(set(slots)) == len(slots)
        for row in ROWS:
            mine = [share for share in shares if share.uuid == row.device]
            assert sum(share.memory_bytes for share in mine) <= row.memory_bytes * row.count
            assert sum(share.cores for share in mine) <= 100
            assert {id_ for share in mine for id_ in share.ids} <= {*row.share_ids}
        for share in shares:
            assert not {hold for hold in held if device_of(hold[1]) == share.uuid}


def _on(kept: Mapping[str, Granted], hold: Hold) -> bool:
    return any(share.uuid == device_of(hold[1]) for one in kept.values() for share in one.shares)

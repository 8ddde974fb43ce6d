"""Which GPUs are watched, and what their shares guarantee without a watcher."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.gpu import Driver
from partage.model.ids import GpuUuid
from partage.model.mps import DaemonSpec
from partage.model.policy import WatchAction
from partage.model.share import DeviceOffer, Guarantee
from partage.model.strategy import Strategy
from partage.plan.offer.guarantees import gpus_to_watch, gpus_unwatched, promised, with_current_guarantees
from partage.plan.offer.settings import GpuSettings
from tests.plan.offers import node, offering

CLOSED = replace(node(driver="580.95.05"), restricted_mps=True)
SLICED = offering(0, 4)
WHOLE = replace(
    SLICED,
    shared=Strategy.EXCLUSIVE,
    strategy=Strategy.EXCLUSIVE,
    replicas=1,
    count=1,
    guarantee=Guarantee.HARD,
)
GUARDED = replace(SLICED, strategy=Strategy.MPS, shared=Strategy.MPS, guarantee=Guarantee.GUARDED)
IN_ONE_INSTANCE = replace(WHOLE, strategy=Strategy.MIG, guarantee=Guarantee.NONE)
GPU = SLICED.gpu


@pytest.mark.parametrize(
    ("row", "mode", "is_watched"),
    [
        (SLICED, WatchAction.WARN, True),
        (SLICED, WatchAction.KILL, True),
        (SLICED, WatchAction.OFF, False),
        (GUARDED, WatchAction.WARN, True),
        (WHOLE, WatchAction.KILL, False),
        (IN_ONE_INSTANCE, WatchAction.WARN, True),
    ],
)
def test_a_gpu_is_watched_where_a_container_can_exceed_its_share(
    row: DeviceOffer, mode: WatchAction, is_watched: bool
) -> None:
    assert gpus_to_watch({GPU: (row,)}, {GPU: mode}) == ({GPU} if is_watched else frozenset())


def test_without_a_word_in_the_policy_it_is_watched() -> None:
    assert gpus_to_watch({GPU: (SLICED,)}, {}) == {GPU}


def test_only_guarded_shares_guarantee_less_without_a_watcher() -> None:
    a, b, c = (GpuUuid(f"GPU-{name}") for name in "abc")
    offer = {a: (GUARDED, SLICED), b: (WHOLE,), c: (GUARDED,)}
    weaker = gpus_unwatched(offer, seen=())
    assert weaker == {a, c}
    assert with_current_guarantees(offer, weaker, CLOSED) == {
        a: (replace(GUARDED, guarantee=Guarantee.ADVISORY), SLICED),
        b: (WHOLE,),
        c: (replace(GUARDED, guarantee=Guarantee.ADVISORY),),
    }
    assert with_current_guarantees(offer, gpus_unwatched(offer, seen=offer), CLOSED) == offer


def test_a_policy_promises_less_if_it_turns_watching_off() -> None:
    offer = {GPU: (GUARDED,)}
    assert promised(offer, {GPU: WatchAction.WARN}, CLOSED) == offer
    assert promised(offer, {GPU: WatchAction.OFF}, CLOSED)[GPU][0].guarantee is Guarantee.ADVISORY


def test_where_pods_choose_their_gpus_themselves_nothing_is_more_than_advisory() -> None:
    offer = {GPU: (GUARDED, WHOLE, SLICED)}
    open_ = promised(offer, {GPU: WatchAction.WARN}, replace(CLOSED, open_to_env=True))
    assert [row.guarantee for row in open_[GPU]] == [Guarantee.ADVISORY, Guarantee.ADVISORY, Guarantee.NONE]
    unknown = replace(CLOSED, open_to_env=None)
    assert promised(offer, {GPU: WatchAction.WARN}, unknown) == offer


def test_where_pods_may_be_root_only_namespaces_are_promised_as_guarded() -> None:
    named = replace(GUARDED, pipe="gpu/share0")
    offer = {GPU: (GUARDED, named, WHOLE)}
    words = [Guarantee.ADVISORY, Guarantee.GUARDED, Guarantee.HARD]
    may_be_root = replace(CLOSED, restricted_mps=False)
    old = replace(CLOSED, driver=Driver("535.261.03", "12.2"))
    own_servers = replace(CLOSED, driver=Driver("550.163.01", "12.4"))
    for inventory in (may_be_root, old, own_servers):
        assert [row.guarantee for row in promised(offer, {}, inventory)[GPU]] == words
    assert promised(offer, {}, CLOSED) == offer


def test_users_with_a_server_of_their_own_command_it() -> None:
    settings = {GPU: GpuSettings((DaemonSpec(GPU, GPU, multi_user=False),), exclusive_process=True)}
    assert promised({GPU: (GUARDED,)}, {}, CLOSED, settings)[GPU][0].guarantee is Guarantee.ADVISORY

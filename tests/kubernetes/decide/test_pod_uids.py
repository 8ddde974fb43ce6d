"""Events on pods get the UID of the pod, where PodResources and the checkpoint agree on one."""

from __future__ import annotations

import pytest

from partage.kubernetes.decide.events import NodeEvent, PodName, with_uids
from partage.model.ids import PodUid, ResourceName, ShareId
from partage.plan.serve.ledger_entry import Certainty
from tests.kubernetes.decide.test_events import entry
from tests.plan.test_report import GPU

EVENT = NodeEvent("ChangeWaitsForPod", "waits", "WaitForPods", about=PodName("default", "train"))
NODE = NodeEvent("ChangeWaits", "waits", "WaitForPods")
TWO = [entry("train", share="GPU-a"), entry("train", share="GPU-b")]


def holds(**shares: str) -> dict[ResourceName, dict[ShareId, frozenset[PodUid]]]:
    """``a="u1 u2"``: the pods of GPU-a."""
    return {
        GPU: {ShareId(f"GPU-{key}"): frozenset(map(PodUid, uids.split())) for key, uids in shares.items()}
    }


@pytest.mark.parametrize(
    ("entries", "found", "uid"),
    [
        (TWO, holds(a="u1", b="u1", c="u2"), "u1"),
        (TWO[:1], holds(a="u1", b="u2"), "u1"),
        (TWO, holds(a="u1", b="u2"), ""),
        (TWO, holds(a="u1"), ""),
        (TWO[:1], holds(a="u1 u2"), ""),
        (TWO[:1], {}, ""),
        ([entry("train", Certainty.UNCONFIRMED)], holds(a="u1"), ""),
        ([entry("other")], holds(a="u1"), ""),
        ([], holds(a="u1"), ""),
    ],
    ids=[
        "all ids agree",
        "one id",
        "ids of two pods",
        "an id that is not there",
        "two pods",
        "no checkpoint",
        "not certain",
        "another pod",
        "nothing held",
    ],
)
def test_uids(entries, found, uid) -> None:
    event, node = with_uids([EVENT, NODE], entries, found)
    assert event.about == PodName("default", "train", uid)
    assert node == NODE


def test_a_uid_that_is_known_stays() -> None:
    known = NodeEvent("DrainedForChange", "", "Evict", about=PodName("default", "train", "u9"))
    assert with_uids([known], TWO, holds(a="u1", b="u1")) == (known,)

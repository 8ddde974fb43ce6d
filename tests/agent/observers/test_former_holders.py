"""Who looks for processes of pods that the kubelet has forgotten, and what follows while nobody can."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from partage.agent.observers.former_holders import ERRORS, ERRORS_S, SAID_S, FormerHolders
from partage.edges.files.node_notes import LeftHolds
from partage.errors import (
    DriverUnavailable,
    HardwareError,
    HardwareTimeout,
    InputError,
    NotPermitted,
    PartageError,
)
from partage.model.gpu_use import Left, LeftProcess
from partage.model.ids import ContainerId, PodUid, ResourceName, ShareId
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import Certainty, EndingHold, LedgerEntry

GPU, POD = ResourceName("nvidia.com/gpu"), PodUid("u1")
RUNS = Left((LeftProcess(POD, ContainerId("c"), 7, "python", "D"),))
EVERY_S = 2.0


class Helper:
    """Answers what it is told."""

    def __init__(self) -> None:
        self.says: Left | PartageError = Left()
        self.now_s = 0.0

    async def left(self, pods: Collection[PodUid]) -> Left:
        del pods
        if isinstance(self.says, PartageError):
            raise self.says
        return self.says


@pytest.fixture
def helper() -> Helper:
    return Helper()


@pytest.fixture
def former(helper: Helper, tmp_path: Path) -> FormerHolders:
    """A hold is ending."""
    found = FormerHolders(
        ledger=Ledger(),
        clock=lambda: helper.now_s,
        ask=lambda: None,
        left=helper.left,
        files=LeftHolds(tmp_path),
    )
    ends(found)
    return found


def ends(former: FormerHolders, share: str = "GPU-a") -> None:
    entry = LedgerEntry(GPU, ShareId(share), Certainty.ENDING, (), 0, ended_s=0)
    former.ledger.restore_ending([EndingHold(entry, frozenset({POD}))])


async def looks(former: FormerHolders, helper: Helper, seconds: float) -> None:
    """Time passes, in which it is looked every two seconds."""
    end_s = helper.now_s + seconds
    while helper.now_s <= end_s:
        await former.look()
        helper.now_s += EVERY_S


@pytest.mark.parametrize(
    "error",
    [DriverUnavailable("the helper process has ended"), HardwareTimeout("no answer"), NotPermitted("/proc")],
)
async def test_that_nobody_has_looked_is_said_soon_and_not_at_once(
    former: FormerHolders, helper: Helper, error: HardwareError
) -> None:
    helper.says = error
    await looks(former, helper, SAID_S - EVERY_S)
    (entry,) = former.ledger.entries()
    assert not entry.unseen
    await looks(former, helper, EVERY_S)
    (entry,) = former.ledger.entries()
    assert (entry.unseen, entry.unseen_s) == (str(error), 0.0)
    assert not former.unseen


@pytest.mark.parametrize("error", [NotPermitted("/proc/7: permission denied"), InputError("no UIDs")])
async def test_a_helper_that_answers_only_with_errors_cannot_look(
    former: FormerHolders, helper: Helper, error: PartageError
) -> None:
    """Else no GPU of the node would ever change again: each pod that ends is looked for."""
    helper.says = error
    await looks(former, helper, ERRORS_S - EVERY_S)
    assert former.ledger.entries()
    await looks(former, helper, EVERY_S)
    assert not former.ledger.entries()
    assert former.unseen.endswith(f"Z the helper answers with an error: {error}")
    ends(former, "GPU-b")
    said = former.unseen
    await former.look()
    assert not former.ledger.entries()
    assert former.unseen == said
    helper.says = Left()
    await former.look()
    assert not former.unseen
    helper.says = error
    ends(former)
    await looks(former, helper, ERRORS_S - EVERY_S)
    assert former.ledger.entries(), "it counts anew"


@pytest.mark.parametrize("error", [DriverUnavailable("the helper is away"), HardwareTimeout("no answer")])
async def test_a_helper_that_does_not_answer_is_waited_for(
    former: FormerHolders, helper: Helper, error: HardwareError
) -> None:
    """While it is away no GPU changes; and what makes a look hang may be what the process is stuck in."""
    helper.says = error
    await looks(former, helper, 100 * ERRORS_S)
    assert former.ledger.entries()
    assert not former.unseen


async def test_few_errors_do_not_count_however_far_apart(former: FormerHolders, helper: Helper) -> None:
    helper.says = NotPermitted("/proc")
    for _ in range(ERRORS - 1):
        await former.look()
        helper.now_s += ERRORS_S
    assert former.ledger.entries()


@pytest.mark.parametrize("says", [NotPermitted("/proc"), Left(unseen="no hostPID")])
async def test_what_was_seen_is_waited_for_also_when_nobody_can_look_any_more(
    former: FormerHolders, helper: Helper, says: Left | PartageError
) -> None:
    helper.says = RUNS
    await former.look()
    helper.says = says
    await looks(former, helper, 2 * ERRORS_S)
    (entry,) = former.ledger.entries()
    assert entry.left == RUNS.processes
    assert entry.unseen
    assert former.unseen
    former.files.free([POD])
    await former.look()
    assert not former.ledger.entries()


async def test_a_person_frees_what_nobody_can_look_for(former: FormerHolders, helper: Helper) -> None:
    helper.says = HardwareTimeout("no answer")
    await looks(former, helper, SAID_S)
    former.files.free([POD])
    await former.look()
    assert not former.ledger.entries()

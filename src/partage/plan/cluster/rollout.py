"""Which nodes of a fleet may change at once: every agent decides for its own node, from the same facts;
whether a change disturbs a node at all; and how a node stands, as it says it to others and to people. Pure.

A node that changes holds a slot, one Lease of a few. Agents take slots by the version of the Lease, so two
can never have the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import field
from msgspec.structs import replace

from partage.codec.values import CodecError, decode, encode_replacing
from partage.model.node_labels import parse_labels
from partage.plan.cluster.conditions import standing
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.node_plan import Phase
from partage.plan.reconcile.transition import terms_of
from partage.plan.report import UNASKED, GpuReport, HeldBack, PolicyReason, PolicyReport, Report
from partage.text import count_of, listed, shortened
from partage.values import Frozen

LEASE_S = 120
"""An agent that has not renewed its slot for so long counts as gone. Its pod is replaced within less."""


class RolloutSettings(Frozen):
    """max_changing: so many nodes change at once. canary: labels of the nodes that change first; empty: none
    do. paused: no further node begins.
    """

    max_changing: int = 1
    canary: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False

    @property
    def canary_text(self) -> str:
        """``pool=test,zone=a``."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.canary.items()))

    def is_canary(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels changes first."""
        return bool(self.canary) and self.canary.items() <= labels.items()


class Slot(Frozen):
    """One Lease. holder: the node that changes; empty: free. policy, revision: what it changes to. failure:
    why it could not, a sentence; empty: it has not failed. version: of the Lease; it changes whenever the
    holder renews it. Times in the Lease are not compared: clocks of nodes differ. lasts_s: how long it counts
    after that.
    """

    name: str
    holder: str = ""
    policy: str = ""
    revision: str = ""
    failure: str = ""
    version: str = ""
    lasts_s: int = LEASE_S


class Sighting(Frozen):
    """Since when a slot is seen as it is, on the own clock."""

    slot: tuple[str, str]
    since_s: float


def next_sightings(
    before: Mapping[str, Sighting], slots: Iterable[Slot], now_s: float
) -> dict[str, Sighting]:
    """By the name of the slot. A slot that was renewed is seen anew."""
    seen = {slot.name: Sighting((slot.holder, slot.version), now_s) for slot in slots}
    return {
        name: before[name] if name in before and before[name].slot == one.slot else one
        for name, one in seen.items()
    }


class NodeProgress(StrEnum):
    """How far the GPUs of a node are: as the policy in force wants them, on the way, or failed."""

    SETTLED = "settled"
    CHANGING = "changing"
    FAILED = "failed"


class CanaryNode(Frozen):
    """What a canary says of itself. revision: of the policy that it wants, done: its GPUs are as that one
    wants them, or a person has taken note that they are not.
    """

    name: str
    policy: str
    revision: str
    done: bool


class KnownFleet(Frozen):
    """What is known of the others. settings: None: not known, ``trouble`` says why. canaries: nodes that say
    how they stand and have the labels of canaries.
    """

    settings: RolloutSettings | None = None
    slots: tuple[Slot, ...] = ()
    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    canaries: tuple[CanaryNode, ...] = ()
    trouble: str = ""

    def silent(self, slot: Slot, now_s: float) -> bool:
        """Whether its holder has not renewed it in time."""
        due_s = self._due_s(slot)
        return due_s is not None and now_s >= due_s

    def next_due_s(self, now_s: float) -> float | None:
        """When the next holder has not renewed its slot in time; None: never."""
        due_s = (self._due_s(slot) for slot in self.slots)
        return min((due for due in due_s if due is not None and due > now_s), default=None)

    def _due_s(self, slot: Slot) -> float | None:
        seen = self.sightings.get(slot.name)
        return seen.since_s + slot.lasts_s if slot.holder and seen is not None else None


class Wish(Frozen):
    """What one node wants. canary: it is one."""

    node: str
    policy: str
    revision: str
    canary: bool = False


def decide(wish: Wish, fleet: KnownFleet, now_s: float) -> Slot | HeldBack:
    """The slot that the node takes, or has; or why it waits.

    Messages name nodes only where the rollout has stopped: each new message is written to every Node.
    """
    settings = fleet.settings
    if settings is None or fleet.trouble:
        return _waits(fleet.trouble) if fleet.trouble else UNASKED
    if settings.paused:
        return HeldBack(PolicyReason.ROLLOUT_PAUSED, "the rollout is paused")
    others = [slot for slot in fleet.slots if slot.holder not in ("", wish.node)]
    for other in others:
        if other.revision != wish.revision:
            continue
        if other.failure:
            return _stopped(f"node {other.holder}: {other.failure}")
        if fleet.silent(other, now_s):
            return _stopped(f"node {other.holder}: nothing has been heard of its agent while it changed")
    if settings.canary and not wish.canary and (held := _behind_canaries(wish, fleet, settings)):
        return held
    return _slot(wish, fleet, settings, now_s)


def _behind_canaries(wish: Wish, fleet: KnownFleet, settings: RolloutSettings) -> HeldBack | None:
    """A canary counts for nodes that have the same policy, by name."""
    if not fleet.canaries:
        return _waits(f"no node that has an agent has the labels of canaries, {settings.canary_text}")
    concerned = [canary for canary in fleet.canaries if canary.policy == wish.policy]
    if all(node.done and digest_of(node.revision) == digest_of(wish.revision) for node in concerned):
        return None
    return _waits(f"canary nodes ({settings.canary_text}) change first")


def _slot(wish: Wish, fleet: KnownFleet, settings: RolloutSettings, now_s: float) -> Slot | HeldBack:
    own = next((slot for slot in fleet.slots if slot.holder == wish.node), None)
    if own is not None:
        return own
    usable = fleet.slots[: settings.max_changing]
    if not usable:
        return _waits("there is no Lease that could be taken")
    # Slots beyond those that count now may still be held by nodes that began when more were allowed.
    if sum(1 for slot in fleet.slots if slot.holder) < settings.max_changing:
        free = next((slot for slot in usable if not slot.holder), None)
        if free is not None:
            return free
    for slot in usable:
        # A newer edit of the same policy does not wait for an agent that has gone; at the same one it stops.
        if slot.policy == wish.policy and fleet.silent(slot, now_s):
            return slot
    return _waits(f"it waits for its turn: at most {count_of(settings.max_changing, 'node')} at once")


def _waits(message: str) -> HeldBack:
    return HeldBack(PolicyReason.ROLLOUT_WAITS, message)


def _stopped(message: str) -> HeldBack:
    return HeldBack(PolicyReason.ROLLOUT_STOPPED, f"the rollout has stopped: {message}")


def digest_of(revision: str) -> str:
    """The part of a revision that does not depend on labels of the node."""
    return revision.partition("+")[0]


class NodeRevisions(Frozen):
    """What a node has and should have. policy: the name of the one that it chooses. in_force, wanted:
    revisions.
    """

    policy: str
    in_force: str
    wanted: str


class Standing(NodeRevisions):
    """How the own node stands. waits: the rollout holds ``wanted`` back. refused: why the node cannot have
    it; empty: it can. why: what ``progress`` says, a sentence.
    """

    waits: bool
    progress: NodeProgress
    refused: str = ""
    why: str = ""


def needs_slot(standing: Standing, let_go: str) -> bool:
    """Whether the node should have one. A node that cannot have the policy asks too, so that all others see
    it. let_go: a revision whose failure on this node a person has taken note of.
    """
    return standing.waits or (bool(standing.refused) and standing.wanted != let_go)


def next_hold(own: Slot, standing: Standing) -> Slot:
    """The slot that the node holds, as it should be now: kept, kept with a failure, or free."""
    free = Slot(own.name, lasts_s=own.lasts_s)
    if standing.wanted == own.revision and standing.waits:
        return replace(own, failure="")  # it is just being put in force
    if standing.wanted == own.revision and standing.refused:
        return replace(own, failure=standing.refused)
    if standing.in_force != own.revision or standing.progress is NodeProgress.SETTLED:
        return free
    if standing.progress is NodeProgress.CHANGING:
        return own  # what has failed stays so while it is tried again
    return replace(own, failure=standing.why) if standing.wanted == own.revision else free


def settings_of(data: Mapping[str, str], paused_by_hand: str) -> RolloutSettings:
    """From the data of the ConfigMap. Raises ValueError."""
    text = data.get("maxChanging", "1")
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1000:
        raise ValueError(f"maxChanging is {text[:20]!r}, not a number of nodes from 1 to 999")
    paused = "true" in (data.get("paused", "false"), paused_by_hand)
    return RolloutSettings(int(text), parse_labels(data.get("canary", "")), paused)


def disturbs(before: DesiredState, then: DesiredState) -> bool:
    """Whether the planner would have something to do, or somebody could notice: other shares or guarantees,
    another layout, setting, limit or option.

    What is left changes nothing on the node: comments, the order of entries, the way in which GPUs are
    selected, how long pods are asked to leave. That need not wait for other nodes.
    """
    if _asked(before) != _asked(then) or before.offer.keys() != then.offer.keys():
        return True
    return any(terms_of(offer) != terms_of(then.offer[gpu]) for gpu, offer in before.offer.items())


def _asked(desired: DesiredState) -> tuple[object, ...]:
    return (
        desired.layouts,
        desired.settings,
        desired.existing_settings,
        desired.watch_of,
        desired.labelled,
        desired.policy.options,
    )


ROLLOUT = "partage.dev/rollout"
"""The annotation of a Node that has it."""

SHOWN = 4
LONGEST_WHY = 400


class NodePhase(StrEnum):
    """done: every GPU is as the wanted policy wants it. changing: it is being put in force. waiting: the
    rollout has not reached the node. failed: the node cannot have it, or a GPU could not be changed.
    """

    DONE = "done"
    CHANGING = "changing"
    WAITING = "waiting"
    FAILED = "failed"


class RolloutNote(NodeRevisions, omit_defaults=True):
    """The annotation's value, as JSON. why: it is not done. stopped: another node has failed. accepted: a
    person lets the rollout go on in spite of its failure.
    """

    phase: NodePhase
    why: str = ""
    stopped: bool = False
    accepted: bool = False


def standing_of(report: Report) -> Standing:
    """How the node of a report stands."""
    policy = report.policy
    progress, why = _progress(report.gpus)
    return Standing(
        policy=policy.wanted_config,
        in_force=policy.revision,
        wanted=policy.wanted,
        waits=policy.reason.held_back,
        progress=progress,
        refused=policy.message if _refused(policy) else "",
        why=why,
    )


def _refused(policy: PolicyReport) -> bool:
    """One that was in force and no longer fits is refused for what has happened to the node."""
    return policy.reason is PolicyReason.DOES_NOT_FIT and policy.wanted not in ("", policy.revision)


def _progress(gpus: tuple[GpuReport, ...]) -> tuple[NodeProgress, str]:
    """A GPU that does not answer says nothing about the policy."""
    plans = [(gpu.index, gpu.plan) for gpu in gpus if not gpu.lost]
    failed = [
        f"GPU {index} {standing(plan)}"
        for index, plan in plans
        if plan is not None and plan.phase in (Phase.FAILED, Phase.BLOCKED)
    ]
    if failed:
        return NodeProgress.FAILED, listed(failed, SHOWN)
    moving = [
        f"GPU {index} {standing(plan) if plan is not None else 'is not planned yet'}"
        for index, plan in plans
        if plan is None or plan.phase is not Phase.SETTLED
    ]
    return (NodeProgress.CHANGING, listed(moving, SHOWN)) if moving else (NodeProgress.SETTLED, "")


def note_of(report: Report, let_go: str) -> RolloutNote:
    """What the Node says. let_go: a revision whose failure a person has taken note of."""
    now = standing_of(report)
    text = report.policy.message
    if now.waits:
        phase, why = NodePhase.WAITING, report.policy.problems[0].message
    elif report.policy.problems or now.progress is NodeProgress.FAILED:
        phase, why = NodePhase.FAILED, text if report.policy.problems else now.why
    elif now.progress is NodeProgress.CHANGING:
        phase, why = NodePhase.CHANGING, now.why
    else:
        phase, why = NodePhase.DONE, ""
    return RolloutNote(
        now.policy,
        now.in_force,
        now.wanted,
        phase,
        shortened(why, LONGEST_WHY),
        stopped=report.policy.reason is PolicyReason.ROLLOUT_STOPPED,
        accepted=phase is NodePhase.FAILED and bool(now.wanted) and now.wanted == let_go,
    )


def written(note: RolloutNote) -> str:
    """The annotation's value."""
    return encode_replacing(note).decode()


def read_note(text: str) -> RolloutNote | None:
    """What an annotation says; None: nothing that an agent of this version has written."""
    try:
        return decode(RolloutNote, text.encode(errors="replace"), strict=False)
    except CodecError:
        return None


def canary_of(name: str, note: RolloutNote) -> CanaryNode:
    """As other nodes count it."""
    done = note.phase is NodePhase.DONE or note.accepted
    return CanaryNode(name, note.policy, note.wanted or note.in_force, done)

"""Input and output of the planner, as plain values.

A ``Snapshot`` is everything that is known about a node at one moment, attempts that failed included. A
``NodePlan`` says for every GPU in which phase it is, which steps remain, what may be offered meanwhile, and
why it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import field

from partage.model.claim import Demands
from partage.model.gpu import gpu_of_mig_devices
from partage.model.gpu_use import GpuUse, UseKind
from partage.model.ids import DeviceUuid, GpuUuid, ResourceName, ShareId
from partage.model.mps import DaemonState
from partage.model.share import GpuOffer, NodeOffer
from partage.model.step import PlannedStep, Transaction
from partage.model.strategy import Interval
from partage.plan.reconcile.blocked import Blocked
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.reconcile.mig_plan import MigPlan
from partage.plan.reconcile.settings_steps import OriginalSettings
from partage.plan.reconcile.transition import GpuServing
from partage.plan.serve.ledger_entry import HeldIds, Hold, LedgerEntry
from partage.values import Frozen

LONGEST_PAUSE_S = 60.0
"""Between two attempts; each pause is twice the one before."""


class FailedAttempt(Frozen):
    """The last attempt to change a GPU failed.

    reason: why, a sentence. tries: how often in a row. again_s: when it is retried, on the agent's clock.
    renew: ids of GPU instances that must be made again, because the driver has no room in them.
    """

    reason: str
    tries: int
    again_s: float
    renew: frozenset[int] = frozenset()


def pause_s(tries: int, first_s: float) -> float:
    """How long to wait after so many failures in a row, in seconds."""
    doublings = min(tries - 1, 16)  # 2**16 s is far beyond the longest pause, and a float can hold it
    return min(LONGEST_PAUSE_S, first_s * (1 << doublings))


def failed_again(last: FailedAttempt | None, reason: str, now_s: float, first_s: float) -> FailedAttempt:
    """One more failure after ``last``. first_s: the first pause, in seconds."""
    tries = last.tries + 1 if last else 1
    return FailedAttempt(reason, tries, now_s + pause_s(tries, first_s), last.renew if last else frozenset())


class Phase(StrEnum):
    """How one GPU stands between what it is and what the policy wants.

    settled:     it is as the policy wants it, and is offered so.
    waiting:     what must end first: shares are held, processes run, another device plugin serves the GPUs.
    withdrawing: no share is held; its ids are withdrawn, and the kubelet gets time to apply that.
    ready:       its steps can be carried out now.
    changing:    its steps are being carried out.
    verifying:   its steps are done; it is read back before it is offered.
    failed:      the last attempt failed; it is retried later.
    blocked:     impossible on this GPU, or the GPU does not answer.
    unknown:     something that the plan needs has not been observed yet.
    """

    SETTLED = "settled"
    WAITING = "waiting"
    WITHDRAWING = "withdrawing"
    READY = "ready"
    CHANGING = "changing"
    VERIFYING = "verifying"
    FAILED = "failed"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"


class Observed(Frozen):
    """The observed node.

    daemons: Partage's MPS daemons; None: not asked yet. slices: time-slice length of each GPU that reports
    one. fixed_slices: why a GPU's time slice cannot be set. uses: processes and monitors, without Partage's
    MPS daemons; pods are in the ledger.
    """

    node: KnownNode
    daemons: tuple[DaemonState, ...] | None = None
    slices: Mapping[GpuUuid, Interval] = field(default_factory=dict)
    fixed_slices: Mapping[GpuUuid, str] = field(default_factory=dict)
    uses: tuple[GpuUse, ...] = ()

    def daemons_of(self, gpu: GpuUuid) -> tuple[DaemonState, ...]:
        """The MPS daemons of a GPU and of its MIG devices. Without a record, the inventory says which GPU."""
        gpu_of = gpu_of_mig_devices(self.node.known.values())
        return tuple(
            daemon for daemon in self.daemons or () if gpu in (daemon.gpu, gpu_of.get(daemon.device))
        )


class Snapshot(Frozen):
    """The planner's input, apart from the policy. All mappings are by GPU UUID.

    now_s: on the clock of all other times here. served: what each GPU serves since it was last published.
    held, entries: what the ledger says. unknown: GPUs whose holders are not known yet. original: settings
    of GPUs before Partage changed them. absent: GPUs that were served before the node booted and have not
    answered since. attempts: what failed. in_hand: GPUs whose steps are being carried out (``changing``) or
    read back (``verifying``). checkpoint: whether held ids can be compared with the kubelet's checkpoint.
    gave_up: GPUs whose pods were asked to leave and did not, and a sentence: they wait, and evict nobody.
    spared: GPUs that wait for pods which are not asked to leave under ``change: drain``, and which these are.
    cordoned: GPUs of which nobody gets another share; they change as all others do.
    other_plugin: which other device plugin offers GPUs of this node, a sentence; empty for none. Pods that it
    admits may begin to use any GPU at any moment, so no GPU is changed meanwhile.
    listed_before: ids that plugins listed before this agent, while there are GPUs that serve nothing yet.
    demands: what claims want of GPUs whose MIG devices are made on demand: the policy is resolved with it.
    """

    now_s: float
    observed: Observed
    served: Mapping[GpuUuid, GpuServing] = field(default_factory=dict)
    held: HeldIds = field(default_factory=HeldIds)
    entries: tuple[LedgerEntry, ...] = ()
    unknown: frozenset[GpuUuid] = frozenset()
    original: Mapping[GpuUuid, OriginalSettings] = field(default_factory=dict)
    absent: frozenset[GpuUuid] = frozenset()
    attempts: Mapping[GpuUuid, FailedAttempt] = field(default_factory=dict)
    in_hand: Mapping[GpuUuid, Phase] = field(default_factory=dict)
    checkpoint: bool = True
    gave_up: Mapping[GpuUuid, str] = field(default_factory=dict)
    spared: Mapping[GpuUuid, str] = field(default_factory=dict)
    cordoned: frozenset[GpuUuid] = frozenset()
    other_plugin: str = ""
    listed_before: Mapping[ResourceName, frozenset[ShareId]] = field(default_factory=dict)
    demands: Demands = field(default_factory=dict)

    @property
    def cordoned_indexes(self) -> tuple[int, ...]:
        """The cordoned GPUs, by their NVML indexes."""
        known = self.observed.node.known
        return tuple(known[gpu].index for gpu in sorted(self.cordoned) if gpu in known)

    @property
    def departed(self) -> frozenset[GpuUuid]:
        """GPUs that have left the node: another boot, or another GPU at their PCI address, shows it."""
        return self.absent | self.observed.node.replaced


class GpuPlan(Frozen):
    """One GPU.

    reason: why it is not settled, a sentence; empty if it is. steps: all that remain, in order; a step that
    concerns several GPUs is listed for each of them. offer: what may be offered until they are done.
    waiting_for: held ids that must be released first. blocked: what else is in the way. again_s: when a
    failed attempt is tried again. conflict: shares of it are held that exclude each other; a sentence, empty
    if there are none.
    """

    phase: Phase
    reason: str = ""
    steps: tuple[PlannedStep, ...] = ()
    offer: GpuOffer = ()
    waiting_for: tuple[LedgerEntry, ...] = ()
    blocked: Blocked | None = None
    again_s: float | None = None
    conflict: str = ""

    @property
    def processes(self) -> tuple[str, ...]:
        """What is in the way and holds no share, or is left of a former holder, without repeats:
        ``process python3 (pid 4711)``."""
        blockers = self.blocked.blockers if self.blocked else ()
        users = [str(use) for blocker in blockers for use in blocker.users if use.kind is not UseKind.POD]
        left = [str(process) for entry in self.waiting_for for process in entry.left]
        return tuple(dict.fromkeys([*users, *left]))


class NodePlan(Frozen):
    """The whole node.

    gpus: every GPU that answers or is remembered, in inventory order. transactions: all that
    can be planned now, independent of each other; ready: those that can be carried out now. serving: what
    each GPU serves next. waiting: GPUs whose offer will change, and the held ids that each waits for.
    unusable: devices whose shares cannot be used now, and why. mig: details of MIG layouts.
    suspected: holds that may exclude each other; the kubelet's checkpoint has to confirm them.
    due_s: when the plan can change only because time passes; None: never.
    """

    gpus: Mapping[GpuUuid, GpuPlan] = field(default_factory=dict)
    transactions: tuple[Transaction, ...] = ()
    ready: tuple[Transaction, ...] = ()
    serving: Mapping[GpuUuid, GpuServing] = field(default_factory=dict)
    waiting: Mapping[GpuUuid, tuple[LedgerEntry, ...]] = field(default_factory=dict)
    unusable: Mapping[DeviceUuid, str] = field(default_factory=dict)
    mig: MigPlan = field(default_factory=MigPlan)
    suspected: frozenset[Hold] = frozenset()
    due_s: float | None = None

    @property
    def settled(self) -> bool:
        """Every GPU is as the policy wants it."""
        return all(plan.phase is Phase.SETTLED for plan in self.gpus.values())

    @property
    def unsettled(self) -> frozenset[GpuUuid]:
        """UUIDs of the other GPUs."""
        return frozenset(gpu for gpu, plan in self.gpus.items() if plan.phase is not Phase.SETTLED)

    @property
    def offer(self) -> NodeOffer:
        """What may be offered now."""
        return {gpu: plan.offer for gpu, plan in self.gpus.items()}

"""All that has to be done to the node's GPUs before the policy holds: layouts, then what shares need. Pure.

MPS daemons and compute modes are put into the way that MIG layouts take (``plan.reconcile.relayout``): what
has to end comes before a GPU's layout changes, what has to be made comes once it is there. A GPU offers a
share when all that the share needs is there; a share that is in use while that breaks stays, as unhealthy,
and is mended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partage.model.mps import DaemonState
from partage.model.policy import Interval
from partage.model.share import GpuOffer
from partage.model.step import StartDaemon, Step
from partage.plan.offer.desired import DesiredState
from partage.plan.reconcile.mig_plan import Transaction
from partage.plan.reconcile.relayout import Relayout
from partage.plan.reconcile.settings import (
    NOTHING,
    OriginalSettings,
    SettingsSteps,
    settle,
    slice_steps,
    unwell,
)
from partage.plan.reconcile.transition import GpuServing


@dataclass(frozen=True, slots=True)
class Set:
    """How the node's GPUs are set, as far as that is no part of an inventory.

    daemons: None: not known yet. slices: of GPUs that say. before: what GPUs had before we changed it.
    """

    daemons: tuple[DaemonState, ...] | None = None
    slices: Mapping[str, Interval] = field(default_factory=dict)
    before: Mapping[str, OriginalSettings] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Way:
    """What is to be done, and what is offered meanwhile.

    wish: narrowed to what may be offered now. units: independent of each other. at_once: those for which no
    share has to be given up first. changing: UUIDs of GPUs that are not as wanted.
    unwell: devices whose shares cannot be used at this moment, and why.
    """

    wish: DesiredState
    units: tuple[Transaction, ...] = ()
    at_once: frozenset[Transaction] = frozenset()
    changing: frozenset[str] = frozenset()
    unwell: Mapping[str, str] = field(default_factory=dict)


def way(found: Relayout, now: Set, serving: Mapping[str, GpuServing], lost: Collection[str] = ()) -> Way:
    """``found`` with what its shares need. serving: how the GPUs stood after the last turn."""
    drawn = _Drawing(found, now, serving)
    for gpu in found.wish.inventory:
        if gpu.uuid not in lost:
            drawn.settle(gpu.uuid)
    drawn.slices(lost)
    return drawn.way()


class _Drawing:
    """A way while it is drawn."""

    def __init__(self, found: Relayout, now: Set, serving: Mapping[str, GpuServing]) -> None:
        self._wish = found.wish
        self._now = now
        self._serving = serving
        self._units = {uuid: unit for unit in found.plan.units for uuid in unit.gpus}
        self._ends: dict[str, tuple[Step, ...]] = {}
        self._more: list[Transaction] = []
        self._at_once: set[Transaction] = set()
        self._changing = set(found.changing)
        self._waiting = found.changing - self._units.keys()
        self._offer: dict[str, GpuOffer] = dict(found.wish.offer)
        self._pending = dict(found.wish.pending)
        self._unwell: dict[str, str] = {}
        self._standing: dict[str, list[DaemonState]] = defaultdict(list)
        for one in now.daemons or ():
            self._standing[one.gpu].append(one)

    def settle(self, uuid: str) -> None:
        """One GPU."""
        want = self._wish.settings.get(uuid, NOTHING)
        if self._now.daemons is None:
            if want.daemons and not self._serves(uuid):
                self._narrow(uuid, (), "it is not known yet which MPS daemons run")
            return
        gpu = self._wish.inventory.gpu(uuid)
        assert gpu is not None
        standing = self._standing.get(uuid, ())
        settling = settle(gpu, want, standing, self._now.before.get(uuid, OriginalSettings()))
        self._unwell |= unwell(want, standing)
        if uuid in self._units:
            self._ends[uuid] = settling.end
        elif not settling.settled:
            self._do(uuid, settling)

    def _do(self, uuid: str, settling: SettingsSteps) -> None:
        """Steps of a GPU whose layout needs none. While it waits for holders, what these need is done."""
        waits = uuid in self._waiting
        if waits and settling.end:
            return
        steps = (*settling.end, *settling.make)
        unit = Transaction((uuid,), steps)
        self._more.append(unit)
        if not settling.end and self._serves(uuid):
            self._at_once.add(unit)
        elif not waits:
            ready = () if settling.end else self._ready_rows(uuid, settling.make)
            self._narrow(uuid, ready, "; ".join(map(str, steps)))
        self._changing.add(uuid)

    def _ready_rows(self, uuid: str, make: Sequence[Step]) -> GpuOffer:
        """Rows of devices that need nothing: of MIG devices some may have their daemon already."""
        if not all(isinstance(step, StartDaemon) for step in make):
            return ()
        lacking = {step.spec.device for step in make if isinstance(step, StartDaemon)}
        return tuple(row for row in self._offer.get(uuid, ()) if row.device not in lacking)

    def _narrow(self, uuid: str, offer: GpuOffer, why: str) -> None:
        self._offer[uuid] = offer
        self._pending[uuid] = why
        self._changing.add(uuid)

    def _serves(self, uuid: str) -> bool:
        """Whether the GPU serves what is wanted: whoever holds a share holds a wanted one."""
        return self._serving.get(uuid) == GpuServing(self._wish.offer.get(uuid, ()))

    def slices(self, lost: Collection[str]) -> None:
        """Time slices change under running containers, and hold nobody up."""
        steps = slice_steps(self._wish.settings, self._now.slices, self._now.before)
        for uuid, step in steps.items():
            if uuid not in self._changing and uuid not in lost:
                unit = Transaction((uuid,), (step,))
                self._more.append(unit)
                self._at_once.add(unit)
                self._changing.add(uuid)

    def way(self) -> Way:
        layouts = [self._with_ends(unit) for unit in dict.fromkeys(self._units.values())]
        wish = replace(self._wish, offer=self._offer, pending=self._pending)
        units = (*layouts, *self._more)
        return Way(wish, units, frozenset(self._at_once), frozenset(self._changing), self._unwell)

    def _with_ends(self, unit: Transaction) -> Transaction:
        ends = tuple(step for uuid in unit.gpus for step in self._ends.get(uuid, ()))
        return Transaction(unit.gpus, (*ends, *unit.steps))


def ready(
    found: Way, serving: Mapping[str, GpuServing], restored: Collection[str]
) -> tuple[Transaction, ...]:
    """Units that can be done now: nobody can be given a share of what they destroy or end any more.

    serving: how the GPUs stand after a turn. restored: GPUs of which it is not known yet who holds them.
    """
    return tuple(
        unit
        for unit in found.units
        if unit in found.at_once
        or all(gpu not in restored and _stands_ready(found, gpu, serving.get(gpu)) for gpu in unit.gpus)
    )


def _stands_ready(found: Way, gpu: str, now: GpuServing | None) -> bool:
    return now is None or now == GpuServing(found.wish.offer.get(gpu, ()))

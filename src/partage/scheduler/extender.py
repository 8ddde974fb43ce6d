"""The extender: what is known, kept by watches; answers; tables that are made again in the background.

It decides nothing and writes nothing. Where it knows too little for an answer, all nodes are equally good,
and kube-scheduler's own scores decide.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from partage.agent.log import Seldom
from partage.claims.model.claim import DeviceClass
from partage.claims.model.names import OWN_NAMES
from partage.codec.values import CodecError
from partage.edges.kube.scheduling import KINDS, Following
from partage.plan.placement.baselines import BestFit, EmptiestFirst
from partage.plan.placement.mix import Mix
from partage.plan.placement.room import NO, NodeScores
from partage.plan.placement.ssp import PUBLISHED, Ssp
from partage.scheduler.decide.asks import AskReader
from partage.scheduler.decide.kinds import DeviceKind
from partage.scheduler.decide.node_scores import (
    ExtenderPolicy,
    Judge,
    ScoreBoard,
    supply_of,
)
from partage.scheduler.decide.online_mix import MixWindow
from partage.scheduler.metrics import ExtenderCounts, MixState
from partage.scheduler.protocol import PrioritizeRequest, ranked, read_arguments, write_priorities
from partage.scheduler.state import ClusterState
from partage.scheduler.trial import Trial, TrialProcess, Tried
from partage.serve_http.http import Answer, PageRequest, json_answer
from partage.serve_http.metrics.exposition import Family

log = logging.getLogger(__name__)

MIX_EVERY_S = 60.0
"""Pause between two mixes. Where a model of GPU is new, or twice as many pods are known, there is none."""
_ENOUGH = 100
"""Pods from which on it is tried out which way to score is best."""
_FEW = 10
_CHANGED = 0.02
"""Part of all pods by which a mix differs from the one before, so that tables are worth making again."""


class _NoScores:
    """All nodes are equal."""

    def best(self, pod: object, room: object) -> tuple[float, tuple[int, ...]]:
        del pod, room
        return 0.0, ()


class Extender:
    """Told of objects by watches (``SchedulingSeen``), asked over HTTP. driver: whose devices count.
    clock: seconds, monotonic. begin: a trial of ways to score."""

    def __init__(
        self,
        policy: ExtenderPolicy,
        driver: str = OWN_NAMES.driver,
        *,
        clock: Callable[[], float] = time.monotonic,
        begin: Callable[[Tried], Trial] = TrialProcess,
    ) -> None:
        self.driver = driver
        self._begin = begin
        self._trial: tuple[Trial, frozenset[str], Mix] | None = None
        self._way = PUBLISHED
        self._policy, self._clock = policy, clock
        self._lock = threading.RLock()
        self._reader = AskReader({})
        self._classes: Mapping[str, DeviceClass] = {}
        self._board = ScoreBoard(Judge(_NoScores(), self._reader, ()))
        self._state = ClusterState(self._board.put, self._board.drop, driver)
        self._window = MixWindow()
        self._following = Following(KINDS, log)
        self.answered = self._following.answered
        self._models: frozenset[str] = frozenset()
        self._tables_of: Mix | None = None
        self._made_s, self._made_of = 0.0, 0
        self._not_seen, self._unknown = Seldom(), Seldom()
        self.mix = MixState()
        self.counts = ExtenderCounts()

    # --- from watches -------------------------------------------------------------------------------

    def listed(self, kind: str, objects: Mapping[str, Any]) -> None:
        """As ``SchedulingSeen``."""
        with self._lock:
            self._state.listed(kind, objects)
            self._following.listed(kind)

    def changed(self, kind: str, name: str, value: Any) -> None:  # noqa: ANN401 - by kind
        """As ``SchedulingSeen``."""
        with self._lock:
            self._state.changed(kind, name, value)

    # --- answers ------------------------------------------------------------------------------------

    def page(self, request: PageRequest) -> Answer:
        """``POST /prioritize``."""
        began = time.perf_counter()
        try:
            asked = read_arguments(request.body)
        except CodecError as error:
            self.counts.ended(time.perf_counter() - began, "refused")
            return json_answer({"error": f"these are no ExtenderArgs: {error}"}, HTTPStatus.BAD_REQUEST)
        ranks, result = self._ranks(asked)
        answer = write_priorities(asked.nodes, ranks)
        self.counts.ended(time.perf_counter() - began, result)
        return HTTPStatus.OK, "application/json; charset=utf-8", answer

    def _ranks(self, asked: PrioritizeRequest) -> tuple[list[int], str]:
        """A score for each node, and what the answer is: ``scored`` or ``equal``."""
        nodes, pod = asked.nodes, asked.pod
        with self._lock:
            scores = self.scores(asked)
            if scores is None:
                return [0] * len(nodes), "equal"
            best = scores.index(max(scores))
            ask = self._state.ask_of(pod)
            seen = ask is None or self._board.sees_amounts(ask, nodes[best])
        ranks = ranked(scores)
        if log.isEnabledFor(logging.DEBUG) and scores[best] != NO:
            extra = {
                "pod": f"{pod.namespace}/{pod.name}",
                "node": nodes[best],
                "score": round(scores[best], 3),
                "mix_version": self.mix.version,
            }
            log.debug("nodes were scored", extra=extra)
        if not seen and (left_out := self._not_seen.left_out()) is not None:
            log.info(
                "amounts of a GPU are not seen where the device plugin serves it: its units are counted",
                extra={"pod": f"{pod.namespace}/{pod.name}", "left_out": left_out or None},
            )
        return ranks, "scored" if any(ranks) else "equal"

    def scores(self, asked: PrioritizeRequest) -> list[float] | None:
        """As the policy has them, before they become 0 to 10; None: nothing is known, and all are equal."""
        with self._lock:
            ask = self._state.ask_of(asked.pod) if asked.nodes and self.mix.version else None
            if ask is None:
                if asked.nodes and self.mix.version and (left := self._unknown.left_out()) is not None:
                    extra = {"pod": f"{asked.pod.namespace}/{asked.pod.name}", "left_out": left or None}
                    log.info("a claim of the pod is not known: all nodes are equal", extra=extra)
                return None
            self._state.settle()
            return self._board.scores(ask, asked.nodes)

    # --- background ---------------------------------------------------------------------------------

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Why it answers that all nodes are equal; (): it does not."""
        return (*self._following.waits_for, *(() if self.mix.version else ("tables: they are being made",)))

    def turn(self) -> None:
        """What has to be done beside answers: count pods that came, make tables, and count scores that will
        be asked for soon. Called again and again by one thread.
        """
        if self._following.waits_for:
            return
        with self._lock:
            self._state.settle()
            new = self._state.take_new()
            for ask, _ in new:
                self._window.add(ask)
            classes = self._state.classes
            supply = supply_of(self._board.rooms())
            kinds = {one.kind.key: one.kind for one in self._board.rooms() if one.kind is not None}
        changed = classes != self._classes
        if changed:
            self._classes, self._reader = classes, AskReader(classes)
        before, pods = self._made_of, len(self._window)
        many = before < _ENOUGH <= pods or pods >= max(_FEW, 2 * before)
        anew = many or changed or not self._models.issuperset(supply)
        due = self._clock() - self._made_s >= MIX_EVERY_S
        if self._trial is not None and not anew:
            self._look_at(*self._trial)
        elif anew or due or not self.mix.version:
            self._made_of = pods
            self._make(kinds, supply, anew=anew)
        for ask in dict.fromkeys(ask for ask, waits in new if waits):
            self._by_steps(self._board.warm(ask))

    def _by_steps(self, steps: Iterator[None]) -> None:
        """Answers come between two steps."""
        while True:
            with self._lock:
                if next(steps, self) is self:
                    return
            time.sleep(0)

    def _make(self, kinds: Mapping[str, DeviceKind], supply: Mapping[str, int], *, anew: bool) -> None:
        """Tables for the mix of now, in some seconds; then all answers are by them at once."""
        began = time.perf_counter()
        with self._lock:
            counts = self._window.counts
        reader, models = self._reader, frozenset(supply)
        expected = self._window.expected(
            lambda ask: reader.by_model(ask, kinds.values()) if ask.wants_gpus else {}, models, counts
        )
        self._made_s = self._clock()
        if (
            not anew
            and self._tables_of is not None
            and _distance(self._tables_of, expected.tables) < _CHANGED
        ):
            return
        if self._policy is ExtenderPolicy.SSP and len(self._window) >= _ENOUGH:
            with self._lock:
                rooms = [one.room for one in self._board.rooms()]
            self.close()
            tried = Tried(expected.tables, rooms, supply, expected.priced)
            self._trial = self._begin(tried), models, expected.tables
            if self.mix.version and not anew:
                return  # until it ends, answers are by the tables before
        scores: NodeScores
        match self._policy:
            case ExtenderPolicy.SSP if not counts:
                # Tables of no pods are worse than none: at 105 % load of a made-up workload 94.6 % of the
                # GPUs were given away by them, and 95.3 % by best fit.
                scores = BestFit()
            case ExtenderPolicy.SSP:
                scores = Ssp(expected.tables, supply, exact=False, priced=expected.priced, way=self._way)
            case ExtenderPolicy.BESTFIT:
                scores = BestFit()
            case ExtenderPolicy.SPREAD:
                scores = EmptiestFirst()
        self.use(scores, models, expected.tables)
        seconds = round(time.perf_counter() - began, 3)
        extra = {"version": self.mix.version, "pods": sum(counts.values()), "seconds": seconds}
        log.info("tables were made", extra=extra)

    def _look_at(self, trial: Trial, models: frozenset[str], mix: Mix) -> None:
        try:
            scores = trial.scores()
        except ChildProcessError as error:
            self._trial = self._tables_of = None
            log.warning("ways to score were not tried; the one before stays", extra={"reason": str(error)})
            return
        if scores is not None:
            self._trial, self._way = None, scores.way
            self.use(scores, models, mix)
            extra = {"version": self.mix.version, "way": repr(scores.way)}
            log.info("ways to score were tried", extra=extra)

    def close(self) -> None:
        """End what was begun."""
        if self._trial is not None:
            self._trial[0].stop()
            self._trial = None

    def use(self, scores: NodeScores, models: frozenset[str], mix: Mix) -> None:
        """Answer by these from now on. models: that they know. mix: of which they were made."""
        self._by_steps(self._board.use(Judge(scores, self._reader, models)))
        with self._lock:
            self._models, self._tables_of = models, mix
            self.mix = MixState(self.mix.version + 1, self._clock(), len(self._window), len(mix.parts))

    def families(self) -> list[Family]:
        """Metrics."""
        with self._lock:
            nodes = self._board.nodes
        return self.counts.families(self.mix, self._clock(), nodes, trouble=self._following.trouble)


def _distance(before: Mix, now: Mix) -> float:
    """Part of all pods in which two mixes differ."""
    types = before.parts.keys() | now.parts.keys()
    return sum(abs(before.parts.get(pod, 0.0) - now.parts.get(pod, 0.0)) for pod in types) / 2

"""The live extender's choice is that of ``simulate --placement ssp``, node by node and bit by bit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from partage.plan.placement.mix import WHOLE_MILLI, PodType, mix_of
from partage.plan.placement.replay import tuned_scores
from partage.plan.placement.room import Room, first_fit
from partage.whatif.decide.kube_scheduler import balance, balanced_allocation, least_allocated
from partage.whatif.decide.placements import PlacementPolicy, place_all
from tests.examples import variants
from tests.scheduler.feeding import Fed
from tests.scheduler.objects import MEMORY, Json, claim, device, node, pod, slices

NODES = 24
MODELS = ("A", "B", "C")


def _pods(seed: int, models: tuple[str, ...]) -> list[PodType]:
    """Of a trace's kind: parts, whole GPUs, several, some by model, some of CPUs alone."""
    random = Random(seed)
    found = []
    for _ in range(110):
        gpus = random.choice((0, 1, 1, 1, 1, 1, 2, 4, 8))
        milli = 0 if not gpus else WHOLE_MILLI if gpus > 1 else random.choice((100, 250, 470, 500, 810, 1000))
        named = frozenset(random.sample(models[:-1], 1)) if gpus and random.random() < 0.3 else frozenset()
        found.append(PodType(random.randrange(1000, 12_000), 2048, gpus, milli, named))
    return found


def _model_of(number: int, models: tuple[str, ...]) -> str:
    return models[number % len(models)]


@pytest.mark.parametrize(("seed", "models"), variants([(0, MODELS), (1, ("A",)), (2, MODELS[:2])], 3))
def test_the_best_nodes_are_those_of_the_what_if(seed: int, models: tuple[str, ...]) -> None:
    random = Random(seed)
    counts = [random.choice((0, 1, 2, 4, 8)) for _ in range(NODES)]
    counts[: len(models)] = [8] * len(models)
    names = [f"n{number}" for number in range(NODES)]
    # What-if and extender call the models by the same names here: product and strategy.
    full = {model: f"{model}/memory-{MEMORY}" for model in models}
    pods = [
        PodType(one.cpu_milli, 2048, one.gpus, one.milli, frozenset(full[name] for name in one.models))
        if models != ("A",)
        else PodType(one.cpu_milli, 2048, one.gpus, one.milli)
        for one in _pods(seed, models if len(models) > 1 else ("A", "A"))
    ]
    rooms = [
        Room(full[_model_of(number, models)], 64_000, 10**6, [WHOLE_MILLI] * count, 64_000, 10**6)
        for number, count in enumerate(counts)
    ]
    fed = Fed()
    fed.start(
        nodes=[node(name) for name in names],
        slices=[
            slices(name, [device(gpu, _model_of(number, models)) for gpu in range(counts[number])])
            for number, name in enumerate(names)
        ],
    )
    supply: dict[str, int] = {}
    for room in rooms:
        supply[room.model] = supply.get(room.model, 0) + sum(room.left)
    # The same tables: what-if knows all pods that will come, the extender only those that came.
    fed.extender.use(tuned_scores(mix_of(pods), rooms, supply=supply), frozenset(supply), mix_of(pods))
    live = [Room(one.model, one.cpu_milli, one.memory_mib, [*one.left], 64_000, 10**6) for one in rooms]
    serial, compared = itertools.count(), 0

    def draw(number: int, best: Sequence[int]) -> int:
        nonlocal compared
        asked, key = pods[number], f"p{next(serial)}"
        wanted = _claim(key, asked, full)
        if wanted is not None:
            fed.put("claims", wanted)
        waiting = pod(key, asked.cpu_milli, 2048, [key] if wanted else [])
        fitting = [place for place, room in enumerate(live) if room.fits(asked)]
        ranks = fed.ranks(waiting, [names[place] for place in fitting])
        scores = fed.scores(waiting, [names[place] for place in fitting])
        top = max(scores)
        equal = {fitting[place] for place, score in enumerate(scores) if score == top}
        if len(set(scores)) > 1:
            assert {name for name, rank in ranks.items() if rank == 10} == {names[place] for place in equal}
            compared += 1
        # All of them have as much from the extender: kube-scheduler's own scores decide.
        own = {place: _own_score(asked, live[place]) for place in equal}
        assert {place for place in equal if own[place] == max(own.values())} == set(best)
        taken = min(best)
        gpus = first_fit(asked, live[taken].left)
        live[taken].take(asked, gpus)
        if wanted is not None:
            given = {names[taken]: [f"gpu-{gpu}" for gpu in gpus]}
            consumed = {"memory": asked.milli * MEMORY // WHOLE_MILLI}
            fed.put("claims", _claim(key, asked, full, given, consumed) or wanted)
        fed.put("pods", pod(key, asked.cpu_milli, 2048, [key] if wanted else [], on=names[taken]))
        return taken

    placed = place_all(PlacementPolicy.SSP, pods, rooms, load=110, seed=seed, draw=draw)
    assert placed.placed == next(serial)
    assert compared > 30


def _own_score(pod: PodType, room: Room) -> int:
    """As its plugins NodeResourcesFit and NodeResourcesBalancedAllocation have it."""
    used = room.most_cpu_milli - room.cpu_milli, room.most_memory_mib - room.memory_mib
    then = used[0] + pod.cpu_milli, used[1] + pod.memory_mib
    most = room.most_cpu_milli, room.most_memory_mib
    before, after = (balance(cpu, most[0], memory, most[1]) for cpu, memory in (used, then))
    return least_allocated(then[0], most[0], then[1], most[1]) + balanced_allocation(before, after)


def _claim(key: str, asked: PodType, full: dict[str, str], *taken: Mapping[str, Any]) -> Json | None:
    if not asked.gpus:
        return None
    products = [model for model, name in full.items() if name in asked.models]
    memory = asked.milli * MEMORY // WHOLE_MILLI
    given, consumed = taken or (None, None)
    return claim(key, asked.gpus, memory, products=products, given=given, consumed=consumed)

"""``partage simulate --trace --placement``: how much of the GPUs pods get under each way to choose nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.answers import common_output
from partage.errors import InputError, Problem, missing_library
from partage.text import count_of
from partage.values import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.plan.placement.mix import PodType
    from partage.plan.placement.room import Room
    from partage.whatif.decide.pods import TracePod
    from partage.whatif.placement_document import PlacementResult, PlacementsDocument


class PlacementOptions(Frozen):
    """What was asked for on the command line."""

    trace: str
    fleet: str | None
    placements: tuple[str, ...]
    load: int
    seed: int
    plot: str | None
    output: str


def print_placements(options: PlacementOptions) -> int:
    """Place and print. Raises what is wrong with files and options."""
    if options.fleet is None:
        raise click.UsageError("--placement needs --nodes NODES.csv")
    if options.plot is not None:
        from partage.answers.render.picture_files import check_plot

        check_plot(options.plot)
    answer = _answer(options)
    if options.plot is not None:
        from partage.answers.render.picture_files import check_picture_name
        from partage.whatif.placement_tables import placement_plot

        common_output.write_file(options.plot, placement_plot(answer, check_picture_name(options.plot)))
    if options.output == "table":
        from partage.whatif.placement_tables import placement_title, placements_table

        console = common_output.console()
        console.print(placement_title(answer))
        console.print()
        console.print(placements_table(answer))
    else:
        common_output.print_document(answer, options.output)
    return 0


def _answer(options: PlacementOptions) -> PlacementsDocument:
    from partage.whatif.decide.placements import PlacementPolicy, place_all
    from partage.whatif.document import WhatIfFleet
    from partage.whatif.fleet import rooms_of_table
    from partage.whatif.placement_document import PlacementResult, PlacementsDocument
    from partage.whatif.pod_trace import read_pod_trace
    from partage.whatif.progress import progress

    assert options.fleet is not None
    # By name, as the published figures have it.
    trace = sorted(read_pod_trace(Path(options.trace)), key=lambda pod: pod.name)
    pods = _types(options.trace, trace)
    names, rooms = rooms_of_table(Path(options.fleet))
    today = _today(options, trace, names) if PlacementPolicy.TODAY in options.placements else {}
    results: list[PlacementResult] = []
    count = 0
    for name in dict.fromkeys(options.placements):
        with progress(name) as on_progress:
            try:
                placed = place_all(
                    PlacementPolicy(name),
                    pods,
                    rooms,
                    load=options.load,
                    seed=options.seed,
                    on_progress=on_progress,
                    today=today,
                )
            except ModuleNotFoundError as missing:
                raise missing_library(f"--placement {name}", "numpy", "numpy") from missing
            except ValueError as error:
                raise InputError(
                    [Problem(options.trace, "", "error", str(error), "num_gpu says of how many")]
                ) from error
        results.append(PlacementResult(placed.policy, placed.allocation, placed.placed))
        if placed.elsewhere:
            said = f"{name}: {count_of(placed.elsewhere, 'pod')} found no room on the node of the trace"
            common_output.say(f"{said}, and came later", err=True)
        count = placed.pods
    return PlacementsDocument(
        trace=options.trace,
        pods=count,
        fleet=WhatIfFleet(len(rooms), _gpus(rooms)),
        load=options.load,
        seed=options.seed,
        placements=tuple(results),
    )


def _gpus(rooms: Sequence[Room]) -> int:
    return sum(len(room.left) for room in rooms)


def _types(trace: str, pods: Sequence[TracePod]) -> list[PodType]:
    """What pods ask for."""
    from partage.plan.placement.mix import PodType
    from partage.units import MIB

    other = [pod.name for pod in pods if pod.wants.requests or pod.wants.gpu_memory_bytes]
    if other:
        message = f"{len(other)} pods ask for memory or resources, {other[0]} for one"
        hint = "--placement plays thousandths of GPUs: num_gpu and gpu_milli"
        raise InputError([Problem(trace, "", "error", message, hint)])
    return [
        PodType(
            pod.wants.cpu_milli,
            pod.wants.memory_bytes // MIB,
            pod.wants.gpus,
            pod.wants.gpu_milli,
            pod.wants.models,
        )
        for pod in pods
    ]


def _today(options: PlacementOptions, trace: Sequence[TracePod], names: Sequence[str]) -> dict[int, int]:
    """Place of the node of each pod that runs. Raises InputError."""
    places = {name: place for place, name in enumerate(names)}
    running = {number: pod for number, pod in enumerate(trace) if pod.node and pod.lasts_s is None}
    if not running:
        hint = "the column node says it: partage record --cluster writes it"
        message = "says of no pod that runs on which node it is"
        raise InputError([Problem(options.trace, "", "error", message, hint)])
    unknown = [pod for pod in running.values() if pod.node not in places]
    if unknown:
        message = f"{count_of(len(unknown), 'pod')} are on nodes that {options.fleet} does not name, "
        message += f"{unknown[0].name} on {unknown[0].node} for one"
        hint = "give the nodes that were recorded together with the pods"
        raise InputError([Problem(options.trace, "", "error", message, hint)])
    return {number: places[pod.node] for number, pod in running.items()}

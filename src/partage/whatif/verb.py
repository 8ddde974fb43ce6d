"""``partage simulate --trace``: what becomes of the pods of a trace under one policy or several; with
``--placement``: how much of the GPUs pods get under each way to choose nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from partage.answers import common_node, common_output
from partage.answers.node_plan import made_desired
from partage.claims.decide.book import ClaimBook, book_of_offer
from partage.claims.decide.classes import names_meant
from partage.claims.model.names import ClaimNames
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import LoadedPolicy
from partage.errors import InputError, Problem, Unsatisfiable, missing_library, wrong_input
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.placement.mix import PodType
from partage.text import count_of
from partage.units import MIB
from partage.values import Frozen
from partage.whatif.decide.kube_scheduler import drawn
from partage.whatif.decide.placements import PlacementPolicy, place_all
from partage.whatif.decide.play import play
from partage.whatif.decide.pods import Fleet, TracePod
from partage.whatif.decide.summary import summarise
from partage.whatif.document import PlacementResult, PlacementsDocument, WhatIfDocument, WhatIfFleet
from partage.whatif.fleet import fleet_of_machines, fleet_of_table, parse_gpu_models, rooms_of_table
from partage.whatif.pod_trace import read_pod_trace
from partage.whatif.tables import (
    comparison_line,
    placement_title,
    placements_table,
    remarks,
    results_table,
    title_line,
)


class TraceOptions(Frozen, kw_only=True):
    """What was asked for on the command line."""

    trace: str
    fleet: str | None
    machines: tuple[str, ...]
    gpu_models: tuple[str, ...]
    policies: tuple[str, ...]
    config: str | None
    placements: tuple[str, ...]
    load: int
    seed: int
    plot: str | None
    output: str


def print_trace(options: TraceOptions) -> int:
    """Play or place, and print. Raises what is wrong with files and options, and what makes a policy
    impossible.
    """
    _check_together(options)
    if options.plot is not None:
        from partage.answers.render.drawing import check_plot

        check_plot(options.plot)
    answer = _placements(options) if options.placements else _answer(options)
    if options.plot is not None:
        from partage.answers.render.drawing import check_picture_name
        from partage.whatif.plot import placement_plot, plot

        ending = check_picture_name(options.plot)
        drawn = plot(answer, ending) if isinstance(answer, WhatIfDocument) else placement_plot(answer, ending)
        common_output.write_file(options.plot, drawn)
    if options.output != "table":
        common_output.print_document(answer, options.output)
    elif isinstance(answer, WhatIfDocument):
        _print(answer)
    else:
        console = common_output.console()
        console.print(placement_title(answer))
        console.print()
        console.print(placements_table(answer))
    return 0


def _check_together(options: TraceOptions) -> None:
    if options.placements:
        if options.machines or options.gpu_models or options.policies or options.config:
            raise click.UsageError("--placement goes without --machines, --gpu-model, --policy and --config")
        if options.fleet is None:
            raise click.UsageError("--placement needs --nodes NODES.csv")
        return
    if (options.fleet is None) == (not options.machines):
        raise click.UsageError(
            "--trace needs a fleet: one of --fleet NODES.csv and --machines 125*8xh100-sxm5-80gb"
        )
    if options.gpu_models and options.fleet is None:
        raise click.UsageError("--gpu-model goes with --fleet; --machines names the GPU model itself")


def _answer(options: TraceOptions) -> WhatIfDocument:

    pods = read_pod_trace(Path(options.trace))
    fleet = _fleet(options)
    names = names_meant(claim for pod in pods for claim in pod.wants.claims)
    policies = [(name, _desired(name, policy, fleet)) for name, policy in _policies(options)]
    results = []
    span_s = 0.0
    for name, desired in policies:
        with progress(name) as advance:
            draw, books = drawn(options.seed), _books(desired, names)
            played = play(pods, fleet, desired, books=books, draw=draw, on_progress=advance)
        results.append(summarise(name, pods, played))
        span_s = max(span_s, played.usage.span_s)
    return WhatIfDocument(
        trace=options.trace,
        pods=len(pods),
        fleet=WhatIfFleet(len(fleet.names), fleet.gpus),
        seed=options.seed,
        span_s=span_s,
        policies=tuple(results),
    )


def _fleet(options: TraceOptions) -> Fleet:

    if options.fleet is None:
        return fleet_of_machines(options.machines)
    return fleet_of_table(Path(options.fleet), parse_gpu_models(options.gpu_models))


def _policies(options: TraceOptions) -> Iterator[tuple[str, LoadedPolicy]]:
    """Every policy under a short name of its own."""
    short = [Path(path).name for path in options.policies]
    names = short if len(set(short)) == len(short) else list(options.policies)
    if len(set(names)) < len(names):
        raise click.UsageError("the same --policy is given twice")
    if not options.policies:
        yield "every GPU exclusive", common_node.read_policy(None, options.config)
    for name, path in zip(names, options.policies, strict=True):
        yield name, common_node.read_policy(path, options.config)


def _desired(name: str, loaded: LoadedPolicy, fleet: Fleet) -> list[DesiredState]:
    """What the policy offers on each kind of node. Raises what is wrong, with the nodes where it is."""
    found: list[DesiredState] = []
    for kind in fleet.kinds:
        try:
            desired = resolve(loaded.policy, kind.inventory, geometry_of)
        except (InputError, Unsatisfiable) as error:
            raise type(error)([*error.problems, _on(kind.title, name)]) from error
        found.append(made_desired(loaded.policy, desired))
    common_output.print_problems(loaded.warnings)
    # An entry that is for other nodes of the fleet is none to warn of: only what holds for all of them.
    on_all = set.intersection(*({warning.path for warning in desired.warnings} for desired in found))
    common_output.print_problems(warning for warning in found[0].warnings if warning.path in on_all)
    return found


def _books(desired: Sequence[DesiredState], names: ClaimNames) -> list[ClaimBook]:
    """What each kind of node publishes for claims. names: of the driver."""
    return [
        book_of_offer(state.offer, state.inventory, "node", geometry_of, names=names, demands=state.on_demand)
        for state in desired
    ]


def _on(title: str, policy: str) -> Problem:
    hint = "select GPUs by model (select: {model: ...}), and give the other models an entry of their own"
    return Problem(policy, "", "error", f"does not hold on the nodes of {title}", hint)


def _print(answer: WhatIfDocument) -> None:

    console = common_output.console()
    console.print(title_line(answer))
    console.print()
    console.print(results_table(answer))
    console.print()
    for line in remarks(answer):
        console.print(f"! {line}", style="yellow")
    if line := comparison_line(answer):
        console.print(line, style="green")


@contextmanager
def progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from partage.answers.render.terminal import Console

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TextColumn("pods"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"playing {name}", total=None)
        yield lambda done, count: progress.update(task, completed=done, total=count)


def _placements(options: TraceOptions) -> PlacementsDocument:

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
                raise wrong_input(options.trace, str(error), "num_gpu says of how many") from error
        results.append(PlacementResult(placed.policy, placed.allocation, placed.placed))
        if placed.elsewhere:
            said = f"{name}: {count_of(placed.elsewhere, 'pod')} found no room on the node of the trace"
            common_output.say(f"{said}, and came later", err=True)
        count = placed.pods
    return PlacementsDocument(
        trace=options.trace,
        pods=count,
        fleet=WhatIfFleet(len(rooms), sum(len(room.left) for room in rooms)),
        load=options.load,
        seed=options.seed,
        placements=tuple(results),
    )


def _types(trace: str, pods: Sequence[TracePod]) -> list[PodType]:
    """What pods ask for."""
    other = [pod.name for pod in pods if pod.wants.requests or pod.wants.gpu_memory_bytes]
    if other:
        message = f"{len(other)} pods ask for memory or resources, {other[0]} for one"
        hint = "--placement plays thousandths of GPUs: num_gpu and gpu_milli"
        raise wrong_input(trace, message, hint)
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


def _today(options: TraceOptions, trace: Sequence[TracePod], names: Sequence[str]) -> dict[int, int]:
    """Place of the node of each pod that runs. Raises InputError."""
    places = {name: place for place, name in enumerate(names)}
    running = {number: pod for number, pod in enumerate(trace) if pod.node and pod.lasts_s is None}
    if not running:
        hint = "the column node says it: partage record --cluster writes it"
        message = "says of no pod that runs on which node it is"
        raise wrong_input(options.trace, message, hint)
    unknown = [pod for pod in running.values() if pod.node not in places]
    if unknown:
        message = f"{count_of(len(unknown), 'pod')} are on nodes that {options.fleet} does not name, "
        message += f"{unknown[0].name} on {unknown[0].node} for one"
        hint = "give the nodes that were recorded together with the pods"
        raise wrong_input(options.trace, message, hint)
    return {number: places[pod.node] for number, pod in running.items()}

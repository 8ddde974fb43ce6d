"""``partage simulate --trace``: what becomes of the pods of a trace under one policy or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.answers import common_node, common_output
from partage.errors import InputError, Problem, Unsatisfiable
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.claims.decide.book import ClaimBook
    from partage.claims.model.names import ClaimNames
    from partage.edges.files.policy import LoadedPolicy
    from partage.plan.offer.desired import DesiredState
    from partage.whatif.decide.pods import Fleet
    from partage.whatif.document import WhatIfDocument


class WhatIfOptions(Frozen):
    """What was asked for on the command line."""

    trace: str
    fleet: str | None
    machines: tuple[str, ...]
    gpu_models: tuple[str, ...]
    policies: tuple[str, ...]
    config: str | None
    seed: int
    plot: str | None
    output: str


def print_what_if(options: WhatIfOptions) -> int:
    """Play and print. Raises what is wrong with files and options, and what makes a policy impossible."""
    if (options.fleet is None) == (not options.machines):
        raise click.UsageError(
            "--trace needs a fleet: one of --fleet NODES.csv and --machines 125*8xh100-sxm5-80gb"
        )
    if options.gpu_models and options.fleet is None:
        raise click.UsageError("--gpu-model goes with --fleet; --machines names the GPU model itself")
    if options.plot is not None:
        from partage.answers.render.picture_files import check_plot

        check_plot(options.plot)
    answer = _answer(options)
    if options.plot is not None:
        from partage.answers.render.picture_files import check_picture_name
        from partage.whatif.plot import plot

        common_output.write_file(options.plot, plot(answer, check_picture_name(options.plot)))
    if options.output == "table":
        _print(answer)
    else:
        common_output.print_document(answer, options.output)
    return 0


def _answer(options: WhatIfOptions) -> WhatIfDocument:
    from partage.claims.decide.classes import names_meant
    from partage.whatif.decide.play import play
    from partage.whatif.decide.scheduler import drawn
    from partage.whatif.decide.summary import summarise
    from partage.whatif.document import WhatIfDocument, WhatIfFleet
    from partage.whatif.pod_trace import read_pod_trace
    from partage.whatif.progress import progress

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


def _fleet(options: WhatIfOptions) -> Fleet:
    from partage.whatif.fleet import fleet_of_machines, fleet_of_table, parse_gpu_models

    if options.fleet is None:
        return fleet_of_machines(options.machines)
    return fleet_of_table(Path(options.fleet), parse_gpu_models(options.gpu_models))


def _policies(options: WhatIfOptions) -> Iterator[tuple[str, LoadedPolicy]]:
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
    from partage.answers.made_devices import made_desired
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.offer.desired import resolve

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
    from partage.claims.decide.book import book_of_offer
    from partage.edges.files.catalogue import geometry_of

    return [
        book_of_offer(state.offer, state.inventory, "node", geometry_of, names=names) for state in desired
    ]


def _on(title: str, policy: str) -> Problem:
    hint = "select GPUs by model (select: {model: ...}), and give the other models an entry of their own"
    return Problem(policy, "", "error", f"does not hold on the nodes of {title}", hint)


def _print(answer: WhatIfDocument) -> None:
    from partage.whatif.tables import comparison_line, remarks, results_table, title_line

    console = common_output.console()
    console.print(title_line(answer))
    console.print()
    console.print(results_table(answer))
    console.print()
    for line in remarks(answer):
        console.print(f"! {line}", style="yellow")
    if line := comparison_line(answer):
        console.print(line, style="green")

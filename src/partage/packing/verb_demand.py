"""``partage plan --demand``: which layouts on which GPUs serve a demand, with a proof that fewer do not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from partage.answers import common_node, common_output
from partage.model.ids import DeviceUuid, device_of

if TYPE_CHECKING:
    from partage.model.gpu import Inventory
    from partage.packing.decide.candidates import CandidateGpu, UnavailableGpu
    from partage.packing.decide.demand import Demand
    from partage.packing.decide.pack import Packing

TIME_LIMIT_S = 6.0


def print_packing(
    demand: str, machines: Sequence[str], run_dir: str | None, output: str, time_limit_s: float | None
) -> int:
    """Print the packing. machines: as written; none: this node. Raises what makes it impossible."""
    from partage.errors import Unsatisfiable
    from partage.packing.decide.demand import Demand
    from partage.packing.decide.pack import pack
    from partage.packing.document import packing_document, unavailable_warnings

    wanted = Demand.parse(demand)
    candidates, unavailable = _survey(machines, run_dir)
    _check_names(wanted, candidates)
    try:
        packing = pack(wanted, candidates, time.monotonic, time_limit_s or TIME_LIMIT_S)
    except Unsatisfiable as error:
        raise Unsatisfiable([*error.problems, *unavailable_warnings(unavailable)]) from error
    if output == "table":
        _print(packing, unavailable)
    elif output == "policy":
        _print_policy(packing, unavailable)
    else:
        common_output.print_document(packing_document(packing, unavailable), output)
    return 0


def _print_policy(packing: Packing, unavailable: Sequence[UnavailableGpu]) -> None:
    """The policy on stdout, what is to be known about it on stderr."""
    import yaml

    from partage.packing.document import (
        disturbed_sentence,
        gpus_sentence,
        policy_of_packing,
        unavailable_warnings,
    )

    policy = policy_of_packing(packing)
    common_output.print_problems(unavailable_warnings(unavailable))
    for line in (gpus_sentence(packing), disturbed_sentence(packing)):
        common_output.say(line, err=True)
    common_output.say_lines(yaml.safe_dump(policy, sort_keys=False, default_flow_style=None, width=110))


def _check_names(demand: Demand, candidates: Sequence[CandidateGpu]) -> None:
    """Raise InputError for profiles that neither the catalogue nor one of these GPUs has."""
    from partage.edges.files.catalogue import load_catalogue
    from partage.packing.decide.demand import check_names

    geometries = {candidate.geometry for candidate in candidates}
    geometries |= {model.geometry for model in load_catalogue().models if model.geometry}
    check_names(demand, {spec.profile for geometry in geometries for spec in geometry.profiles})


def _survey(machines: Sequence[str], run_dir: str | None) -> tuple[list[CandidateGpu], list[UnavailableGpu]]:
    from partage.edges.files.catalogue import geometry_of, why_no_geometry
    from partage.packing.decide.candidates import survey

    candidates: list[CandidateGpu] = []
    unavailable: list[UnavailableGpu] = []
    reported = _reported_held(machines, run_dir)
    for name, inventory, used in _nodes(machines):
        gpus, others = survey(name, inventory, geometry_of, why_no_geometry, reported | used)
        candidates.extend(gpus)
        unavailable.extend(others)
    return candidates, unavailable


def _reported_held(machines: Sequence[str], run_dir: str | None) -> frozenset[DeviceUuid]:
    """GPUs and MIG devices that are held, as far as an agent's report says so."""
    report = common_node.agent_report(machines[0] if machines else None, run_dir)
    return frozenset() if report is None else frozenset(device_of(row.id) for row in report.held)


def _nodes(machines: Sequence[str]) -> Iterator[tuple[str | None, Inventory, frozenset[DeviceUuid]]]:
    """Each node under a name of its own, and which of its devices are in use."""
    from partage.answers.machine_list import read_machines
    from partage.packing.decide.candidates import in_use

    if not machines:
        inventory, uses = common_node.observe_with_uses(None)
        yield None, common_node.need_driver(inventory), in_use(inventory, uses)
        return
    for text, count, inventory in read_machines(machines):
        for number in range(count):
            yield (text if count == 1 else f"{text}#{number + 1}"), inventory, frozenset()


def _print(packing: Packing, unavailable: Sequence[UnavailableGpu]) -> None:
    from partage.packing.document import (
        disturbed_sentence,
        gpus_sentence,
        mode_sentence,
        unavailable_warnings,
    )
    from partage.packing.tables import packing_table

    console = common_output.console()
    table, unlisted = packing_table(packing)
    console.print(table)
    if unlisted:
        console.print(f"and {unlisted} more GPUs; -o json lists them all", style="dim")
    console.print()
    style = "green" if packing.optimal else "yellow"
    for line in (gpus_sentence(packing), disturbed_sentence(packing)):
        console.print(line, style=style)
    if line := mode_sentence(packing):
        console.print(line)
    for warning in unavailable_warnings(unavailable):
        console.print(str(warning), style="dim")

"""``partage plan``: what a policy would offer on a node, the steps it needs, and what blocks them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from partage.answers import common_node, common_options, common_output
from partage.answers.documents.document import Document, PolicySource
from partage.answers.documents.node import DriverRow
from partage.answers.documents.plan import PlannedGpuRow, StepRow
from partage.answers.documents.resources import ResourceRow
from partage.answers.node_plan import PolicyOnNode, make_plan
from partage.answers.verb import unexpected, verb
from partage.claims.decide.claimable import ClaimableRow
from partage.errors import Problem
from partage.values import Frozen

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class PlanAgent(Frozen):
    """The agent for which it is planned. at: the time of its report."""

    version: str
    at: str


class PlanDocument(Document, kw_only=True):
    """The answer of ``plan``. gpus: one row for each GPU. steps: of all GPUs, each once, in the order in
    which they can be done. agent: for which it is planned; None where none runs. caveats: what to know before
    relying on it. problems: warnings. claimable: what ResourceClaims can ask for.
    """

    kind: Literal["Plan"] = "Plan"
    policy: PolicySource
    driver: DriverRow
    resources: tuple[ResourceRow, ...]
    gpus: tuple[PlannedGpuRow, ...]
    steps: tuple[StepRow, ...]
    agent: PlanAgent | None
    caveats: tuple[str, ...]
    problems: tuple[Problem, ...]
    claimable: tuple[ClaimableRow, ...] = ()


@verb("plan")
@common_options.policy_options
@common_options.machine_option
@common_options.driver_root_option
@common_options.kubelet_dir_option
@click.option(
    "--demand",
    metavar="3g.40gb=2,1g.10gb=9",
    help="Instead of a policy: the MIG devices that are wanted. Shows which GPUs and layouts provide them, "
    "with the fewest GPUs, then the fewest live instances destroyed, and a proof.",
)
@click.option(
    "--machines",
    multiple=True,
    metavar="NAME|FILE...",
    help="With --demand: several nodes; 125*8xh100-sxm5-80gb is 125 nodes.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(0.1, 86400),
    metavar="SECONDS",
    help="With --demand: when to stop the search; the answer says how much better it could be. Default: 6.",
)
@common_options.dra_driver_option(
    "Name of the DRA driver, as that of the agent: classes that claims name are called as under it."
)
@common_options.run_dir_option
@common_options.state_dir_option
@common_options.output_option("table", "name", "json", "yaml", "policy")
@click.argument("more_machines", nargs=-1, metavar="")
def command(
    *,
    policy: str | None,
    config: str | None,
    machine: str | None,
    demand: str | None,
    machines: tuple[str, ...],
    time_limit_s: float | None,
    dra_driver: str,
    run_dir: str | None,
    state_dir: Path | None,
    output: str,
    more_machines: tuple[str, ...],
) -> int:
    """Show what a policy would offer, which steps it needs, and what blocks them.

    Nothing is changed. Beside a running agent the steps are those that the agent has still to do, or with
    another --policy those that it would do. Without an agent and without --policy all GPUs are exclusive.

    With --demand: which MIG layouts on which GPUs provide the wanted devices; -o policy writes them as a
    policy for apply.

    Exit code 2: the policy is wrong; 3: impossible on this node; 4: no usable driver.
    """
    if more_machines and not machines:
        raise unexpected(click.get_current_context(), more_machines[0])
    if demand is not None:
        from partage.packing import verb_demand as packing

        if policy is not None or config is not None:
            raise click.UsageError("--demand asks for layouts, --policy gives them: one of the two")
        nodes = [name for name in (machine, *machines, *more_machines) if name is not None]
        return packing.print_packing(demand, nodes, run_dir, output, time_limit_s)
    if machines or time_limit_s is not None:
        raise click.UsageError("--machines and --time-limit go with --demand")
    if output == "policy":
        raise click.UsageError(
            "-o policy goes with --demand; partage export writes the live node as a policy"
        )
    report = common_node.agent_report(machine, run_dir)
    loaded = common_node.read_policy(policy, config, report)
    common_output.print_problems(loaded.warnings)
    planned = make_plan(loaded, machine, run_dir, state_dir, report=report, named=policy is not None)
    common_output.print_problems(planned.warnings[len(loaded.warnings) :])
    if output == "table":
        _print(planned, dra_driver, common_output.console())
    elif output == "name":
        from partage.model.share import resources_of

        common_output.say_names(resources_of(planned.offer))
    else:
        common_output.print_document(plan_document(planned, dra_driver), output)
    return 0


def plan_document(planned: PolicyOnNode, driver: str) -> PlanDocument:
    """The JSON answer. driver: name of that of claims."""
    from partage.answers.documents.document import PolicySource, row
    from partage.answers.documents.node import driver_row
    from partage.answers.documents.plan import all_steps, planned_gpu_rows, step_rows
    from partage.answers.documents.resources import resource_rows
    from partage.claims.decide.claimable import claimable
    from partage.claims.model.names import NAMES_OF_DRIVER

    report, inventory = planned.report, planned.inventory
    return PlanDocument(
        policy=row(PolicySource, planned.policy),
        driver=driver_row(inventory),
        resources=resource_rows(planned.offer),
        gpus=planned_gpu_rows(planned.plan, inventory),
        steps=step_rows(all_steps(planned.plan), inventory),
        agent=None if report is None else PlanAgent(report.agent.version, report.at),
        caveats=tuple(caveat.sentence for caveat in planned.caveats),
        problems=tuple(planned.warnings),
        claimable=claimable(planned.offer, NAMES_OF_DRIVER[driver]),
    )


def _print(planned: PolicyOnNode, driver: str, console: Console) -> None:
    from partage.answers.documents.plan import all_steps, step_rows
    from partage.answers.render.rows import unsettled_lines
    from partage.answers.render.tables import guarantees_used, resources_table
    from partage.claims.decide.claimable import claimable
    from partage.claims.model.names import NAMES_OF_DRIVER
    from partage.model.step import Verify

    console.print(resources_table(planned.offer))
    console.print(guarantees_used(planned.offer))
    for row in claimable(planned.offer, NAMES_OF_DRIVER[driver]):
        console.print(str(row))
    if steps := [step for step in all_steps(planned.plan) if not isinstance(step, Verify)]:
        console.print()
        console.print(_steps_table(step_rows(steps, planned.inventory)))
    unsettled = list(unsettled_lines(planned.plan, planned.inventory))
    if not steps and not unsettled:
        console.print()
        what = "all GPUs that answer are" if planned.inventory.lost else "the node is"
        console.print(f"no changes: {what} as the policy wants it")
    console.print()
    if planned.report is not None:
        source = planned.policy.source or "none, every GPU exclusive"
        console.print(f"for the agent of this node, as it was at {planned.report.at}; policy: {source}")
    for line in unsettled:
        console.print(f"! {line}", style="yellow")
    for caveat in planned.caveats:
        console.print(f"! {caveat.sentence}", style="yellow")


def _steps_table(rows: Sequence[StepRow]) -> Table:
    """The steps in their order, equal ones of several GPUs in one row, and how far each reaches."""
    from partage.answers.render.tables import plain_table
    from partage.text import gpus

    table = plain_table("What would change", "GPUs", "Step", "Must be idle meanwhile")
    for detail, changed, idle in _alike(rows):
        table.add_row(gpus(sorted(changed)), detail, gpus(sorted(idle)) if idle else "")
    return table


def _alike(rows: Sequence[StepRow]) -> list[tuple[str, set[int], set[int]]]:
    """Equal steps together, never before a step that comes earlier on the same GPU."""
    found: list[tuple[str, set[int], set[int]]] = []
    for row in rows:
        changed, idle = set(row.gpus), set(row.idle)
        for detail, earlier, idle_too in reversed(found):
            if detail == row.detail:
                earlier.update(changed)
                idle_too.update(idle)
                break
            if not earlier.isdisjoint(changed):
                found.append((row.detail, changed, idle))
                break
        else:
            found.append((row.detail, changed, idle))
    return found

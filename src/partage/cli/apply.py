"""``partage apply``: change the node once, without the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.answers import common_node, common_options, common_output, completion
from partage.answers.verb import verb
from partage.cli.apply_state import ApplyState, DrainCommand, SavedOriginals, drain_command, open_state
from partage.errors import InputError
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.agent.observers.once import Resolve
    from partage.agent.reconciler.apply_once import ApplyResult
    from partage.agent.reconciler.executor import StepStatus
    from partage.edges.files.journal import Unfinished
    from partage.edges.hardware.port import Hardware
    from partage.edges.kubelet.pod_resources import PodResourcesClient
    from partage.model.gpu import Inventory
    from partage.model.policy import Policy
    from partage.model.step import Step


class ApplyOptions(Frozen):
    """The command-line options. state_dir: None: no state is kept."""

    machine: str | None
    hardware_socket: Path | None
    pod_resources: Path | None
    state_dir: Path | None
    drain: DrainCommand | None
    timeout_s: float
    dry_run: bool
    write: str | None
    undo: bool
    run_dir: str | None


@verb("apply")
@common_options.policy_option("Needed, except with --undo.")
@common_options.config_option
@common_options.machine_option
@common_options.driver_root_option
@common_options.kubelet_dir_option
@common_options.hardware_socket_option
@click.option(
    "--pod-resources",
    metavar="PATH",
    help=f"The kubelet's PodResources socket ({common_options.POD_RESOURCES}, where it exists; "
    f"on a simulated node, none). {common_options.NO_KUBELET}: the kubelet is not asked, for example before "
    "it starts.",
)
@common_options.state_dir_option
@click.option(
    "--drain",
    metavar="COMMAND",
    help="Run COMMAND with the holders as JSON on its standard input, and retry until --timeout.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    metavar="SECONDS",
    show_default=True,
    help="With --drain: how long to wait for the holders to end.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--undo", is_flag=True, help="Restore the MIG layouts from before an interrupted run.")
@common_options.run_dir_option
@click.option(
    "--write",
    metavar="FILE",
    shell_complete=completion.files,
    help="With --machine: write the resulting machine to FILE.",
)
@common_options.output_option("table", "json", "yaml")
def command(
    *,
    policy: str | None,
    config: str | None,
    machine: str | None,
    hardware_socket: Path | None,
    pod_resources: str | None,
    state_dir: Path | None,
    drain: str | None,
    timeout: float,
    dry_run: bool,
    undo: bool,
    run_dir: str | None,
    write: str | None,
    output: str,
) -> int:
    """Change the node once, without the agent: MIG layouts, MPS daemons, compute modes, time slices.

    Only differences are changed. MIG devices that match stay, devices in use are never touched, and only
    GPUs with a pending change of MIG mode are reset. Every MIG step is journalled before it is done, and
    rolled back if a later one fails. After an interrupted run, run it again: it continues, or restores the
    old layouts with --undo. MPS daemons keep running afterwards. Only an agent watches what containers use,
    so shares that are applied without one are not guarded.

    Exit code 2: the policy is wrong; 3: impossible here, or a pod or process blocks it (it is named);
    4: no usable driver, or a step failed; 5: the kubelet does not name the holders.
    """
    if write is not None and machine is None:
        raise InputError("--write writes a simulated node", "name it with --machine")
    if undo == (policy is not None):
        raise InputError("apply needs either --policy or --undo", "name the policy to apply with --policy")
    options = ApplyOptions(
        machine=machine,
        hardware_socket=hardware_socket,
        pod_resources=common_options.pod_resources_socket(pod_resources, machine),
        state_dir=common_options.state_directory(state_dir, machine),
        drain=drain_command(drain),
        timeout_s=timeout,
        dry_run=dry_run,
        write=write,
        undo=undo,
        run_dir=run_dir,
    )
    if policy is not None and not dry_run:
        _leave_it_to_the_agent(policy, config, options)
    with open_state(options.state_dir, dry_run=dry_run, undo=undo) as state:
        goal = _goal(policy, config, state.unfinished, undo=undo)
        applied = asyncio.run(_apply(options, goal, state))
    return _answer(applied, goal, state.unfinished, output)


def _leave_it_to_the_agent(policy: str, config: str | None, options: ApplyOptions) -> None:
    """Raises Unsatisfiable where an agent runs: it owns the node. Says what the agent would do."""
    from partage.answers.node_plan import make_plan
    from partage.edges.files.directory_lock import is_locked
    from partage.errors import Unsatisfiable

    if options.state_dir is None or not is_locked(options.state_dir):
        return
    report = common_node.agent_report(options.machine, options.run_dir)
    plan = make_plan(
        common_node.read_policy(policy, config, report), options.machine, options.run_dir, report=report
    )
    if plan.report is None:
        return
    gpus = [
        (gpu.index, plan.plan.gpus[gpu.uuid]) for gpu in plan.inventory if gpu.uuid in plan.plan.unsettled
    ]
    would = [
        f"GPU {index}: {'; '.join(map(str, gpu_plan.steps)) or gpu_plan.reason}" for index, gpu_plan in gpus
    ]
    message = "the agent of this node owns it; with this policy it would do: " + (
        " | ".join(would) or "nothing"
    )
    raise Unsatisfiable(message, "give the policy to the agent, or stop the agent first")


class ApplyGoal(Frozen):
    """The desired state to apply. policy: None with ``--undo``. digest: of the policy's text."""

    resolve: Resolve
    policy: Policy | None = None
    digest: str = ""


def _goal(policy: str | None, config: str | None, unfinished: Unfinished | None, *, undo: bool) -> ApplyGoal:
    from partage.agent.reconciler.apply_once import desired_for_undo
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.offer.desired import resolve

    if not undo:
        loaded = common_node.read_policy(policy, config)
        common_output.print_problems(loaded.warnings)
        wanted = loaded.policy
        return ApplyGoal(
            lambda inventory: resolve(wanted, common_node.need_driver(inventory), geometry_of),
            wanted,
            loaded.digest,
        )
    if config is not None:
        raise InputError("--config names a configuration of a policy file", "remove it with --undo")
    if unfinished is None:
        common_output.say("nothing to undo: the last run was completed", err=True)
    layouts = {} if unfinished is None else unfinished.header.before
    return ApplyGoal(lambda inventory: desired_for_undo(common_node.need_driver(inventory), layouts))


# --- the run ------------------------------------------------------------------------------------


async def _apply(options: ApplyOptions, goal: ApplyGoal, state: ApplyState) -> ApplyResult:
    from partage.agent.reconciler.apply_once import ApplyRun
    from partage.edges.files.catalogue import geometry_of

    hardware = common_node.open_hardware(options.machine, options.hardware_socket, run_dir=options.run_dir)
    pods = _pods(options.pod_resources)
    originals = SavedOriginals(state)
    try:
        return await ApplyRun(
            hardware=hardware,
            resolve=goal.resolve,
            geometry_of=geometry_of,
            progress=_progress,
            pod_resources=pods,
            journal=state.journal,
            unfinished=state.unfinished,
            digest=goal.digest,
            original_in=originals.of,
            save=originals.save,
            drain=options.drain,
            timeout_s=options.timeout_s,
            dry_run=options.dry_run,
            only_layouts=options.undo,
            other_plugin=lambda desired: common_node.other_plugin(desired, options.machine),
        ).run()
    finally:
        if pods is not None:
            pods.close()
        if options.write is not None:
            await _write(hardware, options.write)
        await hardware.close()


def _progress(inventory: Inventory) -> Callable[[Step, StepStatus, str], None]:
    """``GPU 3: taking back: destroy the GPU instance 3g.40gb at 4:4``, a line for each step."""
    from partage.agent.reconciler.executor import StepStatus
    from partage.model.step import gpus_of
    from partage.text import gpus

    def progress(step: Step, status: StepStatus, reason: str) -> None:
        if status is StepStatus.DONE:
            return
        where = gpus(gpu.index for gpu in inventory if gpu.uuid in gpus_of(step))
        text = "" if status is StepStatus.DOING else f"{status}: "
        _tell(f"{where}: {text}{step}{f': {reason}' if reason else ''}")

    return progress


def _pods(socket: Path | None) -> PodResourcesClient | None:
    if socket is None:
        return None
    from partage.edges.kubelet.pod_resources import PodResourcesClient

    return PodResourcesClient(socket)


async def _write(hardware: Hardware, path: str) -> None:
    from partage.cli.record import observed_machine
    from partage.sim.node.files.machine_writer import is_yaml_name, machine_text

    common_output.write_file(path, machine_text(await observed_machine(hardware), as_yaml=is_yaml_name(path)))


def _tell(sentence: str) -> None:
    with suppress(OSError):  # a closed stderr is no reason to stop half-way
        common_output.say(sentence, err=True)


# --- the answer ----------------------------------------------------------------------------------


def _answer(applied: ApplyResult, goal: ApplyGoal, unfinished: Unfinished | None, output: str) -> int:
    from partage.answers.documents.document import PolicySource, row
    from partage.answers.documents.resources import resource_rows
    from partage.cli.apply_outcome import ApplyDocument, applied_gpu_rows, exit_code, problems
    from partage.plan.offer.guarantees import promised
    from partage.plan.reconcile.verification import verifier

    found = (*applied.first.desired.warnings, *problems(applied))
    common_output.print_problems(found)
    gpus = applied_gpu_rows(applied)
    if output == "table":
        from partage.cli.apply_outcome import applied_table

        table = applied_table(gpus)
        what = "all GPUs that answer are as they" if applied.now.inventory.lost else "the node is as it"
        common_output.console().print(table if table.rows else f"no changes: {what} should be")
        return exit_code(applied)
    now = applied.now
    # Without an agent nothing watches what containers use.
    verify = None if applied.dry_run else verifier(now.desired.offer, now.now.observed, (), {})
    answer = ApplyDocument(
        policy=None if goal.policy is None else row(PolicySource, goal.policy),
        dry_run=applied.dry_run,
        resumed=None if unfinished is None else str(unfinished),
        gpus=gpus,
        resources=resource_rows(
            promised(now.desired.offer, now.desired.watch_of, now.inventory, now.desired.settings), verify
        ),
        problems=found,
    )
    common_output.print_document(answer, output)
    return exit_code(applied)

"""``partage apply``: change the node once, without the agent."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from partage.agent.options import KUBELET_DIR, STATE_DIR
from partage.errors import DaemonError, InputError, Problem
from partage.faces.cli import common
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.agent.reconciler.executor import StepStatus
    from partage.agent.reconciler.one_shot import ApplyResult, Resolve
    from partage.edges.files.journal import Journal, Unfinished
    from partage.edges.files.state import SavedState, StateDir
    from partage.edges.hardware.port import Hardware
    from partage.edges.kubelet.pod_resources import PodResourcesClient
    from partage.model.gpu import Inventory
    from partage.model.policy import Policy
    from partage.model.step import Step
    from partage.plan.reconcile.node_plan import NodePlan
    from partage.plan.reconcile.settings_steps import OriginalSettings

POD_RESOURCES = KUBELET_DIR.parent / "pod-resources" / "kubelet.sock"
NO_KUBELET = "none"
AGAIN_S = 2.0
"""Seconds between two requests for the holders: the kubelet limits the rate."""


class ApplyOptions(Frozen):
    """The command-line options. state_dir: None: no state is kept."""

    machine: str | None
    hardware_socket: Path | None
    pod_resources: Path | None
    state_dir: Path | None
    drain: str | None
    timeout_s: float
    dry_run: bool
    write: str | None
    undo: bool
    run_dir: str | None


@click.command(name="apply")
@common.policy_options
@common.machine_option
@common.hardware_socket_option
@click.option(
    "--pod-resources",
    metavar="PATH",
    help=f"The kubelet's PodResources socket ({POD_RESOURCES}, where it exists; on a simulated node, none). "
    f"{NO_KUBELET}: the kubelet is not asked, for example before it starts.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"Where the journal is kept ({STATE_DIR}; with --machine, nowhere).",
)
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
@common.run_dir_option
@click.option("--write", metavar="FILE", help="With --machine: write the resulting machine to FILE.")
@common.output_option("table", "json", "yaml")
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
        pod_resources=pod_resources_socket(pod_resources, machine),
        state_dir=state_dir or (STATE_DIR if machine is None else None),
        drain=_command(drain),
        timeout_s=timeout,
        dry_run=dry_run,
        write=write,
        undo=undo,
        run_dir=run_dir,
    )
    if policy is not None and not dry_run:
        _leave_it_to_the_agent(policy, config, options)
    with _kept(options) as kept:
        goal = _goal(policy, config, kept.unfinished, undo=undo)
        applied = asyncio.run(_apply(options, goal, kept))
    return _answer(applied, goal, kept.unfinished, output)


def _leave_it_to_the_agent(policy: str, config: str | None, options: ApplyOptions) -> None:
    """Raises Unsatisfiable where an agent runs: it owns the node. Says what the agent would do."""
    from partage.edges.files.state import is_locked
    from partage.errors import Unsatisfiable
    from partage.faces.cli.plan import make_plan

    if options.state_dir is None or not is_locked(options.state_dir):
        return
    plan = make_plan(common.read_policy(policy, config), options.machine, options.run_dir)
    if plan.report is None:
        return
    gpus = [
        (gpu.index, plan.plan.gpus[gpu.uuid]) for gpu in plan.inventory if gpu.uuid in plan.plan.unsettled
    ]
    would = [f"GPU {index}: {'; '.join(map(str, one.steps)) or one.reason}" for index, one in gpus]
    message = "the agent of this node owns it; with this policy it would do: " + (
        " | ".join(would) or "nothing"
    )
    raise Unsatisfiable(message, "give the policy to the agent, or stop the agent first")


class ApplyGoal(Frozen):
    """The desired state to apply. policy: None with ``--undo``. digest: of the policy's text."""

    resolve: Resolve
    policy: Policy | None = None
    digest: str = ""


class ApplyState(Frozen):
    """What is kept on disk; nothing for a simulated node.

    journal: None if nothing is written. unfinished: an interrupted run. directory, saved: the state that is
    shared with the agent.
    """

    journal: Journal | None = None
    unfinished: Unfinished | None = None
    directory: StateDir | None = None
    saved: SavedState | None = None


def _goal(policy: str | None, config: str | None, unfinished: Unfinished | None, *, undo: bool) -> ApplyGoal:
    from partage.agent.reconciler.one_shot import desired_for_undo
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.offer.desired import resolve

    if not undo:
        loaded = common.read_policy(policy, config)
        common.print_problems(loaded.warnings)
        wanted = loaded.policy
        return ApplyGoal(
            lambda found: resolve(wanted, common.need_driver(found), geometry_of), wanted, loaded.digest
        )
    if config is not None:
        raise InputError("--config names a configuration of a policy file", "remove it with --undo")
    if unfinished is None:
        click.echo("nothing to undo: the last run was completed", err=True)
    layouts = {} if unfinished is None else unfinished.header.before
    return ApplyGoal(lambda found: desired_for_undo(common.need_driver(found), layouts))


def _command(drain: str | None) -> str | None:
    """The command, checked."""
    try:
        if drain is not None and not shlex.split(drain):
            raise InputError("--drain names no command")
    except ValueError as error:
        raise InputError(f"--drain is not a command: {error}") from error
    return drain


def pod_resources_socket(said: str | None, machine: str | None) -> Path | None:
    """The PodResources socket: ``--pod-resources``, else the usual path if it exists; None: do not ask."""
    if said is not None:
        return None if said == NO_KUBELET else Path(said)
    return POD_RESOURCES if machine is None and POD_RESOURCES.exists() else None


# --- state on disk ----------------------------------------------------------------------------


@contextmanager
def _kept(options: ApplyOptions) -> Iterator[ApplyState]:
    """The state on disk. The state directory is locked during the block."""
    from partage.edges.files.journal import Journal, UnreadableJournal, read_journal
    from partage.edges.files.state import StateDir

    if options.state_dir is None:
        yield ApplyState()
        return
    if options.dry_run:
        last = read_journal(options.state_dir)
        yield ApplyState(unfinished=None if isinstance(last, UnreadableJournal) else last)
        return
    try:
        state = StateDir(options.state_dir)
    except InputError as error:
        hint = "the agent owns the node: give it the policy, or stop it; partage plan shows what it would do"
        raise InputError(error.problems[0].message, hint) from error
    try:
        if state.problem is not None:
            raise DaemonError(state.problem, "name another directory with --state-dir")
        last = read_journal(options.state_dir)
        if isinstance(last, UnreadableJournal):
            if options.undo:
                raise InputError(last.reason, "name the policy to apply with --policy")
            common.print_problems([Problem("", "", "warning", f"{last.reason}; planned again")])
            last = None
        if last is not None:
            common.print_problems([Problem("", "", "warning", f"{last}; continuing from the present state")])
        loaded = state.load(0.0)
        common.print_problems(Problem("", "", "warning", problem) for problem in loaded.problems)
        yield ApplyState(Journal(options.state_dir), last, state, loaded.state)
    finally:
        state.close()


# --- the run ------------------------------------------------------------------------------------


async def _apply(options: ApplyOptions, goal: ApplyGoal, state: ApplyState) -> ApplyResult:
    from partage.agent.reconciler.one_shot import ApplyRun
    from partage.edges.files.catalogue import geometry_of

    hardware = common.open_hardware(options.machine, options.hardware_socket, run_dir=options.run_dir)
    pods = _pods(options.pod_resources)
    originals = _Originals(state)
    try:
        boot_id = (await hardware.observe()).boot_id
        return await ApplyRun(
            hardware=hardware,
            resolve=goal.resolve,
            geometry_of=geometry_of,
            progress=_progress,
            pod_resources=pods,
            journal=state.journal,
            unfinished=state.unfinished,
            digest=goal.digest,
            original=originals.of(boot_id),
            save=originals.save,
            drain=None if options.drain is None else DrainCommand(options.drain),
            timeout_s=options.timeout_s,
            dry_run=options.dry_run,
            only_layouts=options.undo,
        ).run()
    finally:
        if pods is not None:
            pods.close()
        if options.write is not None:
            await _write(hardware, options.write)
        await hardware.close()


class _Originals:
    """Settings of GPUs before Partage changed them, in the state that is shared with the agent."""

    def __init__(self, state: ApplyState) -> None:
        self._directory = state.directory
        self._saved = state.saved
        self._boot_id = ""

    def of(self, boot_id: str) -> Mapping[str, OriginalSettings]:
        """What was saved during this boot: compute modes and time slices do not survive a reboot."""
        self._boot_id = boot_id
        same_boot = self._saved is not None and self._saved.boot_id == boot_id
        return self._saved.original if self._saved is not None and same_boot else {}

    async def save(self, original: Mapping[str, OriginalSettings]) -> None:
        """Write them. Raises DaemonError if that fails: then nothing may be changed."""
        from partage.edges.files.state import SavedState

        if self._directory is None:
            return
        saved = replace(self._saved or SavedState(), boot_id=self._boot_id, original=original)
        failure = await asyncio.to_thread(self._directory.save, saved, 0.0)
        if failure is not None:
            raise DaemonError(failure.reason, "nothing is changed that could not be restored")


def _progress(inventory: Inventory) -> Callable[[Step, StepStatus, str], None]:
    """``GPU 3: taking back: destroy the GPU instance 3g.40gb at 4:4``, a line for each step."""
    from partage.agent.reconciler.executor import StepStatus
    from partage.model.step import gpus_of
    from partage.plan.offer.findings import name_gpus

    def progress(step: Step, status: StepStatus, reason: str) -> None:
        if status is StepStatus.DONE:
            return
        where = name_gpus(gpu.index for gpu in inventory if gpu.uuid in gpus_of(step))
        said = "" if status is StepStatus.DOING else f"{status}: "
        _tell(f"{where}: {said}{step}{f': {reason}' if reason else ''}")

    return progress


def _pods(socket: Path | None) -> PodResourcesClient | None:
    if socket is None:
        return None
    from partage.edges.kubelet.pod_resources import PodResourcesClient

    return PodResourcesClient(socket)


async def _write(hardware: Hardware, path: str) -> None:
    from partage.sim.node.files.written import machine_to_json

    text = json.dumps(machine_to_json(await hardware.observe()), indent=2) + "\n"
    common.write_file(path, text)


class DrainCommand(Frozen):
    """``--drain``: runs a command with the holders as input, then waits until the next check."""

    line: str

    async def __call__(self, plan: NodePlan, inventory: Inventory, left_s: float) -> None:
        """Raises InputError if there is no such command. If it fails, a warning is printed, and it is
        retried."""
        from partage.faces.plan_rows import blocked_of, holder_rows

        holders = holder_rows(blocked_of(plan), inventory)
        document = json.dumps(common.document("Holders", {"holders": holders})).encode()
        began = asyncio.get_running_loop().time()
        trouble = await self._run(document, left_s)
        if trouble:
            common.print_problems([Problem("", "", "warning", f"--drain: {trouble}")])
        spent = asyncio.get_running_loop().time() - began
        await asyncio.sleep(max(0.0, min(AGAIN_S, left_s - spent)))

    async def _run(self, document: bytes, left_s: float) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(self.line), stdin=asyncio.subprocess.PIPE, stdout=2
            )
        except OSError as error:
            raise InputError(f"--drain: {self.line!r} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(left_s):
                await process.communicate(document)
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"the command did not end within {left_s:.0f} s"
        return f"the command ended with exit code {process.returncode}" if process.returncode else ""


def _tell(sentence: str) -> None:
    with suppress(OSError):  # a closed stderr is no reason to stop half-way
        click.echo(sentence, err=True)


# --- the answer ----------------------------------------------------------------------------------


def _answer(applied: ApplyResult, goal: ApplyGoal, unfinished: Unfinished | None, output: str) -> int:
    from partage.faces.apply_rows import exit_code, problems, rows
    from partage.faces.documents import resource_rows
    from partage.plan.offer.guarantees import promised
    from partage.plan.reconcile.verification import verified

    found = [*applied.first.desired.warnings, *problems(applied)]
    common.print_problems(found)
    gpus = rows(applied)
    if output == "table":
        from partage.faces.render.tables import applied_table

        common.console().print(applied_table(gpus))
        return exit_code(applied)
    now = applied.now
    # Without an agent nothing watches what containers use.
    verify = None if applied.dry_run else lambda share: verified(share, now.now.observed, ())
    policy = None if goal.policy is None else {"source": goal.policy.source, "format": goal.policy.format}
    body = {
        "policy": policy,
        "dryRun": applied.dry_run,
        "resumed": None if unfinished is None else str(unfinished),
        "gpus": gpus,
        "resources": resource_rows(promised(now.desired.offer, now.desired.watch_of), verify),
        "problems": [common.problem_row(problem) for problem in found],
    }
    common.print_document(common.document("Apply", body), output)
    return exit_code(applied)

"""``partage apply``: bring the node's MIG layouts about, once, without the agent."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partage.agent.options import KUBELET_DIR, STATE_DIR
from partage.errors import DaemonError, InputError, Problem
from partage.faces.cli import common

if TYPE_CHECKING:
    from partage.edges.files.journal import Journal, Unfinished
    from partage.edges.hardware.port import Hardware
    from partage.edges.kubelet.pod_resources import PodResourcesClient
    from partage.faces.applying import Applied, Goal

POD_RESOURCES = KUBELET_DIR.parent / "pod-resources" / "kubelet.sock"
NOBODY = "none"
AGAIN_S = 2.0
"""Between two looks at holders that were asked to go: the kubelet limits how often it is asked."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was said on the command line. state_dir: None: there is nothing to remember."""

    machine: str | None
    hardware_socket: Path | None
    pod_resources: Path | None
    state_dir: Path | None
    drain: str | None
    timeout_s: float
    dry_run: bool
    write: str | None
    undo: bool


@click.command(name="apply")
@common.policy_options
@common.machine_option
@common.hardware_socket_option
@click.option(
    "--pod-resources",
    metavar="PATH",
    help=f"The kubelet's PodResources socket ({POD_RESOURCES}, where it exists; on a simulated node, none). "
    f"{NOBODY}: pods are not asked for, as before the kubelet starts.",
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
    help="Run COMMAND, the holders as JSON on its standard input, and try again until --timeout.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    metavar="SECONDS",
    show_default=True,
    help="How long holders may take to go, with --drain.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--undo", is_flag=True, help="Take back what a run that was cut off has done.")
@click.option("--write", metavar="FILE", help="With --machine: write the machine down as it is afterwards.")
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
    write: str | None,
    output: str,
) -> int:
    """Bring MIG modes and layouts about as the policy wants them, by difference.

    MIG devices that fit stay, those in use are never touched, only GPUs whose MIG mode is pending are reset.
    Every step is written to the journal before it is done, and taken back if a later one fails. After a run
    that was cut off, run it again: it goes on, or back with --undo.

    Exit code 2: the policy is wrong; 3: impossible here, or somebody holds what is in the way (he is named);
    4: no usable driver, or a step failed; 5: the kubelet does not say who holds what.
    """
    if write is not None and machine is None:
        raise InputError("--write writes a simulated node down", "say which with --machine")
    if undo == (policy is not None):
        raise InputError(
            "apply needs either --policy or --undo", "say with --policy what the node shall become"
        )
    options = Options(
        machine=machine,
        hardware_socket=hardware_socket,
        pod_resources=pod_resources_socket(pod_resources, machine),
        state_dir=state_dir or (STATE_DIR if machine is None else None),
        drain=_command(drain),
        timeout_s=timeout,
        dry_run=dry_run,
        write=write,
        undo=undo,
    )
    with _journal(options) as (journal, unfinished):
        goal = _goal(policy, config, unfinished, undo=undo)
        applied = asyncio.run(_apply(options, goal, journal, unfinished))
    common.print_problems([*applied.warnings, *applied.problems()])
    _answer(applied, goal, unfinished, output)
    return applied.exit_code


def _goal(policy: str | None, config: str | None, unfinished: Unfinished | None, *, undo: bool) -> Goal:
    from partage.faces.applying import Goal

    if not undo:
        loaded = common.read_policy(policy, config)
        common.print_problems(loaded.warnings)
        return Goal(loaded.policy, loaded.digest)
    if config is not None:
        raise InputError("--config names a configuration of a policy file", "leave it away with --undo")
    if unfinished is None:
        click.echo("nothing to take back: the last run came to its end", err=True)
    return Goal(back={} if unfinished is None else unfinished.beginning.before)


def _command(drain: str | None) -> str | None:
    """The command, if it can be one."""
    try:
        if drain is not None and not shlex.split(drain):
            raise InputError("--drain names no command")
    except ValueError as error:
        raise InputError(f"--drain is not a command: {error}") from error
    return drain


def pod_resources_socket(said: str | None, machine: str | None) -> Path | None:
    """Where the kubelet is asked: where ``--pod-resources`` says, or where it usually is; None: it is not."""
    if said is not None:
        return None if said == NOBODY else Path(said)
    return POD_RESOURCES if machine is None and POD_RESOURCES.exists() else None


# --- what outlives us ----------------------------------------------------------------------------


@contextmanager
def _journal(options: Options) -> Iterator[tuple[Journal | None, Unfinished | None]]:
    """The journal, and what the last one left undone. The state directory is ours alone meanwhile."""
    from partage.edges.files.journal import Journal, UnreadableJournal, read_journal
    from partage.edges.files.state import StateDir

    if options.state_dir is None:
        yield None, None
        return
    if options.dry_run:
        last = read_journal(options.state_dir)
        yield None, None if isinstance(last, UnreadableJournal) else last
        return
    try:
        state = StateDir(options.state_dir)
    except InputError as error:
        hint = "stop the agent of this node while layouts are made without it"
        raise InputError(error.problems[0].message, hint) from error
    try:
        if state.problem is not None:
            raise DaemonError(state.problem, "say another directory with --state-dir")
        last = read_journal(options.state_dir)
        if isinstance(last, UnreadableJournal):
            if options.undo:
                raise InputError(last.reason, "say with --policy what the node shall become")
            common.print_problems([Problem("", "", "warning", f"{last.reason}; planned anew")])
            last = None
        if last is not None:
            common.print_problems([Problem("", "", "warning", f"{last}; going on from what lives now")])
        yield Journal(options.state_dir), last
    finally:
        state.close()


# --- doing it ------------------------------------------------------------------------------------


async def _apply(
    options: Options, goal: Goal, journal: Journal | None, unfinished: Unfinished | None
) -> Applied:
    from partage.faces.applying import Applying, Node

    hardware = common.open_hardware(options.machine, options.hardware_socket)
    pods = _pods(options.pod_resources)
    try:
        return await Applying(
            node=Node(hardware, pods),
            goal=goal,
            journal=journal,
            unfinished=unfinished,
            tell=_tell,
            drain=None if options.drain is None else Command(options.drain),
            timeout_s=options.timeout_s,
            dry_run=options.dry_run,
            check=common.need_driver,
        ).run()
    finally:
        if pods is not None:
            pods.close()
        if options.write is not None:
            await _write(hardware, options.write)
        await hardware.close()


def _pods(socket: Path | None) -> PodResourcesClient | None:
    if socket is None:
        return None
    from partage.edges.kubelet.pod_resources import PodResourcesClient

    return PodResourcesClient(socket)


async def _write(hardware: Hardware, path: str) -> None:
    from partage.sim.node.written import machine_to_json

    text = json.dumps(machine_to_json(await hardware.observe()), indent=2) + "\n"
    common.write_file(path, text)


@dataclass(frozen=True, slots=True)
class Command:
    """``--drain``: a command that is told the holders, and then some time to see whether they went."""

    line: str

    async def __call__(self, holders: Sequence[Mapping[str, Any]], left_s: float) -> None:
        """Raises InputError where there is no such command. One that fails is told of, and tried again."""
        document = json.dumps(common.document("Holders", {"holders": list(holders)})).encode()
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
    with suppress(OSError):  # that nobody listens any more is no reason to stop half-way
        click.echo(sentence, err=True)


# --- the answer ----------------------------------------------------------------------------------


def _answer(applied: Applied, goal: Goal, unfinished: Unfinished | None, output: str) -> None:
    rows = applied.rows()
    if output == "table":
        from partage.faces.render.tables import applied_table

        common.console().print(applied_table(rows))
        return
    problems = [*applied.warnings, *applied.problems()]
    body = {
        "policy": None
        if goal.policy is None
        else {"source": goal.policy.source, "format": goal.policy.format},
        "dryRun": applied.dry_run,
        "resumed": None if unfinished is None else str(unfinished),
        "gpus": rows,
        "problems": [common.problem_row(problem) for problem in problems],
    }
    common.print_document(common.document("Apply", body), output)

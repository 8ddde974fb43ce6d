"""``partage show``: the node, what it offers, who holds the shares, and a picture; with ``--watch`` again and
again, until Ctrl-C.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from partage.answers import common_node, common_options, common_output, completion
from partage.answers.verb import verb
from partage.errors import PartageError
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument
    from partage.answers.render.cards import GpuCard
    from partage.answers.render.terminal import Console
    from partage.model.gpu import Inventory
    from partage.model.gpu_use import JobProcess, Processes
    from partage.model.share import NodeOffer
    from partage.slurm.show_jobs import ShownJobs


class ShownNode(Frozen):
    """What is shown. report: of the agent whose offer this is; None: a policy would offer it. jobs: of Slurm;
    None: they were not asked for."""

    inventory: Inventory
    offer: NodeOffer
    source: str
    report: ReportDocument | None
    jobs: ShownJobs | None = None


@verb("show")
@common_options.policy_options
@common_options.machine_option
@common_options.driver_root_option
@common_options.run_dir_option
@click.option(
    "--picture",
    metavar="FILE",
    shell_complete=completion.files,
    help="Also draw the GPUs to a file: .svg or .png.",
)
@click.option(
    "--jobs/--no-jobs",
    default=None,
    help="Name the Slurm job, user and share of each process. Default: where Slurm is installed.",
)
@click.option("--memory", is_flag=True, help="Show only who holds GPU memory, where it is shared by amounts.")
@click.option("-w", "--watch", is_flag=True, help="Show the node again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 86400),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: time between two looks at the node.",
)
@common_options.output_option("table", "name", "json", "yaml")
def command(
    *,
    policy: str | None,
    config: str | None,
    machine: str | None,
    run_dir: str | None,
    picture: str | None,
    jobs: bool | None,
    memory: bool,
    watch: bool,
    interval: float,
    output: str,
) -> None:
    """Show the node: its GPUs, what they offer, who holds the shares, and a picture.

    If an agent runs, offers and holders come from its report. With --policy: what that policy would offer.
    Without either: what the node offers if all GPUs are exclusive.

    With --watch the terminal is drawn again each time. In a file or a pipe the answers follow each other:
    tables with an empty line between them, YAML documents with ---.

    Exit code 4: no usable driver; the message says what to do.
    """
    if picture is not None:
        from partage.answers.render.drawing import check_picture_name

        check_picture_name(picture)
    if memory and (output != "table" or policy is not None or picture is not None):
        raise click.UsageError("--memory prints a table of who holds memory now, and goes with nothing else")
    if watch and "-" in (policy, machine):
        raise click.UsageError("--watch reads its files again and again; standard input can be read once")

    def show_once() -> None:
        if memory:
            from partage.cli.inspect import memory_here, print_memory

            print_memory(memory_here(machine, run_dir))
            return
        node = _with_jobs(_look(policy, config, machine, run_dir), machine, run_dir, asked=jobs)
        if picture is not None:
            _draw(node, picture)
        _answer(node, output)

    if watch:
        repeat(show_once, interval, between={"table": "\n", "yaml": "---\n"}.get(output, ""))
    else:
        show_once()


def _answer(node: ShownNode, output: str) -> None:
    if output == "table":
        _print(node, common_output.console())
    elif output == "name":
        from partage.model.share import resources_of

        common_output.say_names(resources_of(node.offer))
    else:
        from partage.answers.documents.show import node_document

        common_output.print_document(
            node_document(node.inventory, node.offer, node.report, _rows(node)), output
        )


def _look(policy: str | None, config: str | None, machine: str | None, run_dir: str | None) -> ShownNode:
    report = common_node.agent_report(machine, run_dir)
    if report is not None and policy is None:
        inventory = common_node.need_driver(common_node.observe(machine))
        source = (
            f"as the agent said at {report.at}, policy: {report.policy.source or 'none, every GPU exclusive'}"
        )
        return ShownNode(inventory, report.offer, source, report)
    from partage.answers.node_plan import make_plan

    loaded = common_node.read_policy(policy, config, report)
    plan = make_plan(loaded, machine, run_dir, report=report)
    common_output.print_problems(plan.warnings)
    source = f"with the policy {policy}" if policy else "no agent runs here: as it would be without a policy"
    return ShownNode(plan.inventory, plan.offer, source, None)


def _with_jobs(node: ShownNode, machine: str | None, run_dir: str | None, *, asked: bool | None) -> ShownNode:
    """With the processes of Slurm jobs. A simulated machine has none, unless they are asked for."""
    if asked is False or (asked is None and machine is not None):
        return node
    from pathlib import Path

    from partage.errors import Problem
    from partage.slurm.show_jobs import is_slurm_node, shown_jobs

    where = Path(run_dir or common_options.DEFAULT_RUN_DIR)
    if asked is None and not is_slurm_node(where):
        return node

    def processes() -> Processes:
        return common_node.ask(lambda hardware: hardware.processes(), machine)

    shown = shown_jobs(node.inventory, processes, where, None)
    if shown is not None:
        common_output.print_problems(Problem("", "", "warning", why) for why in shown.unreadable)
    return replace(node, jobs=shown)


def _rows(node: ShownNode) -> tuple[JobProcess, ...] | None:
    return None if node.jobs is None else node.jobs.processes


def _cards(node: ShownNode) -> list[GpuCard]:
    from partage.answers.render.cards import HeldOnNode, cards_of
    from partage.answers.share_counts import not_usable
    from partage.edges.files.catalogue import geometry_of

    report = node.report
    use = (
        HeldOnNode(report.holders, report.troubles, not_usable(report), report.standings)
        if report
        else HeldOnNode()
    )
    return cards_of(node.inventory, node.offer, use, geometry_of)


def _draw(node: ShownNode, path: str) -> None:
    from partage.answers.render.drawing import picture_file
    from partage.answers.render.node_drawing import draw

    common_output.write_file(path, picture_file(draw(_cards(node), node.source), path))


def _print(node: ShownNode, console: Console) -> None:
    from partage.answers.render.picture import legend, picture
    from partage.answers.render.rows import (
        job_lines,
        limit_lines,
        links_sentence,
        pending_lines,
        waiting_lines,
        withdrawn_lines,
    )
    from partage.answers.render.tables import gpus_table, guarantees_used, holders_table, resources_table
    from partage.answers.share_counts import count_by_resource
    from partage.model.gpu import Driver
    from partage.plan.offer.caveats import mig_hidden

    inventory, report = node.inventory, node.report
    assert isinstance(inventory.driver, Driver), "checked by need_driver"
    console.print(
        f"Driver {inventory.driver.version}, CUDA {inventory.driver.cuda}"
        + (", simulated" if inventory.simulated else "")
    )
    console.print()
    console.print(gpus_table(inventory, report.troubles if report else {}))
    if hidden := mig_hidden(inventory):
        console.print(f"! {hidden}.", style="yellow")
    if links := links_sentence(inventory):
        console.print()
        console.print(links, style="dim")
    console.print()
    cards = _cards(node)
    console.print(picture(cards, console.drawing_width))
    console.print(legend(cards))
    console.print()
    console.print(node.source, style="italic")
    console.print()
    console.print(resources_table(node.offer, None if report is None else count_by_resource(report)))
    console.print(guarantees_used(node.offer))
    if node.jobs is not None:
        from partage.answers.render.tables import jobs_table

        console.print()
        console.print(jobs_table(node.jobs.processes))
        if node.jobs.hidden:
            console.print(f"! {node.jobs.hidden}", style="yellow")
    if report is not None:
        from partage.answers.documents.show import shown_shares

        for line in withdrawn_lines(report.withdrawn):
            console.print(f"! {line}", style="yellow")
        if report.held:
            console.print()
            console.print(holders_table(shown_shares(report), node.offer))
        for gpu in inventory:
            for line in job_lines(report.jobs, gpu.uuid):
                console.print(f"GPU {gpu.index}: {line}")
        from partage.answers.render.tables import use_tables

        console.print()
        for made in use_tables(report):
            console.print(made)
        pending = pending_lines(inventory, report.pending)
        cordon = (report.cordon,) if report.cordon else ()
        waiting = (*limit_lines(report.held, report.jobs), *waiting_lines(report.waiting))
        for line in (*cordon, *waiting, *pending, *report.messages):
            console.print(f"! {line}", style="yellow")


_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"


def repeat(answer: Callable[[], None], interval_s: float, between: str = "") -> None:
    """Call ``answer``, which prints, every ``interval_s`` seconds, until Ctrl-C (KeyboardInterrupt).

    In a terminal each answer replaces the one before it. Elsewhere they follow each other. An error ends it
    the first time; later it is printed, and the next answer may be there again. between: two answers.
    """
    if sys.stdout.isatty():
        _redraw(answer, interval_s)
    first = True
    while True:
        _say(answer, first=first, before="" if first else between)
        first = False
        time.sleep(interval_s)


def _say(answer: Callable[[], None], *, first: bool, before: str) -> None:
    sys.stdout.write(before)
    try:
        answer()
    except PartageError as error:
        if first:
            raise
        common_output.print_problems(error.problems)
    sys.stdout.flush()


def _redraw(answer: Callable[[], None], interval_s: float) -> None:
    text = _drawn(answer)  # before the screen changes, so that an error stays readable
    with _screen():
        while True:
            _draw_text(text)
            time.sleep(interval_s)
            try:
                text = _drawn(answer)
            except PartageError as error:
                text = _drawn(partial(common_output.print_problems, error.problems))


class _Frame(io.StringIO):
    """A text that is drawn in a terminal: with its width, its colours and its signs."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # in typeshed it is an attribute
        return self._encoding

    def isatty(self) -> bool:
        return True


def _drawn(answer: Callable[[], None]) -> str:
    """What it prints; its warnings, too."""
    with redirect_stdout(_Frame(sys.stdout.encoding)) as frame, redirect_stderr(frame):
        answer()
    return frame.getvalue()


def _draw_text(text: str) -> None:
    """Over the old lines, without clearing the screen first: nothing flickers. What is too long is cut."""
    import shutil

    height = shutil.get_terminal_size().lines
    lines = text.splitlines()
    if len(lines) > height:
        lines = [*lines[: height - 1], f"... {len(lines) - height + 1} more lines"]
    said = f"{_CLEAR_LINE}\r\n".join(lines)
    sys.stdout.write(f"{_HOME}{said}{_CLEAR_LINE}{_CLEAR_BELOW}")
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[None]:
    """The terminal's second screen; what was on it before is there again afterwards."""
    sys.stdout.write(_OTHER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(_OWN_SCREEN)
        sys.stdout.flush()

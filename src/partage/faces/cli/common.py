"""What the verbs have in common: options, documents, and opening the hardware.

Imported by every verb, also the agent: no slow imports at the top.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from partage.agent.options import RUN_DIR, STATE_DIR
from partage.codec.values import to_plain
from partage.errors import Problem
from partage.faces.cli import completion
from partage.faces.lean_imports import lean_imports
from partage.model.choice_rules import ChoiceRules, Fallback

if TYPE_CHECKING:
    from rich.console import Console

    from partage.agent.node_policy import NodeChoice
    from partage.agent.reconciler.apply_once import PlanInput
    from partage.edges.files.policy import LoadedPolicy
    from partage.edges.hardware.port import Hardware
    from partage.faces.documents.report import ReportDocument
    from partage.model.gpu import Inventory
    from partage.model.policy import Policy
    from partage.model.step import GpuUse

OUTPUT_KEY = "partage.output"
"""Key of ``-o`` in click's context, so that errors are written in the same format."""

CHOICE_KEY = "partage.policy-choice"
"""Key of ``--node-labels`` and ``--fallback`` in click's context: they go with ``--policy`` everywhere."""

_DRIVER_ROOT_KEY = "partage.driver-root"

DEFAULT_RUN_DIR = str(RUN_DIR)

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


# --- options -----------------------------------------------------------------------------------


def output_option(*formats: str) -> Callable[[Command], Command]:
    """``-o``: the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        is_eager=True,
        callback=_remember_output,
        help="Output format.",
    )


def _remember_output(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    del parameter
    ctx.meta[OUTPUT_KEY] = value
    return value


def machine_option(command: Command) -> Command:
    """``--machine``."""
    return click.option(
        "--machine",
        metavar="NAME|FILE",
        shell_complete=completion.machines,
        help="Use a simulated node instead of this one: 8xa100-40gb, 4xh200-141gb+4xl40s, or a machine file.",
    )(command)


def driver_root_option(command: Command) -> Command:
    """``--driver-root``, which ``open_hardware`` finds by itself."""
    return click.option(
        "--driver-root",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        expose_value=False,
        callback=_remember_driver_root,
        help="Root directory of the NVIDIA driver (/).",
    )(command)


def _remember_driver_root(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    del parameter
    ctx.meta[_DRIVER_ROOT_KEY] = value


def driver_root() -> Path | None:
    """``--driver-root`` of the verb that runs; None where it was not given."""
    ctx = click.get_current_context(silent=True)
    return None if ctx is None else ctx.meta.get(_DRIVER_ROOT_KEY)


def policy_options(command: Command) -> Command:
    """``--policy``, which may be left out, and ``--config``."""
    return policy_option("Default: every GPU is exclusive.")(config_option(command))


def policy_option(without: str, *, standard_input: bool = True) -> Callable[[Command], Command]:
    """``--policy``. without: what holds where it is left out, a sentence."""
    stdin = " Use - for standard input." if standard_input else ""
    return click.option(
        "-f",
        "--policy",
        metavar="FILE|DIR",
        shell_complete=completion.files,
        help="Policy file: Partage's format, NVIDIA's device-plugin format or mig-parted's, or a ConfigMap "
        f"of such files. Of a directory of policies, labels of the node choose one.{stdin} {without}",
    )


def config_option(command: Command) -> Command:
    """``--config``, and ``--fallback`` and ``--node-labels``, which ``choice_options`` finds by itself."""
    command = click.option(
        "--config",
        metavar="NAME",
        shell_complete=completion.configurations,
        help="Name of a configuration, where the policy file has several; of a directory, the policy of "
        "nodes without a label.",
    )(command)
    command = click.option(
        "--fallback",
        metavar="LIST",
        expose_value=False,
        callback=partial(_remember_choice, "fallback"),
        help="With a directory, for nodes without a label and without --config: named, single, empty, in "
        "the order in which they are tried (named,single).",
    )(command)
    return node_labels_option(command)


def node_labels_option(command: Command) -> Command:
    """``--node-labels``, read by ``choice_options``."""
    return click.option(
        "--node-labels",
        metavar="KEY=VALUE,...|FILE",
        expose_value=False,
        callback=partial(_remember_choice, "labels"),
        help="The labels of the node, or a file that kubectl get node -o yaml has written; '' is a node "
        "without labels.",
    )(command)


def _remember_choice(what: str, ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    del parameter
    ctx.meta.setdefault(CHOICE_KEY, {})[what] = value


def choice_options(config: str | None) -> NodeChoice:
    """What a policy is chosen by on this command line. Raises InputError."""
    from partage.agent.node_policy import NodeChoice

    return NodeChoice(labels=node_labels(), rules=choice_rules(config), environ=os.environ)


def node_labels() -> dict[str, str] | None:
    """``--node-labels``; None where they are not given. Raises InputError."""
    said = _said("labels")
    if said is None:
        return None
    from partage.edges.files.node_labels import read_node_labels

    return read_node_labels(said)


def _said(what: str) -> str | None:
    context = click.get_current_context(silent=True)
    said: dict[str, str | None] = context.meta.get(CHOICE_KEY, {}) if context else {}
    return said.get(what)


def choice_rules(config: str | None) -> ChoiceRules:
    """The rules for a directory. Raises InputError for a fallback that is not known."""
    from partage.errors import InputError

    fallback = _said("fallback")
    if fallback is None:
        return ChoiceRules(config)
    words = [word.strip() for word in fallback.split(",") if word.strip()]
    known = [one.value for one in Fallback]
    for word in words:
        if word not in known:
            raise InputError(f"--fallback {word[:40]!r} is not known", f"a list of {', '.join(known)}")
    return ChoiceRules(config, tuple(map(Fallback, words)))


def state_dir_option(command: Command) -> Command:
    """``--state-dir``: where the agent and ``apply`` keep what they have to remember."""
    return click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help=f"Directory of the journal and the saved state ({STATE_DIR}; with --machine: none).",
    )(command)


def state_directory(named: Path | None, machine: str | None) -> Path | None:
    """The state directory; None: a simulated node has none."""
    return named or (STATE_DIR if machine is None else None)


def hardware_socket_option(command: Command) -> Command:
    """``--hardware-socket``: a running helper."""
    return click.option(
        "--hardware-socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Socket of a running helper (partage hardware), used instead of the driver.",
    )(command)


def run_dir_option(command: Command) -> Command:
    """``--run-dir``: where a running agent writes its report."""
    return click.option(
        "--run-dir",
        metavar="DIR",
        help="Run directory of the agent, with its report and its MPS daemons "
        f"({DEFAULT_RUN_DIR}; with --machine: none).",
    )(command)


# --- output --------------------------------------------------------------------------------


def print_document(answer: object, output: str) -> None:
    """Write a document to stdout, as ``json`` or ``yaml``."""
    plain = to_plain(answer)
    if output == "yaml":
        import yaml

        sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110))
    else:
        sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")


def print_problems(problems: Iterable[Problem]) -> None:
    """One line per problem on stderr."""
    for problem in problems:
        click.echo(f"{problem.severity}: {problem}".replace("\n", " "), err=True)


def console() -> Console:
    """The console for tables and pictures. At least 110 columns if stdout is not a terminal."""
    from partage.faces.render.terminal import open_console

    return open_console()


# --- the node ----------------------------------------------------------------------------------


def read_policy(policy: str | None, config: str | None, report: ReportDocument | None = None) -> LoadedPolicy:
    """The policy of ``--policy`` on a node with the labels of ``--node-labels``, or every GPU exclusive.

    report: of the agent that runs there; where labels are not given, they are those that it knows.
    Raises InputError with all problems.
    """
    from msgspec.structs import replace

    from partage.agent.node_policy import PolicyRefusal, node_policy
    from partage.edges.files.policy_directory import read_policies
    from partage.errors import InputError

    if policy is None and config is not None:
        raise InputError(
            "--config names a configuration of a policy file", "name the file with --policy FILE"
        )
    choice = choice_options(config)
    if choice.labels is None and report is not None and (seen := report.planner_input) is not None:
        choice = replace(choice, labels=seen.labels)
    chosen = node_policy(None if policy is None else read_policies(policy), choice)
    if isinstance(chosen, PolicyRefusal):
        raise InputError(chosen.problems)
    if chosen.layouts_problems:
        raise InputError(chosen.layouts_problems)
    return replace(chosen.loaded, policy=chosen.policy(chosen.layouts))


def open_hardware(
    machine: str | None,
    socket: Path | None = None,
    run_dir: str | None = None,
) -> Hardware:
    """The real node, by its driver (``--driver-root``) or by a helper at ``socket``, or the simulated one.

    run_dir: MPS daemons have their directories below it.
    """
    from partage.errors import InputError

    if machine is not None and socket is not None:
        raise InputError("--machine and --hardware-socket exclude each other")
    root = driver_root()
    if root is not None and (machine is not None or socket is not None):
        other = "--machine" if machine is not None else "--hardware-socket"
        raise InputError(f"{other} and --driver-root exclude each other", "only the real driver has a root")
    root = root or Path("/")
    if socket is not None:
        from partage.edges.hardware.helper_client import RemoteHardware

        return RemoteHardware(socket)
    if machine is not None:
        from partage.sim.node.files.load import load_machine
        from partage.sim.node.hardware import SimulatedHardware

        return SimulatedHardware(load_machine(machine))
    from functools import partial

    from partage.edges.hardware.driver_pause import read_pause
    from partage.edges.hardware.nvml import NvmlHardware
    from partage.edges.mps.keeper import MpsKeeper
    from partage.faces.unknown_models import lacks_geometry

    directory = Path(run_dir or DEFAULT_RUN_DIR)
    keeper, paused = MpsKeeper(directory, root), partial(read_pause, directory)
    return NvmlHardware(root, keeper=keeper, lacks_geometry=lacks_geometry, paused=paused)


def ask(
    question: Callable[[Hardware], Coroutine[Any, Any, T]],
    machine: str | None,
    socket: Path | None = None,
    run_dir: str | None = None,
) -> T:
    """Open the node, ask it once, close it. Raises InputError for a machine that does not exist."""
    with lean_imports():
        import asyncio

    async def once() -> T:
        hardware = open_hardware(machine, socket, run_dir=run_dir)
        try:
            return await question(hardware)
        finally:
            await hardware.close()

    return asyncio.run(once())


def observe(machine: str | None, socket: Path | None = None) -> Inventory:
    """Observe the node once."""
    return ask(lambda hardware: hardware.observe(), machine, socket)


def observe_with_uses(machine: str | None) -> tuple[Inventory, tuple[GpuUse, ...]]:
    """Observe the node and the uses of its GPUs once; no uses without a driver."""
    with lean_imports():
        from partage.agent.reconciler.apply_once import NodeAccess

    return ask(lambda hardware: NodeAccess(hardware).observe(), machine)


def plan_input(
    machine: str | None,
    policy: Policy,
    socket: Path | None = None,
    *,
    run_dir: str | None = None,
    state_dir: Path | None = None,
) -> PlanInput:
    """Observe the node and resolve the policy on it. Raises what makes that impossible.

    state_dir: has the settings that GPUs had before Partage changed them.
    """
    with lean_imports():
        from partage.agent.reconciler.apply_once import observe_input
    from partage.edges.files.catalogue import geometry_of
    from partage.edges.files.state import read_state
    from partage.plan.offer.desired import resolve

    directory = state_directory(state_dir, machine)
    saved = None if directory is None else read_state(directory)

    return ask(
        lambda hardware: observe_input(
            hardware,
            lambda found: resolve(policy, need_driver(found), geometry_of),
            original_in=lambda boot_id: {} if saved is None else saved.original_in(boot_id),
        ),
        machine,
        socket,
        run_dir,
    )


def need_driver(inventory: Inventory) -> Inventory:
    """The inventory, if there is a driver. Raises DriverUnavailable with what to do."""
    from partage.errors import DriverUnavailable
    from partage.model.gpu import NoDriver

    if isinstance(inventory.driver, NoDriver):
        hint = inventory.driver.hint or "install or repair the NVIDIA driver"
        raise DriverUnavailable(
            inventory.driver.reason, f"{hint}; --machine 8xh100-sxm5-80gb simulates a node instead"
        )
    return inventory


def _report_file(machine: str | None, run_dir: str | None) -> Path | None:
    """Where the report of the agent that runs on this node would be; None for a simulated node."""
    if run_dir is None and machine is not None:
        return None
    return Path(run_dir or DEFAULT_RUN_DIR) / "report.json"


def agent_report(machine: str | None, run_dir: str | None) -> ReportDocument | None:
    """The last report of the agent on this node; a warning if it cannot be used."""
    path = _report_file(machine, run_dir)
    if path is None or _is_absent(path):
        return None
    from partage.faces.documents.report import Unreadable, read_report  # imports all of the agent's status

    found = read_report(path)
    if found is None:
        return None
    if not isinstance(found, Unreadable):
        why = _why_not_ours(found, machine)
        if not why:
            return found
        found = Unreadable(f"{path} is not used: {why}")
    print_problems([Problem("", "", "warning", found.reason)])
    return None


def _is_absent(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # why it cannot be read is said by who reads it
    return False


def _why_not_ours(found: ReportDocument, machine: str | None) -> str:
    """Why the report says nothing about this node now; empty if it does."""
    from partage.edges.procfs import runs
    from partage.faces.report_origin import this_node, why_not_ours
    from partage.sim.node.files.load import load_machine

    here = this_node(None if machine is None else load_machine(machine).inventory)
    return why_not_ours(found.agent, found.node, here, agent_runs=runs(Path("/proc"), found.agent.pid))


def ctk_found(policy: Policy, inventory: Inventory) -> bool:
    """Whether ``nvidia-ctk`` is on this node where the policy says."""
    return not inventory.simulated and Path(policy.options.nvidia_ctk).is_file()


def write_file(path: str, content: str | bytes) -> None:
    """Write a file, standard output for ``-``. Raises InputError if that fails."""
    from partage.errors import InputError

    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(content.encode() if isinstance(content, str) else content)
        return
    try:
        Path(path).write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError([Problem(path, "", "error", f"cannot be written: {error.strerror}")]) from error

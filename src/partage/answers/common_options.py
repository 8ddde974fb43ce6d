"""The options that several verbs have, and what they say on this command line.

Imported by every verb, also the agent: no slow imports at the top.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.agent.options import KUBELET_DIR, RUN_DIR, STATE_DIR, pod_resources_of
from partage.answers import completion
from partage.answers.common_output import HEADERS_KEY, OUTPUT_KEY, WIDE
from partage.answers.verb import Command, common_option, path_option
from partage.model.ids import DRA_DRIVERS
from partage.plan.offer.policy_choice import ChoiceRules, Fallback

if TYPE_CHECKING:
    from partage.agent.node_policy import NodeChoice


CHOICE_KEY = "partage.policy-choice"
"""Key of ``--node-labels`` and ``--fallback`` in click's context: they go with ``--policy`` everywhere."""

_DRIVER_ROOT_KEY = "partage.driver-root"
_KUBELET_DIR_KEY = "partage.kubelet-dir"
NO_KUBELET = "none"
POD_RESOURCES = pod_resources_of(KUBELET_DIR)

POLICY_VARIABLE = "PARTAGE_POLICY"
MACHINE_VARIABLE = "PARTAGE_MACHINE"
OTHER_NODES = (
    *("machines", "hardware_socket", "driver_root", "reports", "cluster", "kubeconfig"),
    *("model", "node", "story", "trace", "this_node", "here"),
)
"""Parameters that say in another way which node is meant."""
_OTHER_POLICIES = ("demand", "reports", "cluster", "kubeconfig", "story", "undo")
"""Parameters that go without a policy, or say in another way which one is meant."""

DEFAULT_RUN_DIR = str(RUN_DIR)


log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is logged.",
)


def dra_driver_option(text: str) -> Callable[[Command], Command]:
    """``--dra-driver-name``."""
    return click.option(
        "--dra-driver-name",
        "dra_driver",
        type=click.Choice(DRA_DRIVERS),
        default=DRA_DRIVERS[0],
        show_default=True,
        help=text,
    )


def output_option(*formats: str) -> Callable[[Command], Command]:
    """``-o``: the first format is the default. With ``table`` there are ``wide``, which the verb gets as
    ``table``, and ``--no-headers``; ``common_output.console`` does both.
    """
    if "table" not in formats:
        return _output_option(formats, "Output format.")
    choices = (formats[0], WIDE, *formats[1:])
    output = _output_option(choices, f"Output format; {WIDE}: all rows, and tables that are not folded.")
    headers = common_option(
        "--no-headers",
        is_flag=True,
        expose_value=False,
        callback=_remember_headers,
        help="Tables without a heading and the names of their columns.",
    )
    return lambda command: output(headers(command))


def _output_option(formats: tuple[str, ...], text: str) -> Callable[[Command], Command]:
    return common_option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        is_eager=True,
        callback=_remember_output,
        help=text,
    )


def _remember_output(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    del parameter
    ctx.meta[OUTPUT_KEY] = value
    return "table" if value == WIDE else value


def _remember_headers(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    ctx.meta[HEADERS_KEY] = not value


def machine_option(command: Command) -> Command:
    """``--machine``."""
    return common_option(
        "--machine",
        metavar="NAME|FILE",
        envvar=MACHINE_VARIABLE,
        gives_way_to=OTHER_NODES,
        shell_complete=completion.machines,
        help="Use a simulated node instead of this one: 8xa100-40gb, 4xh200-141gb+4xl40s, or a machine file "
        f"(${MACHINE_VARIABLE}).",
    )(command)


def driver_root_option(command: Command) -> Command:
    """``--driver-root``, which ``open_hardware`` finds by itself."""
    return common_option(
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


def kubelet_dir_option(command: Command) -> Command:
    """``--kubelet-dir``, read by ``kubelet_dir``."""
    return common_option(
        "--kubelet-dir",
        metavar="DIR",
        expose_value=False,
        callback=_remember_kubelet_dir,
        help=f"The kubelet's device-plugins directory ({KUBELET_DIR}; with --machine, none). While another "
        f"device plugin there offers GPUs of this node, no GPU is changed. {NO_KUBELET}: do not look.",
    )(command)


def _remember_kubelet_dir(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    del parameter
    ctx.meta[_KUBELET_DIR_KEY] = value


def kubelet_dir(machine: str | None) -> Path | None:
    """``--kubelet-dir`` of the verb that runs; None: do not look. A simulated node has none of its own."""
    ctx = click.get_current_context(silent=True)
    said = None if ctx is None else ctx.meta.get(_KUBELET_DIR_KEY)
    if said is not None:
        return None if said == NO_KUBELET else Path(said)
    return KUBELET_DIR if machine is None else None


def pod_resources_socket(text: str | None, machine: str | None) -> Path | None:
    """The PodResources socket: ``--pod-resources``, else the usual path if it exists; None: do not ask."""
    from partage.edges.kubelet.sockets import may_exist

    if text is not None:
        return None if text == NO_KUBELET else Path(text)
    return POD_RESOURCES if machine is None and may_exist(POD_RESOURCES) else None


def policy_options(command: Command) -> Command:
    """``--policy``, which may be left out, and ``--config``."""
    return policy_option("Default: every GPU is exclusive.")(config_option(command))


def policy_option(
    without: str, *, standard_input: bool = True, multiple: bool = False
) -> Callable[[Command], Command]:
    """``--policy``. without: what holds where it is left out, a sentence."""
    stdin = " Use - for standard input." if standard_input else ""
    return common_option(
        "-f",
        "--policy",
        metavar="FILE|DIR",
        multiple=multiple,
        envvar=POLICY_VARIABLE,
        gives_way_to=_OTHER_POLICIES,
        shell_complete=completion.files,
        help="Policy file: Partage's format, NVIDIA's device-plugin format or mig-parted's, or a ConfigMap "
        f"of such files. Of a directory of policies (*.yaml, *.yml, *.json), labels of the node choose one "
        f"(${POLICY_VARIABLE}).{stdin} {without}",
    )


def config_option(command: Command) -> Command:
    """``--config``, and ``--fallback`` and ``--node-labels``, which ``choice_options`` finds by itself."""
    command = common_option(
        "--config",
        metavar="NAME",
        shell_complete=completion.configurations,
        help="Name of a configuration, where the policy file has several; of a directory, the policy of "
        "nodes without a label.",
    )(command)
    command = common_option(
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
    return common_option(
        "--node-labels",
        metavar="KEY=VALUE,...|FILE",
        expose_value=False,
        callback=partial(_remember_choice, "labels"),
        may_be_empty=True,
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
    text = _said("labels")
    if text is None:
        return None
    from partage.edges.files.node_labels import read_node_labels

    return read_node_labels(text)


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
    known = [choice.value for choice in Fallback]
    for word in words:
        if word not in known:
            raise InputError(f"--fallback {word[:40]!r} is not known", f"a list of {', '.join(known)}")
    return ChoiceRules(config, tuple(map(Fallback, words)))


def directory_option(
    option: str, default: Path | None, text: str, *, metavar: str = "DIR"
) -> Callable[[Command], Command]:
    """A path that a running agent or the kubelet has. text: its help, without the default."""
    shown = f" ({default})" if default is not None else ""
    return path_option(option, default=default, metavar=metavar, help=f"{text}{shown}.")


def strict_option(command: Command) -> Command:
    """``--strict``."""
    return click.option("--strict", is_flag=True, help="Exit with code 1 also for warnings.")(command)


def state_dir_option(command: Command) -> Command:
    """``--state-dir``: where the agent and ``apply`` keep what they have to remember."""
    return common_option(
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
    return common_option(
        "--hardware-socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Socket of a running helper (partage hardware), used instead of the driver.",
    )(command)


def run_dir_option(command: Command) -> Command:
    """``--run-dir``: where a running agent writes its report."""
    return common_option(
        "--run-dir",
        metavar="DIR",
        help="Run directory of the agent, with its report and its MPS daemons "
        f"({DEFAULT_RUN_DIR}; with --machine: none).",
    )(command)

"""The command ``partage``: finds the verb, and reports every error.

A verb is the click command in the module that ``MODULES`` names (``command``, where it names none), imported
when it is called and not before: the agent does not import tables and pictures. Every PartageError is handled
here: one line per problem on stderr, and the exit code of its class. Bugs are not caught: they print a
traceback.
"""

from __future__ import annotations

import errno
import gc
import importlib
import itertools
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from partage import __version__
from partage.answers.process_start import lean_imports, umask_of_a_command

with lean_imports():
    import click

    from partage.answers.common_output import OUTPUT_KEY, print_document, print_problems
    from partage.answers.completion import COMPLETE
    from partage.errors import InputError, PartageError, Problem

GROUPS = {
    "Look": {
        "show": "Show the node: its GPUs, offers and holders, and a picture.",
        "explain": "Explain why a pod or job waits, and who holds a share.",
        "doctor": "Find what is wrong with this node, why, and what to do.",
        "web": "Show many nodes in a browser, live.",
        "assert": "Check whether the node is as the policy wants it.",
        "export": "Write the live node as a policy.",
        "labels": "Print the labels of the node, as NVIDIA names them.",
    },
    "Decide": {
        "check": "Check policies, manifests and stories before they are used.",
        "migrate": "Rewrite manifests of HAMi, Volcano, KAI or ACK with claims.",
        "plan": "Show what a policy would offer, its steps, and what blocks them.",
        "advise": "Advise how to share a GPU model for a workload, and why.",
        "fits": "Show which MIG devices fit on a GPU model, and where.",
        "rightsize": "Recommend the size of shares from what was used.",
        "machines": "List the GPU models that Partage knows, and how to name them.",
    },
    "Change": {
        "apply": "Change the node once, as a policy says, without the agent.",
        "rollout": "Show how a policy reaches the nodes of a cluster; pause, resume.",
        "cordon": "Keep new containers off a GPU; those with shares stay.",
        "uncordon": "Let new containers use a cordoned GPU again.",
        "free": "Free a share that a process of its former pod keeps.",
        "takeover": "Replace NVIDIA's device plugin by Partage, while pods run.",
        "handback": "Return to NVIDIA's device plugin, while pods run.",
    },
    "Run": {
        "agent": "Run the node: offer its GPUs to the kubelet, as the policy says.",
        "scheduler": "Tell kube-scheduler which nodes waste least of the GPUs.",
        "admission": "Let pods of other systems in as pods with claims.",
        "slurm": "Write and check Slurm's GPU files, and serve its jobs.",
    },
    "Prove": {
        "simulate": "Play a story of pods against the agent, on a simulated node.",
        "prove": "Try to break what shares guarantee, and report the result.",
        "bench": "Measure what sharing a GPU costs and gives.",
        "record": "Write this node to a machine file for the simulation.",
    },
    "About partage": {
        "help": "Show the help of a verb.",
        "version": "Print the version.",
        "completion": "Print the script with which a shell completes partage.",
    },
}
"""The verbs of the help, by what they are for."""

HIDDEN = {
    "inspect": "Show who holds GPU memory, as show --memory does.",
    "hardware": "The agent's privileged helper; the agent starts it itself.",
}
"""Verbs that the help does not list: a former name, and what no person starts."""

VERBS = {name: does for verbs in (*GROUPS.values(), HIDDEN) for name, does in verbs.items()}

MODULES = {
    "show": "partage.cli.show",
    "web": "partage.web.verb",
    "plan": "partage.cli.plan",
    "fits": "partage.packing.verb_fits",
    "apply": "partage.cli.apply",
    "assert": "partage.cli.assertion",
    "export": "partage.cli.export",
    "labels": "partage.cli.labels",
    "cordon": "partage.cli.cordon",
    "uncordon": "partage.cli.cordon:uncordon",
    "free": "partage.cli.free",
    "inspect": "partage.cli.inspect",
    "explain": "partage.explain.verb",
    "advise": "partage.advise.verb",
    "rightsize": "partage.rightsize.verb",
    "rollout": "partage.kubernetes.verb_rollout",
    "check": "partage.cli.check",
    "migrate": "partage.cli.migrate",
    "doctor": "partage.doctor.verb",
    "takeover": "partage.kubernetes.verb_takeover",
    "handback": "partage.kubernetes.verb_handback",
    "simulate": "partage.cli.simulate",
    "bench": "partage.lab.bench.verb",
    "prove": "partage.lab.prove.verb",
    "scheduler": "partage.scheduler.verb",
    "admission": "partage.admission.verb",
    "slurm": "partage.slurm.verb",
    "machines": "partage.cli.machines",
    "record": "partage.cli.record",
    "agent": "partage.cli.agent",
    "hardware": "partage.cli.hardware",
    "completion": "partage.answers.completion",
    "help": "partage.cli.about:show_help",
    "version": "partage.cli.about:version",
}
"""The module of each verb, and its command there, where that is not called ``command``."""

_AT_ONCE = "agent"
"""It ends as the short ones do, as soon as all is written: a kubelet or a supervisor waits for its end."""

_SHORT = frozenset({"show", "plan", "apply", "assert", "export", "check", "doctor", "record", "slurm"})
"""Verbs that are over in a moment. Most of their work is to import modules, and then to free them."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a write to a full or broken disk fails with."""

INTERRUPTED = 130
PIPE_CLOSED = 141


class VerbGroup(click.Group):
    """The group of all verbs, none of them imported before it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [name for name in VERBS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in VERBS:
            return None
        with lean_imports():
            import hashlib  # noqa: F401 - most verbs use it, none of them OpenSSL's functions

            module, _, name = MODULES[cmd_name].partition(":")
            verb: click.Command = getattr(importlib.import_module(module), name or "command")
        return verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            raise unknown_verb(name, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs by groups, without importing one; the second columns of all groups stand in one line."""
        del ctx
        widest = max(map(len, VERBS)) + 2
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{widest - 2}}", does) for name, does in verbs.items()])


def unknown_verb(name: str, ctx: click.Context) -> click.UsageError:
    """The error for a verb that does not exist."""
    return click.UsageError(f"there is no verb {name!r}{_nearest(name)}", ctx)


def _nearest(name: str) -> str:
    import difflib  # 4 ms, only after a typing error

    shown = [verb for verb in VERBS if verb not in HIDDEN]
    near = difflib.get_close_matches(name, shown, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; the verbs are {', '.join(shown)}"


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="VERB [OPTIONS]",
    epilog="Without a GPU: partage show --machine 8xh100-sxm5-80gb. Every verb that looks at a node takes "
    "--machine and uses a simulated node then, except bench, which needs a real GPU.",
)
@click.version_option(__version__, "-V", "--version", message=f"partage {__version__}")
def partage() -> None:
    """Share the NVIDIA GPUs of a node, each GPU in its own way.

    Answers go to stdout, everything else to stderr. Exit codes: 0 done or true, 1 false, 2 the input is
    wrong, 3 understood but impossible here, 4 hardware or daemon, 5 cluster.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit the process with its code."""
    umask_of_a_command()
    # Python has None for a stream that was closed (``>&-``).
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETE in os.environ:
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(partage, {}, "partage", COMPLETE, os.environ[COMPLETE]))
    verb = given[0] if given else ""
    if verb not in _SHORT and verb != _AT_ONCE:
        sys.exit(run(given))
    if verb in _SHORT:
        gc.set_threshold(50_000)  # imports make no garbage: 10 ms
    code = run(given)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)  # without freeing 500 modules one by one: 25 ms


def run(arguments: list[str]) -> int:
    """Run the command; the exit code."""
    # Options that were parsed (``-o json``) outlive the parser: errors are written in the same format.
    meta: dict[str, object] = {}
    try:
        code = _invoke(arguments, meta)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()  # the reader has ended (``| head``)
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _drop_output()
        print_problems([Problem("", "", "error", f"standard output cannot be written: {error.strerror}")])
        return InputError.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    return code


def _drop_output() -> None:
    """What is still to be written goes nowhere. Python would fail with it again when it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command_name(program: str) -> str:
    """What people type to start this program: kubectl runs ``kubectl-NAME`` as ``kubectl NAME``."""
    return "kubectl partage" if Path(program).name == "kubectl-partage" else "partage"


def _invoke(arguments: list[str], meta: dict[str, object]) -> int:
    try:
        with partage.make_context(command_name(sys.argv[0]), arguments) as ctx:
            try:
                result = partage.invoke(ctx)
            finally:
                meta.update(ctx.meta)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except SystemExit as leaving:  # the helper reads its options without click
        return leaving.code if isinstance(leaving.code, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_:
        click.echo(help_.format_message())
        return 0
    except click.ClickException as error:
        problems = [_usage_problem(error)]
        print_problems(problems)
        # The parser stops at the first wrong option, before it has noted the others.
        meta.setdefault(OUTPUT_KEY, _output_in(arguments))
        _answer_in_kind(problems, meta)
        return InputError.exit_code
    except PartageError as error:
        print_problems(error.problems)
        _answer_in_kind(error.problems, meta)
        return error.exit_code


def _usage_problem(error: click.ClickException) -> Problem:
    """A wrong use of the command line, said as every other problem."""
    from partage.answers.verb import usage_message

    ctx = getattr(error, "ctx", None)
    hint = "" if ctx is None else f"{ctx.command_path} --help shows how to use it"
    return Problem("", "", "error", usage_message(error), hint)


def _output_in(arguments: Sequence[str]) -> str:
    """The value of ``-o``, if it is an argument of its own."""
    return next((word for option, word in itertools.pairwise(arguments) if option in ("-o", "--output")), "")


def _answer_in_kind(problems: Sequence[Problem], meta: dict[str, object]) -> None:
    """With ``-o json`` or ``yaml``, an error is a document too."""
    output = meta.get(OUTPUT_KEY)
    if output in ("json", "yaml"):
        from partage.answers.documents.document import ProblemsDocument

        print_document(ProblemsDocument(problems=tuple(problems)), str(output))

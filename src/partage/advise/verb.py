"""``partage advise``: which strategy fits a GPU and its workload, with the policy and the reasons."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from partage.advise.decide.situation import MOST_TENANTS, Asked, Isolation, Preference, Scheduler, Workload
from partage.answers import common_options, common_output
from partage.answers.verb import verb
from partage.errors import InputError, PartageError, Problem, Unsatisfiable

if TYPE_CHECKING:
    from partage.advise.decide.advise import ModelAdvice
    from partage.advise.decide.situation import GpuFacts
    from partage.advise.text import AdviceDocument


def _words(kind: Any) -> click.Choice[str]:  # noqa: ANN401 - a kind of StrEnum
    return click.Choice([choice.value for choice in kind])


@verb("advise")
@click.option(
    "--gpu", "gpus", metavar="MODEL", multiple=True, help="GPU model, such as h100-sxm5-80gb; repeatable."
)
@click.option(
    "--isolation", type=_words(Isolation), help="What tenants of one GPU must not take from each other."
)
@click.option("--tenants", type=click.IntRange(1, MOST_TENANTS), metavar="N", help="How many share one GPU.")
@click.option("--workload", type=_words(Workload), help="What the tenants run.")
@click.option("--virtualised/--not-virtualised", default=None, help="The tenants are in virtual machines.")
@click.option("--licensed/--not-licensed", default=None, help="There is a licence for NVIDIA's vGPUs.")
@click.option("--scheduler", type=_words(Scheduler), help="What places the tenants.")
@click.option(
    "--memory",
    metavar="AMOUNT",
    multiple=True,
    help="GPU memory that each tenant needs: 8Gi; repeated: one tenant for each amount.",
)
@click.option("--prefer", type=_words(Preference), help="What counts more.")
@click.option("--bursty/--steady", default=None, help="The tenants are idle most of the time, or are not.")
@click.option("--driver", metavar="VERSION", help="Version of the NVIDIA driver, such as 580.95.05.")
@click.option("--workload-file", metavar="FILE", help="The same keys in a YAML file; options override it.")
@click.option("--path", metavar="FILE", help="Also draw how it was decided: .mmd (Mermaid) or .svg.")
@common_options.output_option("table", "json", "yaml", "policy")
def command(workload_file: str | None, path: str | None, output: str, **options: Any) -> None:  # noqa: ANN401
    """Advise how to share a GPU model for a workload, and why.

    The answer has a strategy, a policy for partage apply, what each tenant is guaranteed, reasons for and
    against, the other strategies from best to worst, what was assumed, and the questions that decided. The
    policy has been tried on a simulated GPU of the model.

    In a terminal it asks for what is not given. Elsewhere it assumes a value, and says so; only --gpu is
    needed. With several models, the tenants share one GPU of each.

    Exit code 2: an option or the file is wrong; 3: no strategy gives the tenants what they need.
    """
    if path is not None:
        from partage.advise.text import check_path_name

        check_path_name(path)
    asked = _asked(workload_file, options)
    if sys.stdin.isatty() and workload_file != "-":
        from partage.advise.dialogue import ask_missing

        asked = ask_missing(asked)
    if not asked.gpu:
        raise click.UsageError("--gpu is missing: which GPU model is it? partage machines lists them")
    found = _advice(asked)
    from partage.advise.text import advice_document

    document = advice_document(found)
    if path is not None:
        from partage.advise.text import path_file

        common_output.write_file(path, path_file(document.models, path))
    if output == "table":
        _print(document)
    elif output == "policy":
        _print_policy(document)
    else:
        common_output.print_document(document, output)


def _asked(workload_file: str | None, options: dict[str, Any]) -> Asked:
    """The file, with the options over it. Raises InputError."""
    from msgspec.structs import replace

    from partage.units import parse_gpu_memory

    asked = Asked()
    if workload_file is not None:
        from partage.advise.dialogue import read_asked

        asked = read_asked(workload_file)
    kinds = {"isolation": Isolation, "workload": Workload, "scheduler": Scheduler, "prefer": Preference}
    said: dict[str, Any] = {
        name: kinds[name](value) if name in kinds else value
        for name, value in options.items()
        if value is not None and name not in ("gpus", "memory")
    }
    if options["gpus"]:
        said["gpu"] = tuple(options["gpus"])
    if options["memory"]:
        try:
            said["memory"] = tuple(map(parse_gpu_memory, options["memory"]))
        except ValueError as error:
            raise InputError(f"--memory: {error}", "--memory 8Gi") from error
    return replace(asked, **said)


def _advice(asked: Asked) -> list[ModelAdvice]:
    """The advice for each model. Raises Unsatisfiable with the problems of all models."""
    from partage.advise.decide.advise import advise

    found: list[ModelAdvice] = []
    problems: list[Problem] = []
    for facts in _facts(asked):
        try:
            found.append(advise(asked, facts))
        except Unsatisfiable as error:
            problems += error.problems
    if problems:
        raise Unsatisfiable(problems)
    return found


def _facts(asked: Asked) -> list[GpuFacts]:
    """The models, each once. Raises InputError with all names that are wrong."""
    from partage.advise.gpu import gpu_facts

    facts: dict[str, GpuFacts] = {}
    problems: list[Problem] = []
    for name in asked.gpu:
        try:
            one = gpu_facts(name, asked.driver)
            facts.setdefault(one.model, one)
        except PartageError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return list(facts.values())


def _print(document: AdviceDocument) -> None:
    from rich.text import Text

    from partage.advise.text import advice_lines

    console = common_output.console()
    for number, model in enumerate(document.models):
        if number:
            console.print()
        for line, style in advice_lines(model):
            console.print(line, style=style)
    console.print()
    console.print("The policy", style="bold")
    console.print(Text(_yaml(document)), end="")


def _print_policy(document: AdviceDocument) -> None:
    """The policy on stdout, what is to be known about it on stderr."""
    from partage.advise.text import WAYS, share_sentence

    for model in document.models:
        common_output.say(f"{model.product}: {WAYS[model.strategy]}. {share_sentence(model)}", err=True)
    common_output.say_lines(_yaml(document))


def _yaml(document: AdviceDocument) -> str:
    import yaml

    policy: str = yaml.safe_dump(dict(document.policy), sort_keys=False, default_flow_style=None, width=110)
    return policy

"""The questions that ``advise`` asks in a terminal, for what was not given. They go to stderr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from msgspec.structs import replace

from partage.errors import InputError
from partage.faces.advised_gpu import gpu_facts
from partage.plan.advise.situation import MOST_TENANTS, USUAL_TENANTS, Asked, Isolation, Scheduler, Workload


def ask_missing(asked: Asked) -> Asked:
    """``asked`` with an answer to each main question. Enter takes the value in brackets."""
    said: dict[str, Any] = {}
    if not asked.gpu:
        said["gpu"] = _models()
    if asked.workload is None:
        said["workload"] = Workload(_choice("What do the tenants run", [one.value for one in Workload]))
    workload = asked.workload or said["workload"]
    if asked.isolation is None:
        words = [one.value for one in reversed(Isolation)]
        said["isolation"] = Isolation(_choice("What isolation do they need from each other", words))
    if asked.tenants is None:
        kind = click.IntRange(1, MOST_TENANTS)
        text = "How many tenants share one GPU"
        said["tenants"] = click.prompt(text, USUAL_TENANTS[workload], type=kind, err=True)
    if asked.virtualised is None:
        said["virtualised"] = click.confirm("Are they in virtual machines", default=False, err=True)
    if asked.licensed is None and (asked.virtualised or said.get("virtualised")):
        said["licensed"] = click.confirm("Is there a licence for NVIDIA's vGPUs", default=False, err=True)
    if asked.scheduler is None:
        said["scheduler"] = Scheduler(_choice("What places them", [one.value for one in Scheduler]))
    return replace(asked, **said)


def _choice(text: str, words: Sequence[str]) -> str:
    answer: str = click.prompt(text, words[0], type=click.Choice(words), err=True)
    return answer


def _models() -> tuple[str, ...]:
    """The models, of which each name is known."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            try:
                gpu_facts(name, None)
            except InputError as error:
                raise click.BadParameter(str(error.problems[0])) from error
        if not names:
            raise click.BadParameter("a name is needed")
        return names

    models: tuple[str, ...] = click.prompt(
        "Which GPU model (several with commas; partage machines lists them)", value_proc=read, err=True
    )
    return models

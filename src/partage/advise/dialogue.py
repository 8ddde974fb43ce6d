"""What ``partage advise`` is asked beside its options: in a file, whose keys are those of the options, or by
questions in a terminal, on stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from msgspec.structs import replace

from partage.advise.decide.situation import (
    MOST_TENANTS,
    Asked,
    Isolation,
    Scheduler,
    Workload,
    tenants_of,
    usual_tenants,
)
from partage.advise.gpu import gpu_facts
from partage.codec.fields import Dialect, Field, Notes
from partage.codec.reader import Reader, number, one_or_many, parsed
from partage.codec.yaml_document import read_document
from partage.edges.files.input_file import read_input
from partage.errors import PartageError
from partage.units import parse_gpu_memory

ASKED = Reader(
    Asked,
    reads={
        "gpu": one_or_many(Field.some_text),
        "tenants": number(1, MOST_TENANTS),
        "memory": one_or_many(parsed(parse_gpu_memory, "8Gi")),
        "driver": Field.some_text,
    },
)


def read_asked(name: str) -> Asked:
    """The file, standard input for ``-``. Raises InputError with all problems."""
    notes = Notes(read_document(read_input(name), name), name, Dialect())
    asked = ASKED.read(notes.top())
    notes.finish()
    return asked or Asked()


def ask_missing(asked: Asked) -> Asked:
    """``asked`` with an answer to each main question. Enter takes the value in brackets.

    Raises InputError where there are not as many tenants as amounts of memory.
    """
    tenants_of(asked)  # before the first question, not after the last one
    said: dict[str, Any] = {}
    if not asked.gpu:
        said["gpu"] = _models()
    if asked.workload is None:
        said["workload"] = Workload(_choice("What do the tenants run", [named.value for named in Workload]))
    workload = asked.workload or said["workload"]
    if asked.isolation is None:
        words = [level.value for level in reversed(Isolation)]
        said["isolation"] = Isolation(_choice("What isolation do they need from each other", words))
    if tenants_of(asked) is None:
        kind = click.IntRange(1, MOST_TENANTS)
        text = "How many tenants share one GPU"
        isolation = asked.isolation or said["isolation"]
        models = asked.gpu or said["gpu"]
        usual = min(usual_tenants(workload, isolation, gpu_facts(name, None).geometry) for name in models)
        said["tenants"] = click.prompt(text, usual, type=kind, err=True)
    if not asked.memory:
        said["memory"] = _memory()
    if asked.bursty is None:
        usually = workload is Workload.NOTEBOOKS
        said["bursty"] = click.confirm("Are they idle most of the time", default=usually, err=True)
    if asked.virtualised is None:
        said["virtualised"] = click.confirm("Are they in virtual machines", default=False, err=True)
    if asked.licensed is None and (asked.virtualised or said.get("virtualised")):
        said["licensed"] = click.confirm("Is there a licence for NVIDIA's vGPUs", default=False, err=True)
    if asked.scheduler is None:
        said["scheduler"] = Scheduler(
            _choice("What places them", [scheduler.value for scheduler in Scheduler])
        )
    return replace(asked, **said)


def _choice(text: str, words: Sequence[str]) -> str:
    answer: str = click.prompt(text, words[0], type=click.Choice(words), err=True)
    return answer


def _memory() -> tuple[int, ...]:
    """What each tenant needs; nothing: an equal part is enough."""

    def read(text: str) -> tuple[int, ...]:
        try:
            return (parse_gpu_memory(text),) if text.strip() else ()
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    text = "How much GPU memory does each need, such as 8Gi (Enter: an equal part is enough)"
    amounts: tuple[int, ...] = click.prompt(text, "", value_proc=read, show_default=False, err=True)
    return amounts


def _models() -> tuple[str, ...]:
    """The models, of which each name is known."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            try:
                gpu_facts(name, None)
            except PartageError as error:
                raise click.BadParameter(str(error.problems[0])) from error
        if not names:
            raise click.BadParameter("a name is needed")
        return names

    models: tuple[str, ...] = click.prompt(
        "Which GPU model (several with commas; partage machines lists them)", value_proc=read, err=True
    )
    return models

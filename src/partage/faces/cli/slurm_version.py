"""``--slurm-version``, and the version of the Slurm that is installed here."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any, TypeVar

import click

from partage.errors import InputError, Problem
from partage.model.slurm import SlurmVersion

Command = TypeVar("Command", bound=Callable[..., Any])

_DEADLINE_S = 10


def slurm_version_option(command: Command) -> Command:
    """``--slurm-version``."""
    return click.option(
        "--slurm-version", metavar="VERSION", help="Of the cluster: 22.05.8, 24.11. Default: ask scontrol."
    )(command)


def version_of(text: str | None) -> SlurmVersion:
    """The version in ``text``; None: that of scontrol. Raises InputError."""
    where = "--slurm-version"
    if text is None:
        where, text = "scontrol --version", _said_here()
    try:
        return SlurmVersion.parse(text)
    except ValueError as error:
        raise InputError([Problem(where, "", "error", str(error))]) from error


def _said_here() -> str:
    scontrol = shutil.which("scontrol")
    try:
        if scontrol is not None:
            said = subprocess.run(  # noqa: S603 - nothing of it comes from outside
                [scontrol, "--version"], capture_output=True, text=True, timeout=_DEADLINE_S, check=True
            )
            return said.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    raise InputError(
        "which version of Slurm is it for? There is no scontrol here that could say it",
        "name it: --slurm-version 24.11.5",
    )

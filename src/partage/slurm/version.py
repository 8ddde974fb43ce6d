"""``--slurm-version``, and the version of the Slurm that is installed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from partage.errors import ClusterError, InputError, Problem, Unsatisfiable
from partage.slurm.model.version import SlurmVersion

Command = TypeVar("Command", bound=Callable[..., Any])


def slurm_version_option(command: Command) -> Command:
    """``--slurm-version``."""
    return click.option(
        "--slurm-version",
        metavar="VERSION",
        help="Of the cluster: 22.05.8, 24.11. Default: that of this host.",
    )(command)


def version_of(text: str | None) -> SlurmVersion:
    """The version in ``text``; None: that of scontrol. Raises InputError."""
    if text is None:
        return _said_here()
    try:
        return SlurmVersion.parse(text)
    except ValueError as error:
        raise InputError([Problem("--slurm-version", "", "error", str(error))]) from error


def _said_here() -> SlurmVersion:
    from partage.slurm.host.control import SlurmControl

    try:
        return SlurmControl().version()
    except (ClusterError, Unsatisfiable) as error:
        raise InputError(
            f"which version of Slurm is it for? It cannot be seen here: {error}",
            "name it: --slurm-version 24.11.5",
        ) from error

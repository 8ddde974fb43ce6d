"""``--slurm-version`` and ``--slurm-bin``, and the version of the Slurm that is installed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from partage.answers.verb import path_option
from partage.errors import ClusterError, InputError, Unsatisfiable, wrong_input

if TYPE_CHECKING:
    from partage.slurm.model import SlurmVersion

Command = TypeVar("Command", bound=Callable[..., Any])


def slurm_version_option(
    text: str = "Of the cluster: 22.05.8, 24.11. Default: that of this host.",
) -> Callable[[Command], Command]:
    """``--slurm-version``."""
    return click.option("--slurm-version", metavar="VERSION", help=text)


def slurm_bin_option(text: str = "The directory of scontrol.") -> Callable[[Command], Command]:
    """``--slurm-bin``: where Slurm's programs are."""
    return path_option(
        "--slurm-bin",
        metavar="DIR",
        help=f"{text} Default: the usual ones.",
    )


def version_of(text: str | None) -> SlurmVersion:
    """The version in ``text``; None: that of scontrol. Raises InputError."""
    if text is None:
        return _said_here()
    from partage.slurm.model import SlurmVersion

    try:
        return SlurmVersion.parse(text)
    except ValueError as error:
        raise wrong_input("--slurm-version", str(error)) from error


def _said_here() -> SlurmVersion:
    from partage.slurm.host.control import SlurmControl

    try:
        return SlurmControl().version()
    except (ClusterError, Unsatisfiable) as error:
        raise InputError(
            f"which version of Slurm is it for? It cannot be seen here: {error}",
            "name it: --slurm-version 24.11.5",
        ) from error

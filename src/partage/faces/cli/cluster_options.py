"""How verbs reach a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.faces.cli.common_options import Command

if TYPE_CHECKING:
    from collections.abc import Callable

    from partage.edges.kube.config import ClusterConfig

_HOW = "in a pod the pod's account, else ~/.kube/config"


def kubeconfig_option(when: str = "") -> Callable[[Command], Command]:
    """``--kubeconfig``. when: in which case it counts, the beginning of a sentence."""
    text = f"{when}how to reach the cluster ({_HOW})." if when else f"How to reach the cluster ({_HOW})."
    return click.option("--kubeconfig", metavar="FILE", envvar="KUBECONFIG", help=text)


def cluster_of(kubeconfig: str | None) -> ClusterConfig:
    """The cluster of this file; without one that of ``KUBECONFIG``, of the pod, or of ``~/.kube/config``.

    Raises InputError.
    """
    from partage.edges.kube.config import from_kubeconfig, in_cluster

    named = kubeconfig or os.environ.get("KUBECONFIG")
    if not named and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(os.environ)
    return from_kubeconfig(Path(named or "~/.kube/config").expanduser())

"""How verbs reach a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from partage.answers.process_start import lean_imports
from partage.answers.verb import Command, common_option
from partage.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from partage.edges.kube.config import ClusterConfig
    from partage.edges.kube.reading import ClusterReader

T = TypeVar("T")
_DEFAULT = "~/.kube/config"
_HOW = "in a pod the pod's account, else ~/.kube/config"


def kubeconfig_option(when: str = "") -> Callable[[Command], Command]:
    """``--kubeconfig``. when: in which case it counts, the beginning of a sentence."""
    text = f"{when}how to reach the cluster ({_HOW})." if when else f"How to reach the cluster ({_HOW})."
    return common_option("--kubeconfig", metavar="FILE", envvar="KUBECONFIG", help=text)


def cluster_of(kubeconfig: str | None) -> ClusterConfig:
    """The cluster of this file; without one that of ``KUBECONFIG``, of the pod, or of ``~/.kube/config``.

    Raises InputError.
    """
    from partage.edges.kube.config import from_kubeconfig, in_cluster

    named = kubeconfig or os.environ.get("KUBECONFIG")
    if not named and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(os.environ)
    path = Path(named or _DEFAULT).expanduser()
    if not path.exists():
        if named and os.pathsep in named:
            raise InputError(f"KUBECONFIG names several files: {named}", "name one with --kubeconfig FILE")
        raise InputError(
            f"there is no kubeconfig {str(path)!r}", "name one with --kubeconfig FILE, or set KUBECONFIG"
        )
    return from_kubeconfig(path)


def ask_cluster(kubeconfig: str | None, question: Callable[[ClusterReader], Coroutine[Any, Any, T]]) -> T:
    """Ask the API server of ``cluster_of``. Raises ClusterError, InputError."""
    with lean_imports(tls=True):
        import asyncio

        from partage.edges.kube.connection import Connection
        from partage.edges.kube.reading import ClusterReader

    config = cluster_of(kubeconfig)
    return asyncio.run(question(ClusterReader(Connection(config))))

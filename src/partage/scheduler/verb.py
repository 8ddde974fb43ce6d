"""``partage scheduler``: an extender of kube-scheduler."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from partage.answers.cluster_options import cluster_of, kubeconfig_option
from partage.answers.common_options import dra_driver_option, log_level_option
from partage.answers.process_start import lean_imports
from partage.answers.verb import verb
from partage.errors import missing_library
from partage.serve_http.options import http_option, http_options, http_protection

if TYPE_CHECKING:
    from partage.scheduler.service import ExtenderService

_SWITCH_S = 0.0005
"""After so long the thread that makes tables gives way to an answer, in place of 5 ms."""


@verb("scheduler")
@kubeconfig_option()
@click.option(
    "--policy",
    type=click.Choice(["ssp", "bestfit", "spread"]),
    default="ssp",
    show_default=True,
    help="ssp: so that little of the GPUs is wasted for pods to come; bestfit: the fullest node that the pod "
    "fits on; spread: the emptiest.",
)
@dra_driver_option("Name of the DRA driver whose devices count, as that of the agents.")
@http_option("Where kube-scheduler asks.", "127.0.0.1:9402")
@http_protection
@log_level_option
def command(*, kubeconfig: str | None, policy: str, dra_driver: str, http: str, log_level: str) -> None:
    """Tell kube-scheduler which nodes are best for a pod, so that less of the GPUs is wasted.

    An HTTP extender that only prioritizes: it removes no node, binds no pod and writes nothing. What it knows
    comes from watches of nodes, pods, ResourceSlices, ResourceClaims and DeviceClasses. Several can run at
    once, and while none runs kube-scheduler goes on by itself (ignorable: true). Amounts of a GPU are seen
    for claims only; of what a device plugin serves, units are counted. Runs until Ctrl-C.

    kube-scheduler has no token to send: --http-client-ca is for it, a token for who reads /metrics.
    """
    if policy == "ssp" and find_spec("numpy") is None:
        raise missing_library("--policy ssp", "numpy", "numpy", "--policy bestfit needs none")
    with lean_imports(tls=True):
        import asyncio  # with TLS, before others import it without (answers.process_start)
    import gc
    import sys

    from partage.agent import log
    from partage.edges.kube.connection import Connection
    from partage.scheduler.decide.node_scores import ExtenderPolicy
    from partage.scheduler.extender import Extender
    from partage.scheduler.service import ExtenderService

    # Nearly nothing is garbage that has to be looked for.
    gc.set_threshold(50_000, 20, 50)
    log.configure(log.LogOptions(log_level))
    sys.setswitchinterval(_SWITCH_S)
    service = ExtenderService(
        Connection(cluster_of(kubeconfig)), Extender(ExtenderPolicy(policy), dra_driver)
    )
    asyncio.run(_serve(service, http))


async def _serve(service: ExtenderService, http: str) -> None:
    from partage.scheduler.service import PRIORITIZE
    from partage.serve_http.http_access import HttpAccess
    from partage.serve_http.serving import serve_while

    access = HttpAccess(http_options())
    await serve_while(service.run(), http, service.pages(), access, (PRIORITIZE,))

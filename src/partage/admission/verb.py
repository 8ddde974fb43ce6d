"""``partage admission``: the webhook that lets pods of other systems in as pods with claims."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from partage.admission.options import GPU_MEM_UNITS, gpu_mem_unit_option
from partage.answers.cluster_options import cluster_of, kubeconfig_option
from partage.answers.common_options import log_level_option
from partage.answers.process_start import lean_imports
from partage.answers.verb import path_option, verb
from partage.errors import InputError, missing_library
from partage.serve_http.options import http_option, http_options, http_protection

if TYPE_CHECKING:
    from partage.admission.decide.settings import DialectSettings
    from partage.admission.service import AdmissionParts
    from partage.edges.kube.config import ClusterConfig
    from partage.serve_http.http_access import HttpOptions

_AUTO = "auto"
_CLIENTS = 256
_LINGER_S = 5.0
"""So long after a signal requests still come: API servers hear a moment later that this one ends."""


@verb("admission")
@kubeconfig_option()
@click.option(
    "--name",
    default="partage-admission",
    show_default=True,
    metavar="NAME",
    help="Of the webhook's configuration, its Service and its Lease (with --http-cert: NAME-files); with "
    "-tls, of its Secret.",
)
@click.option("--namespace", metavar="NAMESPACE", help="Of the last three.  [default: that of the account]")
@path_option(
    "--ca",
    help="With --http-cert: who signed it. The API server is told to trust it.",
)
@click.option(
    "--keep-scheduler",
    "schedulers",
    multiple=True,
    default=(_AUTO,),
    show_default=True,
    metavar="auto|none|NAME",
    help="Schedulers of these systems with which pods stay: NAME; auto: those of which the cluster has a "
    "Deployment or a Lease; none. Can be repeated.",
)
@click.option(
    "--hami",
    multiple=True,
    metavar="KEY=VALUE",
    help="A line of the part nvidia of HAMi's device-config.yaml, as resourceMemoryName=example.com/mem; can "
    "be repeated.",
)
@click.option(
    "--uncounted-quota",
    type=click.Choice(["refuse", "warn"]),
    default="refuse",
    show_default=True,
    help="What becomes of a pod whose namespace has a ResourceQuota on what the pod asks for, and none that "
    "counts its claims.",
)
@gpu_mem_unit_option
@http_option("Where the API server asks.", "127.0.0.1:9403")
@http_protection
@log_level_option
def command(
    *,
    kubeconfig: str | None,
    name: str,
    namespace: str | None,
    ca: Path | None,
    schedulers: tuple[str, ...],
    hami: tuple[str, ...],
    uncounted_quota: str,
    gpu_mem_unit: str,
    http: str,
    log_level: str,
) -> None:
    """Let pods for HAMi, Volcano, KAI, Run:ai, ACK, nos and GKE in as pods with claims of the same meaning.

    A mutating admission webhook. Pods that ask in no other system's words never come here, nor do those with
    nvidia.com/gpu alone. What cannot be meant, or has no place on any node, is refused with a sentence.
    Templates are made before the pod, and deleted when no pod names them. Several can run at once: one of
    them leads. Without --http-cert it makes its own certificate, keeps it in a Secret, renews it, and tells
    the API server whom to trust. Runs until Ctrl-C.

    The API server shows a token or certificate only if its own configuration says so: --http-token-file and
    --http-client-ca are for that.
    """
    with lean_imports(tls=True):
        import asyncio  # with TLS, before others import it without (answers.process_start)

    from partage.agent import log

    options = http_options()
    if options.cert is None and find_spec("cryptography") is None:
        raise missing_library(
            "a certificate of its own",
            "cryptography",
            "partage[admission]",
            "--http-cert FILE and --http-key FILE need none",
        )
    if ca is not None and options.cert is None:
        raise InputError("--ca is for --http-cert", "give --http-cert and --http-key, or no --ca")
    log.configure(log.LogOptions(log_level))
    cluster = cluster_of(kubeconfig)
    settings = settings_of_options(hami, GPU_MEM_UNITS[gpu_mem_unit])
    place = name, namespace or cluster.namespace
    keeps_own = options.cert is None
    parts = _parts(cluster, place, settings, frozenset(schedulers), keeps_own=keeps_own)
    refuses = uncounted_quota == "refuse"
    asyncio.run(_serve(replace(parts, ca=ca, refuses_uncounted=refuses), options, http))


def settings_of_options(hami: Iterable[str], unit_bytes: int) -> DialectSettings:
    """hami: ``KEY=VALUE``. unit_bytes: of ``aliyun.com/gpu-mem``. Raises InputError."""
    from partage.admission.decide.settings import DialectSettings, with_hami_config
    from partage.codec.yaml_document import read_document

    section: dict[str, Any] = {}
    for text in hami:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--hami {text!r} is not KEY=VALUE", "for example --hami memoryFactor=1")
        section[key] = read_document(value.encode(), "--hami").value
    return with_hami_config(replace(DialectSettings(), gpu_mem_bytes=unit_bytes), {"nvidia": section})


def _parts(
    cluster: ClusterConfig,
    place: tuple[str, str],
    settings: DialectSettings,
    schedulers: frozenset[str],
    *,
    keeps_own: bool,
) -> AdmissionParts:
    """place: name and namespace. keeps_own: it makes its own certificate."""
    from partage.admission.service import AdmissionParts
    from partage.admission.state import AdmissionState
    from partage.admission.templates import PodTemplates
    from partage.edges.kube.cluster import ApiCluster
    from partage.edges.kube.election import Election
    from partage.edges.kube.webhooks import WebhookObjects

    api = ApiCluster(cluster)
    name, namespace = place
    objects = WebhookObjects(api.connection, namespace, name)
    keeper = None
    if keeps_own:
        from partage.admission.certificates import CertificateKeeper

        keeper = CertificateKeeper(objects, server_names(name, namespace))
    holder = f"{socket.gethostname()}_{os.urandom(4).hex()}"
    return AdmissionParts(
        api.connection,
        objects,
        name,
        AdmissionState(settings, schedulers - {_AUTO, "none"}),
        PodTemplates(api.connection),
        # While pods with the one kind of certificate replace those with the other, each kind has its leader:
        # who reads files makes no certificate, and who waits for one is not ready.
        Election(api, namespace, name if keeps_own else f"{name}-files", holder),
        keeper,
        looks=_AUTO in schedulers,
    )


def server_names(name: str, namespace: str) -> tuple[str, ...]:
    """Under which a Service is asked; the API server uses the first."""
    return f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local", f"{name}.{namespace}"


async def _serve(parts: AdmissionParts, options: HttpOptions, http: str) -> None:
    from partage.admission.service import AdmissionService
    from partage.admission.webhook import MUTATE
    from partage.serve_http.http_access import HttpAccess
    from partage.serve_http.serving import serve_while

    service = AdmissionService(parts)
    own = frozenset(server_names(*parts.objects.service))
    access = HttpAccess(options, own, parts.keeper.tls if parts.keeper is not None else None)
    await serve_while(
        service.run(),
        http,
        service.pages(),
        access,
        (MUTATE,),
        most_clients=_CLIENTS,
        linger_s=_LINGER_S,
    )

"""What the kubelet says that containers hold."""

from __future__ import annotations

from pathlib import Path

from partage.errors import Unreachable
from partage.model.claim import ClaimHold
from partage.model.share import ContainerHold
from partage.values import Frozen

_ASKED_S = 2.0


class KubeletHolds(Frozen):
    """Ids of device plugins, and claims, of all containers."""

    containers: tuple[ContainerHold, ...]
    claims: tuple[ClaimHold, ...]


def kubelet_holds(pod_resources: Path) -> KubeletHolds | None:
    """Asks PodResources. None: nobody says it."""
    from partage.answers.lean_imports import lean_imports

    with lean_imports():
        import asyncio

        from partage.edges.kubelet.pod_resources import PodResourcesClient

    async def ask() -> KubeletHolds:
        client = PodResourcesClient(pod_resources, timeout_s=_ASKED_S)
        try:
            return KubeletHolds(tuple(await client.held()), client.claims)
        finally:
            client.close()

    try:
        return asyncio.run(ask())
    except Unreachable:
        return None

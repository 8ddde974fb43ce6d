"""The kubelet's directories and sockets, how it makes cgroups, and what it says that containers hold."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from partage.codec.yaml_document import read_document
from partage.doctor.decide.observation import Kubelet, Unseen
from partage.doctor.host.processes import KubeletProcess, kubelet_process
from partage.doctor.host.root import NodeRoot
from partage.edges.host.unix_sockets import is_listening
from partage.errors import InputError, Unreachable
from partage.model.claim import ClaimHold
from partage.model.share import ContainerHold
from partage.values import Frozen

_USUAL_ROOT = "/var/lib/kubelet"
_SIGNS = (
    "/etc/kubernetes",
    "/var/lib/rancher/k3s",
    "/var/lib/rancher/rke2",
    "/var/lib/k0s",
    "/var/snap/microk8s",
)
"""Directories of a node of Kubernetes, also while its kubelet does not run."""


def kubelet_seen(root: NodeRoot, directory: str) -> Kubelet | Unseen | None:
    """The kubelet; None on a node that is none of Kubernetes. directory: of device plugins, as named."""
    process = kubelet_process(root)
    running = None if isinstance(process, Unseen) else process is not None
    there = _is_there(root.at(directory))
    if there is None:
        return Unseen(f"only root may look into {directory}")
    if not there and not running and not any(map(root.exists, (_USUAL_ROOT, *_SIGNS))):
        return None
    options = process if isinstance(process, KubeletProcess) else KubeletProcess()
    own_root = options.root_dir or _USUAL_ROOT
    base = str(PurePosixPath(directory).parent)
    return Kubelet(
        directory,
        there=there,
        listens=is_listening(root.at(f"{directory}/kubelet.sock")),
        running=running,
        own_directory=f"{options.root_dir}/device-plugins" if options.root_dir else "",
        pod_resources=root.exists(f"{base}/pod-resources/kubelet.sock"),
        cgroup_driver=options.cgroup_driver
        or _cgroup_driver(root, options.config or f"{own_root}/config.yaml"),
    )


def _is_there(directory: Path) -> bool | None:
    """Whether there is such a directory; None: it may not be looked into, or its sockets may not be used."""
    try:
        there = directory.is_dir()
    except PermissionError:
        return None
    return None if there and not os.access(directory, os.R_OK | os.W_OK | os.X_OK) else there


def _cgroup_driver(root: NodeRoot, file: str) -> str:
    """As its configuration says; empty if it does not. Since 1.28 the runtime may decide instead."""
    try:
        value = read_document(root.text(file).encode(), file).value
    except (OSError, InputError):
        return ""
    said = value.get("cgroupDriver") if isinstance(value, dict) else None
    return said if isinstance(said, str) else ""


_ASKED_S = 2.0


class KubeletHolds(Frozen):
    """Ids of device plugins, and claims, of all containers."""

    containers: tuple[ContainerHold, ...]
    claims: tuple[ClaimHold, ...]


def kubelet_holds(pod_resources: Path) -> KubeletHolds | None:
    """Asks PodResources. None: nobody says it."""
    from partage.answers.process_start import lean_imports

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

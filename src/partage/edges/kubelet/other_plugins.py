"""Other processes that offer the same resource, or the same GPUs, to the kubelet.

A plugin does not say which resource it serves, so it is told by the name of its socket, which NVIDIA's plugin
derives from the resource as Partage does (which adds an ending), and by what the kubelet's checkpoint lists.
No plugin is asked for its list: a second ListAndWatch stream can take a change of health away from the
kubelet's own, because NVIDIA's plugin sends each change to one stream only.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from partage.edges.host.procfs import name_of
from partage.edges.host.unix_sockets import listener
from partage.edges.kubelet.checkpoint import CheckpointFile
from partage.edges.kubelet.sockets import (
    SocketIdentity,
    is_named_after,
    plain_name,
    socket_identity,
    sockets_of,
)
from partage.errors import Unreachable
from partage.model.ids import (
    VENDOR,
    DeviceUuid,
    ResourceName,
    ShareId,
    device_of,
    is_share_id,
    plugin_socket_name,
)
from partage.values import Frozen

_KUBELET = "kubelet.sock"
HANDBACK = "partage-handback.sock"
"""``partage handback`` listens here while it waits for NVIDIA's plugin: so long, the agent gives way."""
_OF_NVIDIA = "nvidia-"
_OTHERS_NAMES = {"aliyungpushare.sock": ResourceName("aliyun.com/gpu-mem")}
"""Sockets with names of their own, of plugins whose ids cannot be told from ours: Alibaba's gpushare."""
_OF_GPUS = (f"{VENDOR}/gpu", f"{VENDOR}/mig-")
_NAMED = 3


class OtherPlugin(Frozen):
    """A process that offers what this one is about to offer.

    resource: under which name. socket: where it listens. process: its name and pid, empty if they cannot be
    seen from here. ids: devices of its list that are not of Partage's form. same_devices: its resource has
    another name, and the same devices.
    """

    resource: ResourceName
    socket: Path
    process: str = ""
    ids: tuple[ShareId, ...] = ()
    same_devices: bool = False

    def __str__(self) -> str:
        who = f" ({self.process})" if self.process else ""
        if self.same_devices:
            return f"another process offers the same GPUs as {self.resource} at {self.socket}{who}"
        if self.socket.name == HANDBACK:
            return f"partage handback waits for another plugin to take {self.resource}{who}"
        if not self.ids:
            return f"another process serves {self.socket}{who}"
        ids = ", ".join(self.ids[:_NAMED]) + (", ..." if len(self.ids) > _NAMED else "")
        return (
            f"another process seems to serve {self.resource}: the kubelet lists {ids}, "
            f"and something listens at {self.socket}{who}"
        )


def at_socket(resource: ResourceName, path: Path) -> OtherPlugin | None:
    """The process that listens at the socket of this resource; None if none does."""
    pid = listener(path)
    return None if pid is None else OtherPlugin(resource, path, _process(pid))


def of_resource(
    resource: ResourceName, sockets: Mapping[Path, SocketIdentity], newer_than: SocketIdentity | None
) -> OtherPlugin | None:
    """The process that listens at one of these sockets of the resource; None if none does.

    newer_than: only at a socket that was made later than this one.
    """
    for path, identity in sockets.items():
        if newer_than is not None and identity.changed_ns <= newer_than.changed_ns:
            continue
        if (other := at_socket(resource, path)) is not None:
            return other
    return None


def in_directory(
    resource: ResourceName, devices: frozenset[DeviceUuid], directory: Path
) -> OtherPlugin | None:
    """Another process that the kubelet knows for this resource under another socket, or that offers the same
    devices under another name; None if none is seen.

    devices: of the list that is about to be offered.
    """
    try:
        listed = CheckpointFile(directory).listed() or {}
    except Unreachable:
        return None
    foreign = tuple(sorted(share for share in listed.get(resource, ()) if not is_share_id(share)))
    if foreign and (found := next(_others(directory), None)) is not None:
        path, pid = found
        return OtherPlugin(resource, path, _process(pid), foreign)
    for name, ids in listed.items():
        if name == resource or devices.isdisjoint(map(device_of, ids)):
            continue
        for path in sockets_of(directory, name):
            other = listener(path)
            if other is not None and other != os.getpid():
                return OtherPlugin(name, path, _process(other), same_devices=True)
    return None


def serving_gpus(
    directory: Path,
    resources: Collection[ResourceName],
    devices: Collection[DeviceUuid],
    ours: Collection[SocketIdentity] = (),
) -> OtherPlugin | None:
    """Another process that offers GPUs of this node to the kubelet, under any name; None if none is seen.

    resources: what is offered here, or is to be. devices: of this node. ours: sockets that do not count.
    The kubelet's checkpoint is read only where another process listens in the directory.
    """
    others = dict(_others(directory, ours))
    if not others:
        return None
    named = _OTHERS_NAMES | {plugin_socket_name(name): name for name in resources}
    for path, pid in others.items():
        known = next((name for plain, name in named.items() if is_named_after(path.name, plain)), None)
        found = plain_name(path.name)
        if known or found.startswith(_OF_NVIDIA):
            of_nvidia = found.removeprefix(_OF_NVIDIA).removesuffix(".sock")
            return OtherPlugin(known or ResourceName(f"{VENDOR}/{of_nvidia}"), path, _process(pid))
    try:
        listed = CheckpointFile(directory).listed() or {}
    except Unreachable:
        return None
    for name, ids in listed.items():
        foreign = tuple(sorted(share for share in ids if not is_share_id(share)))
        if foreign and (name in resources or name.startswith(_OF_GPUS) or _names_any(foreign, devices)):
            path, pid = next(iter(others.items()))
            return OtherPlugin(name, path, _process(pid), foreign)
        if set(devices).isdisjoint(map(device_of, ids)):
            continue
        for path in sockets_of(directory, name):
            if path in others:
                return OtherPlugin(name, path, _process(others[path]), same_devices=True)
    return None


def _names_any(ids: Collection[ShareId], devices: Collection[DeviceUuid]) -> bool:
    """Whether an id contains the UUID of a device, as ``<uuid>-3`` does."""
    return any(device in share for device in devices for share in ids)


def _others(directory: Path, ours: Collection[SocketIdentity] = ()) -> Iterator[tuple[Path, int]]:
    """Sockets of other processes, by name. It cannot be seen which of them serves a resource."""
    try:
        paths = sorted(directory.iterdir())
    except OSError:
        return
    for path in paths:
        if path.name == _KUBELET or (identity := socket_identity(path)) is None or identity in ours:
            continue
        pid = listener(path)
        if pid is not None and pid != os.getpid():
            yield path, pid


def _process(pid: int) -> str:
    name = name_of(Path("/proc"), pid) if pid else ""
    return f"{name}, pid {pid}" if name else ""

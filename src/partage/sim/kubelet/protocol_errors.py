"""How answers of a plugin break the kubelet's protocol or contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.edges.kubelet.messages import API_VERSION, HEALTHY, UNHEALTHY
from partage.model.ids import ShareId, is_reserved_domain

LONGEST_ID = 63
"""In characters. The limit is documented; the kubelet does not enforce it."""

_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_CDI = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z][\w.-]*=[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def registration_refusal(request: pb.RegisterRequest) -> str | None:
    """Why a kubelet refuses a registration, in the kubelet's words; None where it accepts."""
    if request.version != API_VERSION:
        return (
            f"requested API version {request.version!r} is not supported by kubelet. Supported: {API_VERSION}"
        )
    domain, _, _ = request.resource_name.partition("/")
    if is_reserved_domain(domain) or not _RESOURCE.fullmatch(request.resource_name):
        return f"the ResourceName {request.resource_name!r} is invalid"
    if "/" in request.endpoint or not request.endpoint:
        return f"endpoint {request.endpoint!r} is not the base name of a socket"
    return None


def list_errors(devices: Sequence[pb.Device]) -> Iterator[str]:
    """What is wrong with a list of devices."""
    seen: set[str] = set()
    for device in devices:
        if not device.ID or device.ID in seen:
            yield f"device id {device.ID!r} is listed twice, or empty"
        if len(device.ID) > LONGEST_ID:
            yield f"device id {device.ID!r} is longer than {LONGEST_ID} characters"
        if device.health not in (HEALTHY, UNHEALTHY):
            yield f"device {device.ID!r} has health {device.health!r}"
        seen.add(device.ID)


def preference_errors(
    answer: Sequence[ShareId], available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
) -> Iterator[str]:
    """What is wrong with a preferred allocation."""
    if len(answer) != size or len(set(answer)) != len(answer):
        yield f"preferred allocation of {size} is {list(answer)}"
    if stray := set(answer) - set(available):
        yield f"preferred allocation has {sorted(stray)}, which are not available"
    if missing := set(must_include) - set(answer):
        yield f"preferred allocation lacks {sorted(missing)}, which must be included"


def allocation_errors(answer: pb.ContainerAllocateResponse) -> Iterator[str]:
    """What is wrong with an answer to Allocate: a container runtime would fail on it."""
    for name in answer.envs:
        if not _VARIABLE.fullmatch(name):
            yield f"environment variable {name!r} has no valid name"
    for path in [*(mount.container_path for mount in answer.mounts), *(m.host_path for m in answer.mounts)]:
        if not path.startswith("/"):
            yield f"mount path {path!r} is not absolute"
    for node in answer.devices:
        if not node.container_path.startswith("/") or not node.host_path.startswith("/"):
            yield f"device path {node.host_path!r} or {node.container_path!r} is not absolute"
        if not node.permissions or set(node.permissions) - set("rwm"):
            yield f"device {node.host_path!r} has permissions {node.permissions!r}"
    for device in answer.cdi_devices:
        if not _CDI.fullmatch(device.name):
            yield f"CDI device {device.name!r} is not vendor/class=name"

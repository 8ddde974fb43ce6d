"""Names that the kubelet and the driver know: resource names and the ids of shares."""

from __future__ import annotations

import re
from typing import NewType

from partage.values import Frozen

ResourceName = NewType("ResourceName", str)
"""An extended resource, ``nvidia.com/gpu.shared``; made by ``parse_resource_name``."""

VENDOR = "nvidia.com"
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)
LONGEST_RESOURCE_NAME = 63
_SEPARATOR = "::"


def parse_resource_name(text: str) -> ResourceName:
    """The resource name in ``text``; ``nvidia.com/`` is added if there is no domain.

    The rules are those of NVIDIA's plugin (at most 63 characters, the part after the slash an RFC 1123
    subdomain), but other domains are allowed. Raises ValueError.
    """
    full = text if "/" in text else f"{VENDOR}/{text}"
    domain, _, name = full.partition("/")
    if len(full) > LONGEST_RESOURCE_NAME:
        raise ValueError(f"resource name {full[:80]!r} is longer than {LONGEST_RESOURCE_NAME} characters")
    if not (_SUBDOMAIN.fullmatch(domain) and _SUBDOMAIN.fullmatch(name)):
        raise ValueError(f"{text!r} is not a resource name: lower case letters, digits, '-' and '.' only")
    if is_reserved_domain(domain):
        raise ValueError(f"{text!r} is in a domain that Kubernetes keeps for itself")
    return ResourceName(full)


def is_reserved_domain(domain: str) -> bool:
    """Whether Kubernetes keeps this domain of resource names for itself."""
    return domain == "kubernetes.io" or domain.endswith(".kubernetes.io")


def plugin_socket_name(resource: ResourceName) -> str:
    """File name of the plugin's socket: ``nvidia-gpu.shared.sock``, as in NVIDIA's plugin."""
    domain, _, name = resource.partition("/")
    prefix = "nvidia" if domain == VENDOR else domain
    return f"{prefix}-{name}.sock"


class ShareId(Frozen, order=True):
    """The kubelet's id of a device: a whole GPU or MIG device, or one share of it.

    device:  UUID of the GPU or MIG device.
    replica: number of the share, from 0; None if the device is not shared.
    """

    device: str
    replica: int | None

    @classmethod
    def parse(cls, text: str) -> ShareId:
        """Inverse of ``str``. Never fails: a text without ``::n`` is a whole device."""
        device, separator, number = text.partition(_SEPARATOR)
        if separator and number.isascii() and number.isdigit():
            return cls(device, int(number))
        return cls(text, None)

    def __str__(self) -> str:
        return self.device if self.replica is None else f"{self.device}{_SEPARATOR}{self.replica}"

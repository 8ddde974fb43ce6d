"""Facts about paths that several edges need: how long a socket's path may be, where drivers are installed."""

from __future__ import annotations

from partage.errors import InputError

LONGEST_SOCKET_PATH = 107
"""Bytes. ``sun_path`` of Linux has 108; the last one is the closing zero (unix(7))."""

LIBRARY_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
"""The paths at which NVIDIA's device plugin looks for the driver's libraries below the driver root."""

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Device files that belong to no GPU, as paths in a container, in the order of NVIDIA's device plugin."""

CONTAINER_LOGS = "/var/log/containers"
"""Where the kubelet links the logs of containers, by pod, container and id."""


def check_socket_path(path: object, hint: str = "") -> None:
    """Raise InputError for a path that is too long for a unix socket."""
    size = len(str(path).encode(errors="surrogateescape"))
    if size > LONGEST_SOCKET_PATH:
        message = f"{path} has {size} bytes; the path of a unix socket has at most {LONGEST_SOCKET_PATH}"
        raise InputError(message, hint)

"""The configuration of containerd or CRI-O, as far as it decides what containers get of a GPU."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from partage.doctor.decide.observation import ContainerRuntime, RuntimeHandler, Unseen
from partage.doctor.host.machine import char_links
from partage.doctor.host.root import NodeRoot
from partage.edges.host.unix_sockets import is_listening

_CONTAINERD_FILES = (
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/k0s/containerd.toml",
    "/etc/containerd/config.toml",
)
"""The places in which distributions of Kubernetes have it; the last one is containerd's own."""

_CRIO_FILE, _CRIO_DIRECTORY = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
_CRIO_SOCKET = "/run/crio/crio.sock"
_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""The CRI plugin of containerd 2 and 1."""

_DISABLED = frozenset({"cri", *_PLUGINS})
_RUNC = "runc"
_MOST_FILES = 50

Toml = Mapping[str, Any]


def container_runtime(root: NodeRoot) -> ContainerRuntime | Unseen | None:
    """The runtime of the kubelet; None if there is no configuration of one."""
    containerd = next((file for file in _CONTAINERD_FILES if root.exists(file)), None)
    crio = root.exists(_CRIO_FILE) or root.exists(_CRIO_DIRECTORY)
    if crio and (containerd is None or is_listening(root.at(_CRIO_SOCKET))):
        return _crio(root)
    return None if containerd is None else _containerd(root, containerd)


def _containerd(root: NodeRoot, file: str) -> ContainerRuntime | Unseen:
    name = "containerd"
    try:
        merged = _with_imports(root, file)
    except _Unreadable as error:
        return ContainerRuntime(name, error.file, str(error))
    disabled = merged.get("disabled_plugins")
    if isinstance(disabled, list) and _DISABLED.intersection(map(str, disabled)):
        return Unseen(
            f"{file} switches CRI off: the kubelet has another container runtime, which is not known"
        )
    plugins = _table(merged.get("plugins"))
    cri = next((_table(plugins[plugin]) for plugin in _PLUGINS if plugin in plugins), {})
    own = _table(cri.get("containerd"))
    handlers = [
        RuntimeHandler(
            one,
            str(_table(row.get("options")).get("BinaryName") or row.get("runtime_type") or ""),
            _flag(_table(row.get("options")).get("SystemdCgroup")),
        )
        for one, row in _tables(own.get("runtimes"))
    ]
    if not any(handler.name == _RUNC for handler in handlers):
        handlers.append(RuntimeHandler(_RUNC, ""))  # containerd has it by itself
    return ContainerRuntime(
        name,
        file,
        handlers=tuple(handlers),
        default=str(own.get("default_runtime_name") or _RUNC),
        cdi=_flag(cri.get("enable_cdi")),
        char_links=char_links(root),
    )


def _crio(root: NodeRoot) -> ContainerRuntime:
    name = "CRI-O"
    files = [_CRIO_FILE] if root.exists(_CRIO_FILE) else []
    with suppress(OSError):
        files += [f"{_CRIO_DIRECTORY}/{path.name}" for path in sorted(root.at(_CRIO_DIRECTORY).iterdir())]
    merged: dict[str, Any] = {}
    try:
        for file in files[:_MOST_FILES]:
            _merge(merged, _parsed(root, file))
    except _Unreadable as error:
        return ContainerRuntime(name, error.file, str(error))
    own = _table(_table(merged.get("crio")).get("runtime"))
    systemd = str(own.get("cgroup_manager") or "systemd") == "systemd"
    handlers = tuple(
        RuntimeHandler(one, str(row.get("runtime_path") or one), systemd)
        for one, row in _tables(own.get("runtimes"))
    )
    return ContainerRuntime(
        name,
        files[0] if files else _CRIO_FILE,
        handlers=handlers,
        default=str(own.get("default_runtime") or "crun"),
        cdi=True,  # since 1.24, and it cannot be switched off
        char_links=char_links(root),
    )


class _Unreadable(Exception):
    """A file of the configuration that cannot be read."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(why)
        self.file = file


def _with_imports(root: NodeRoot, file: str) -> Toml:
    """The file and those that it imports: what an imported one says counts."""
    merged = dict(_parsed(root, file))
    for pattern in list(merged.get("imports") or ())[:_MOST_FILES]:
        for imported in _matching(root, str(PurePosixPath(file).parent / str(pattern))):
            if imported != file:
                _merge(merged, _parsed(root, imported))
    return merged


def _matching(root: NodeRoot, pattern: str) -> Iterator[str]:
    directory, name = str(PurePosixPath(pattern).parent), PurePosixPath(pattern).name
    try:
        found = sorted(path.name for path in root.at(directory).glob(name))
    except (OSError, ValueError):
        return
    yield from (f"{directory}/{file}" for file in found[:_MOST_FILES])


def _parsed(root: NodeRoot, file: str) -> Toml:
    try:
        return tomllib.loads(root.text(file))
    except OSError as error:
        raise _Unreadable(file, error.strerror or str(error)) from error
    except tomllib.TOMLDecodeError as error:
        raise _Unreadable(file, f"is no TOML: {error}") from error


def _merge(into: dict[str, Any], new: Toml) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            inner = dict(into[key])
            _merge(inner, value)
            into[key] = inner
        else:
            into[key] = value


def _table(value: object) -> Toml:
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> list[tuple[str, Toml]]:
    return [(str(name), _table(row)) for name, row in _table(value).items()]


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None

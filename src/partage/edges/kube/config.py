"""The address of the API server, and how to be known there: the account of a pod, or a kubeconfig."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import field

from partage.codec.values import CodecError, from_plain
from partage.codec.yaml_document import read_document
from partage.edges.host.read_file import read_regular
from partage.errors import InputError, Problem, wrong_input
from partage.values import Frozen

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The directory with a pod's token, the CA of the API server, and the pod's namespace, from the kubelet."""

_LIMIT_BYTES = 1 << 20

T = TypeVar("T")


class Material(Frozen):
    """A secret or certificate: in a file, which may be replaced at any time, or in a kubeconfig itself."""

    path: Path | None = None
    data: bytes = b""

    def read(self) -> bytes:
        """The content now. Raises InputError."""
        if self.path is None:
            return self.data
        try:
            return read_regular(self.path, _LIMIT_BYTES)
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise wrong_input(self.path, message) from error

    def version(self) -> object:
        """Changes when the file is replaced: the kubelet does so through a link. Raises InputError."""
        if self.path is None:
            return None
        try:
            status = self.path.stat()
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            raise wrong_input(self.path, message) from error
        return status.st_ino, status.st_mtime_ns, status.st_size


class ClusterConfig(Frozen):
    """How to reach an API server. url: ``https://10.0.0.1:443``. server_name: the name in its certificate, if
    it is not that of the URL. insecure: its certificate is not checked. namespace: of the agent's pod.
    """

    url: str
    ca: Material | None = None
    token: Material | None = None
    certificate: Material | None = None
    key: Material | None = None
    server_name: str = ""
    insecure: bool = False
    namespace: str = "default"

    def tls(self) -> ssl.SSLContext:
        """What connections are made with, from the files as they are now. Raises InputError."""
        try:
            context = ssl.create_default_context(cadata=self.ca.read().decode("ascii") if self.ca else None)
            if self.insecure:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if self.certificate is not None and self.key is not None:
                load_pair(context, self.certificate.read(), self.key.read())
        except (ssl.SSLError, ValueError, OSError) as error:
            raise InputError(f"the certificates for {self.url} cannot be used: {error}") from error
        return context

    def version(self) -> object:
        """Changes when a certificate is replaced, so that connections have to be made anew."""
        kept = (self.ca, self.certificate, self.key)
        return tuple(None if kept_file is None else kept_file.version() for kept_file in kept)


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Python reads certificates from files only; this one is never on a disk."""
    with os.fdopen(os.memfd_create("partage"), "wb") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def cluster_config(where: str, environ: Mapping[str, str]) -> ClusterConfig | None:
    """What ``--cluster`` says: ``auto`` (the account of this pod, None outside a cluster), ``off`` (None), or
    the path of a kubeconfig. Raises InputError.
    """
    if where == "off":
        return None
    if where == "auto":
        return in_cluster(environ) if environ.get("KUBERNETES_SERVICE_HOST") else None
    return from_kubeconfig(Path(where))


def in_cluster(environ: Mapping[str, str], account: Path = ACCOUNT) -> ClusterConfig:
    """The API server as a pod sees it. Raises InputError if the pod has no token."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    token = Material(account / "token")
    try:
        token.read()
    except InputError as error:
        raise InputError(
            error.problems[0].message + f": {account / 'token'}",
            "the pod needs a service account token (automountServiceAccountToken: true), or --cluster off",
        ) from error
    namespace = account / "namespace"
    return ClusterConfig(
        url=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca=Material(account / "ca.crt"),
        token=token,
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.is_file() else "default",
    )


# --- kubeconfig ----------------------------------------------------------------------------------


class _Hyphenated(Frozen, rename="kebab"):
    """Keys of a kubeconfig are written with hyphens."""


class _KubeServer(_Hyphenated):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(Frozen):
    token: str = ""
    token_file: str = ""
    client_certificate: str = field(default="", name="client-certificate")
    client_certificate_data: str = field(default="", name="client-certificate-data")
    client_key: str = field(default="", name="client-key")
    client_key_data: str = field(default="", name="client-key-data")
    username: str = ""
    exec: object = None
    auth_provider: object = field(default=None, name="auth-provider")


class _Context(Frozen):
    cluster: str = ""
    user: str = ""
    namespace: str = "default"


class _NamedServer(Frozen):
    name: str
    cluster: _KubeServer


class _NamedUser(Frozen):
    name: str
    user: _User | None = None


class _NamedContext(Frozen):
    name: str
    context: _Context


class _Kubeconfig(Frozen):
    clusters: tuple[_NamedServer, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None
    current_context: str = field(default="", name="current-context")


def from_kubeconfig(path: Path, context: str = "") -> ClusterConfig:
    """The API server of a kubeconfig. context: its current one by default. Raises InputError."""
    name = str(path)
    content = Material(path).read()
    if not content.strip():
        raise _wrong(name, "", "is an empty file")
    try:
        plain = read_document(content, name).value
        file = from_plain(_Kubeconfig, plain, strict=False)
    except CodecError as error:
        raise _wrong(name, "", f"is not a kubeconfig: {error}") from error
    wanted = context or file.current_context
    contexts = {named_context.name: named_context.context for named_context in file.contexts or ()}
    if wanted not in contexts:
        names = ", ".join(contexts) or "none"
        raise _wrong(
            name, "current-context", f"there is no context {wanted!r}", f"contexts of the file: {names}"
        )
    chosen = contexts[wanted]
    server = next(
        (cluster.cluster for cluster in file.clusters or () if cluster.name == chosen.cluster), None
    )
    user = (
        next((named_user.user for named_user in file.users or () if named_user.name == chosen.user), None)
        or _User()
    )
    if server is None or not server.server.startswith(("https://", "http://")):
        raise _wrong(name, "clusters", f"has no cluster {chosen.cluster!r} with a server")
    if user.exec is not None or user.auth_provider is not None or user.username:
        what = (
            "a program (exec)"
            if user.exec is not None
            else "a plugin"
            if user.auth_provider
            else "a password"
        )
        raise _wrong(
            name,
            f"users[{chosen.user}]",
            f"{what} is not supported",
            "use a token: kubectl create token ACCOUNT, or a client certificate",
        )
    if server.proxy_url:
        raise _wrong(name, f"clusters[{chosen.cluster}].proxy-url", "a proxy is not supported")
    place = _FilePlace(name, path.parent)
    return ClusterConfig(
        url=server.server.rstrip("/"),
        ca=place.material(
            "certificate-authority", server.certificate_authority, server.certificate_authority_data
        ),
        token=place.token(user),
        certificate=place.material(
            "client-certificate", user.client_certificate, user.client_certificate_data
        ),
        key=place.material("client-key", user.client_key, user.client_key_data),
        server_name=server.tls_server_name,
        insecure=server.insecure_skip_tls_verify,
        namespace=chosen.namespace,
    )


class _FilePlace(Frozen):
    """A kubeconfig. Paths in it begin at its folder."""

    name: str
    folder: Path

    def material(self, key: str, path: str, data: str) -> Material | None:
        """From the key with data, or from the key with a path; as kubectl, data first."""
        if data:
            try:
                return Material(data=base64.b64decode(data, validate=True))
            except (binascii.Error, ValueError) as error:
                raise _wrong(self.name, f"{key}-data", f"is not base64: {error}") from error
        return Material(self.folder / path) if path else None

    def token(self, user: _User) -> Material | None:
        if user.token_file:
            return Material(self.folder / user.token_file)
        return Material(data=user.token.encode()) if user.token else None


def _wrong(file: str, path: str, message: str, hint: str = "") -> InputError:
    return InputError([Problem(file, path, "error", message, hint)])

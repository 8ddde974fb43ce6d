"""The webhook's own certificate, made with ``cryptography``, which only this module loads.

Every replica reads it from a Secret, the leader writes it there, and tells the API server whom to trust.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from partage.admission.decide.rotation import (
    EVERY_S,
    LIFE_S,
    SOON_S,
    Authority,
    CertifiedPair,
    HeldCertificates,
    RotationStep,
    next_step,
    stepped,
)
from partage.agent.log import Seldom
from partage.edges.kube.watch import CollectionState
from partage.edges.kube.webhooks import SecretObject, WebhookObjects
from partage.errors import Absent, ClusterError, Conflict

_EARLIER = timedelta(hours=1)
"""Of the beginning: clocks of nodes differ."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.DOTALL)
_MOST_TRUSTED = 16
CERTIFICATE, KEY, TRUSTED = "tls.crt", "tls.key", "ca.crt"
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"


def make_pair(names: Collection[str], now_s: float) -> tuple[CertifiedPair, Authority]:
    """A certificate for these names, and the authority that signed it, whose key nobody has any more."""
    now = datetime.fromtimestamp(now_s, UTC)
    ends = now + timedelta(seconds=LIFE_S)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    # Authorities differ in name, too: who checks a chain finds the right one at once.
    number = x509.random_serial_number()
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"partage admission {number:040x}"[:64])])
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "partage admission")])
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in sorted(names)])
    certificate = (
        _builder(subject, issuer, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternatives, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    ends_s = certificate.not_valid_after_utc.timestamp()
    pair = CertifiedPair(_pem(certificate), private, frozenset(names), ends_s)
    return pair, Authority(_pem(authority), ends_s)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(ends)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def read_held(data: Mapping[str, bytes]) -> HeldCertificates:
    """Of a Secret. What cannot be read is not there."""
    found = _PEM.findall(data.get(TRUSTED, b"").decode("ascii", "replace"))[:_MOST_TRUSTED]
    trusted = [one for text in found if (one := _authority(text)) is not None]
    return HeldCertificates(
        _pair(data.get(CERTIFICATE, b""), data.get(KEY, b"")),
        _pair(data.get(NEXT_CERTIFICATE, b""), data.get(NEXT_KEY, b"")),
        tuple(trusted),
    )


def written(held: HeldCertificates) -> dict[str, bytes]:
    """As a Secret has it."""
    texts = {TRUSTED: bundle(held)}
    if held.serving is not None:
        texts |= {CERTIFICATE: held.serving.certificate, KEY: held.serving.key}
    if held.following is not None:
        texts |= {NEXT_CERTIFICATE: held.following.certificate, NEXT_KEY: held.following.key}
    return {name: text.encode() for name, text in texts.items()}


def bundle(held: HeldCertificates) -> str:
    """All that are trusted, as the API server is told."""
    return "".join(trusted.certificate for trusted in held.trusted)


def _authority(text: str) -> Authority | None:
    try:
        read = x509.load_pem_x509_certificate(text.encode())
    except ValueError:
        return None
    return Authority(_pem(read), read.not_valid_after_utc.timestamp())


def _pair(certificate: bytes, key: bytes) -> CertifiedPair | None:
    try:
        read = x509.load_pem_x509_certificate(certificate)
        private = load_pem_private_key(key, None)
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        if private.public_key().public_bytes(*form) != read.public_key().public_bytes(*form):
            return None
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return None
    ends_s = read.not_valid_after_utc.timestamp()
    dns = frozenset(names.get_values_for_type(x509.DNSName))
    return CertifiedPair(certificate.decode("ascii"), key.decode("ascii"), dns, ends_s)


def server_context(pair: CertifiedPair) -> ssl.SSLContext:
    """For the next connections. Raises OSError for a pair that cannot be used."""
    from partage.edges.kube.config import load_pair

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_pair(context, pair.certificate.encode(), pair.key.encode())
    return context


log = logging.getLogger(__name__)


class CertificateKeeper:
    """names: of the server. wall: seconds since 1970."""

    def __init__(
        self, objects: WebhookObjects, names: Collection[str], *, wall: Callable[[], float] = time.time
    ) -> None:
        self._objects, self._names, self._wall = objects, frozenset(names), wall
        # Probes are answered before the Secret was read; the API server trusts nobody for this one.
        self._context = server_context(make_pair(self._names, wall())[0])
        self._serving: CertifiedPair | None = None
        self._secret: SecretObject | None = None
        self._held = HeldCertificates()
        self._failed = Seldom()
        self._heard: tuple[str, float] | None = None
        self._trouble = "the API server has not answered yet"

    # --- every replica ------------------------------------------------------------------------------

    def tls(self) -> ssl.SSLContext:
        """For the next connection."""
        return self._context

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Why the API server cannot trust this server yet; (): it can."""
        return () if self._serving is not None else (f"certificate: {self._trouble}",)

    @property
    def ends_s(self) -> float | None:
        """Of the certificate in use, seconds since 1970."""
        return None if self._serving is None else self._serving.ends_s

    async def follow(self) -> None:
        """Use what the Secret holds, for ever."""
        await self._objects.watch_secret(self._seen)

    def _seen(self, now: CollectionState[SecretObject]) -> None:
        if now.trouble:
            self._trouble = now.trouble
            return
        self._trouble = "the leader has not made it yet"
        self._use(now.objects.get(self._objects.secret_name, SecretObject()))

    def _use(self, secret: SecretObject) -> None:
        self._secret, self._held = secret, read_held(secret.data)
        serving = self._held.serving
        # A certificate that has ended, or cannot be read, takes nothing from one that works.
        if serving is None or serving == self._serving or serving.ends_s <= self._wall():
            return
        try:
            self._context = server_context(serving)
        except OSError as error:
            log.warning("certificate cannot be used", extra={"reason": str(error)})
            return
        self._serving = serving
        log.info("certificate is used", extra={"ends_s": int(serving.ends_s)})

    # --- the leader ---------------------------------------------------------------------------------

    async def lead(self) -> None:
        """Keep Secret and configuration right, for ever."""
        self._heard = None
        while True:
            try:
                in_order = await self.turn()
            except (Conflict, Absent):
                in_order = False  # another has written, and is read first; or there is no configuration yet
            except ClusterError as error:
                self._failed.warn(log, "certificate cannot be kept", error)
                in_order = False
            await asyncio.sleep(EVERY_S if in_order else SOON_S)

    async def turn(self) -> bool:
        """One look; whether all is as it should be. Raises ClusterError."""
        if self._secret is None:
            return False
        now_s = self._wall()
        text = bundle(self._held)
        heard_s = self._heard[1] if self._heard is not None and self._heard[0] == text else None
        step = next_step(self._held, self._names, now_s, heard_s)
        if step is not RotationStep.NOTHING:
            made = None
            if step in (RotationStep.FIRST, RotationStep.PREPARE):
                made = make_pair(self._names, now_s)
            held = stepped(step, self._held, made, now_s)
            self._use(await self._objects.write_secret(self._secret, written(held)))
            log.info("certificates were changed", extra={"step": str(step)})
        await self._trust(bundle(self._held))
        return step is RotationStep.NOTHING

    async def _trust(self, text: str) -> None:
        state = await self._objects.configuration()
        if any(found != text.encode() for found in state.bundles):
            await self._objects.trust(state, text.encode())
            log.info("the API server was told whom to trust")
            self._heard = None
        if self._heard is None or self._heard[0] != text:
            self._heard = text, self._wall()

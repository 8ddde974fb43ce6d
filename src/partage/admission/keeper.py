"""The webhook's own certificate: every replica reads it from a Secret, the leader writes it there, and tells
the API server whom to trust.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Collection

from partage.admission.certificates import (
    bundle,
    make_pair,
    read_held,
    server_context,
    written,
)
from partage.admission.decide.rotation import (
    EVERY_S,
    SOON_S,
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

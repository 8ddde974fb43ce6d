"""When the webhook's own certificate is made, and how a new one comes without a request that is refused.

Each certificate has an authority of its own, whose key is thrown away as soon as it has signed. The next one
is made long before the first ends; then the API server is told to trust both authorities; only when it has
surely heard of it, the next one is served. The old authority stays trusted until it ends: a replica that
cannot read the Secret for a while goes on with the old certificate.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from partage.values import Frozen

LIFE_S = 90 * 86_400.0
RENEWED_S = 30 * 86_400.0
"""So long before its end the next certificate is made."""
HEARD_S = 300.0
"""So long after it was written, every API server has read which authorities to trust: they watch it."""
EVERY_S, SOON_S = 15.0, 1.0
"""Between two looks at whom the API server trusts; SOON_S after something was not as it should be."""


class CertifiedPair(Frozen):
    """A certificate with its key, PEM. names: of servers. ends_s: seconds since 1970."""

    certificate: str
    key: str
    names: frozenset[str]
    ends_s: float


class Authority(Frozen):
    """A certificate of who signs, PEM."""

    certificate: str
    ends_s: float


class HeldCertificates(Frozen):
    """What the Secret holds. serving: that is served; None: none that can be used. following: the one after
    it. trusted: those that may have signed, oldest first.
    """

    serving: CertifiedPair | None = None
    following: CertifiedPair | None = None
    trusted: tuple[Authority, ...] = ()


class RotationStep(StrEnum):
    """What is to be done now. first: there is none that can be used. prepare: the next one. switch: to it.
    forget: authorities that have ended.
    """

    NOTHING = "nothing"
    FIRST = "first"
    PREPARE = "prepare"
    SWITCH = "switch"
    FORGET = "forget"


def next_step(
    held: HeldCertificates, names: Collection[str], now_s: float, heard_s: float | None
) -> RotationStep:
    """names: under which the API server asks. heard_s: since when it is told to trust all that are held;
    None: not yet.
    """
    serving = held.serving
    if serving is None or serving.ends_s <= now_s or not serving.names.issuperset(names):
        return RotationStep.FIRST
    following = held.following
    if following is not None and following.ends_s > now_s and following.names.issuperset(names):
        heard = heard_s is not None and now_s - heard_s >= HEARD_S
        return RotationStep.SWITCH if heard else RotationStep.NOTHING
    if serving.ends_s - now_s < RENEWED_S:
        return RotationStep.PREPARE
    return (
        RotationStep.FORGET
        if any(certificate.ends_s <= now_s for certificate in held.trusted)
        else RotationStep.NOTHING
    )


def stepped(
    step: RotationStep,
    held: HeldCertificates,
    made: tuple[CertifiedPair, Authority] | None,
    now_s: float,
) -> HeldCertificates:
    """What is held after the step. made: a new pair with its authority, for ``first`` and ``prepare``."""
    trusted = tuple(certificate for certificate in held.trusted if certificate.ends_s > now_s)
    match step:
        case RotationStep.FIRST:
            assert made is not None, "a pair was made"
            return HeldCertificates(made[0], None, (*trusted, made[1]))
        case RotationStep.PREPARE:
            assert made is not None, "a pair was made"
            return HeldCertificates(held.serving, made[0], (*trusted, made[1]))
        case RotationStep.SWITCH:
            return HeldCertificates(held.following, None, trusted)
        case _:
            return HeldCertificates(held.serving, held.following, trusted)

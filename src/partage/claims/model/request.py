"""What a ResourceClaim asks for, and the classes that it names, before the scheduler has looked at it."""

from __future__ import annotations

from decimal import Decimal

from partage.claims.model.claim import ClaimConfig
from partage.claims.model.slices import DeviceTaint
from partage.units import exact_quantity
from partage.values import Frozen


class DeviceToleration(Frozen):
    """A toleration of a request. An empty key tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Whether the taint does not keep the request away."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class DeviceAsk(Frozen):
    """A request, or one alternative of it.

    name: ``req``, of an alternative ``req/sub``. selectors: expressions that all have to hold, beside those
    of the class. named: amounts of capacities. count: different devices; every: all that fit. admin: to
    look at devices, whoever holds them.
    """

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    named: tuple[tuple[str, Decimal], ...] = ()
    count: int = 1
    every: bool = False
    admin: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()

    @property
    def amounts(self) -> dict[str, Decimal]:
        """Amounts of capacities, by name."""
        return dict(self.named)

    @property
    def words(self) -> str:
        """``memory 10Gi of gpu.partage.dev``, ``2 x mig.partage.dev``."""
        many = "all of " if self.every else f"{self.count} x " if self.count > 1 else ""
        amounts = ", ".join(f"{name} {amount_words(amount)}" for name, amount in self.amounts.items())
        return f"{many}{amounts} of {self.device_class}" if amounts else f"{many}{self.device_class}"


def amount_words(amount: Decimal | int) -> str:
    """``10Gi``, ``25``: as in a manifest."""
    if amount != int(amount):
        return f"{amount.normalize():f}" if isinstance(amount, Decimal) else str(amount)
    whole = int(amount)
    return exact_quantity(whole, binary=whole >= 2**20 and whole % 2**10 == 0)


class ClaimRequest(Frozen):
    """One of the requests of a claim. ways: alternatives, the best first; one where there is no choice."""

    name: str
    ways: tuple[DeviceAsk, ...]


class DeviceRule(Frozen):
    """Devices of these requests have to have one value of the attribute, or with distinct all different ones.
    requests: (): all. attribute: with its domain.
    """

    requests: tuple[str, ...]
    attribute: str
    distinct: bool = False

    def names(self, request: str) -> bool:
        """Whether it is about this request or alternative."""
        return not self.requests or bool({request, request.partition("/")[0]} & {*self.requests})


class ClaimSpec(Frozen):
    """What a claim asks for. title: ``ResourceClaimTemplate ten-gib``. configs: as the claim writes them."""

    title: str
    requests: tuple[ClaimRequest, ...]
    rules: tuple[DeviceRule, ...] = ()
    configs: tuple[ClaimConfig, ...] = ()


class DeviceClass(Frozen):
    """A DeviceClass. extended: the extended resource that it serves; empty: none."""

    name: str
    selectors: tuple[str, ...] = ()
    configs: tuple[ClaimConfig, ...] = ()
    extended: str = ""

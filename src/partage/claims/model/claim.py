"""A ResourceClaim as the API server has it: what it asks for, of which classes, what was allocated to it, and
how it is configured.

Fields that nobody here needs may be anything; those that are needed have to be what the API says.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum

from msgspec import Raw, field

from partage.codec.values import CodecError, decode
from partage.kubernetes.decide.node_rules import Toleration
from partage.model.claim import AllottedDevice, ClaimRef
from partage.model.ids import PodUid
from partage.units import exact_quantity, parse_quantity
from partage.values import Frozen


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
    tolerations: tuple[Toleration, ...] = ()

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


class ConfigSource(StrEnum):
    """Who wrote a configuration: the administrator of the class, or the owner of the claim."""

    CLASS = "FromClass"
    CLAIM = "FromClaim"


class Consumer(Frozen):
    """Who may use a claim, nearly always a pod. resource: ``pods``. name, uid: of the object."""

    resource: str
    name: str
    uid: str


class ClaimResult(AllottedDevice):
    """One device that was allocated.

    share_id: of a device that is shared. consumed: of its capacities, in bytes or as a count; empty for
    devices of other drivers. admin_access: to look at the device, whoever holds it.
    """

    driver: str
    share_id: str | None = None
    consumed: Mapping[str, int] = field(default_factory=dict)
    admin_access: bool = False


class ClaimConfig(Frozen):
    """A configuration for a driver. requests: names of those it is for; (): for all. parameters: its JSON."""

    source: ConfigSource
    requests: tuple[str, ...]
    driver: str
    parameters: bytes


class Claim(Frozen):
    """A ResourceClaim. allocated: the scheduler has given it devices. reserved_for: who may use it."""

    ref: ClaimRef
    allocated: bool
    results: tuple[ClaimResult, ...] = ()
    configs: tuple[ClaimConfig, ...] = ()
    reserved_for: tuple[Consumer, ...] = ()

    @property
    def pods(self) -> tuple[PodUid, ...]:
        """The pods among those who may use it."""
        return tuple(PodUid(consumer.uid) for consumer in self.reserved_for if consumer.resource == "pods")


def parse_claim(content: bytes, driver: str) -> Claim:
    """The claim in an answer of the API server. driver: whose amounts are read.

    Raises CodecError, with the path of what is missing or of another type.
    """
    return claim_of(decode(ClaimJson, content, strict=False), driver)


def claim_of(claim: ClaimJson, driver: str) -> Claim:
    """The same of what was decoded already. Raises CodecError for an amount that is none."""
    status = claim.status or _Status()
    allocation = status.allocation or _Allocation()
    devices = allocation.devices or _Devices()
    return Claim(
        ref=ClaimRef(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid),
        allocated=status.allocation is not None,
        results=tuple(result.value(driver) for result in devices.results or ()),
        configs=tuple(
            config.value(config.opaque) for config in devices.config or () if config.opaque is not None
        ),
        reserved_for=tuple(status.reserved_for or ()),
    )


# --- as the API server writes it ---------------------------------------------------------------


class _Meta(Frozen):
    name: str
    namespace: str
    uid: str


class _Result(AllottedDevice):
    driver: str
    share_id: str | None = field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int] | None = None
    admin_access: bool | None = None

    def value(self, driver: str) -> ClaimResult:
        """Raises CodecError."""
        amounts = self.consumed_capacity or {} if self.driver == driver else {}
        consumed = {name: _whole(amount, name, self.device) for name, amount in amounts.items()}
        return ClaimResult(
            self.request,
            self.pool,
            self.device,
            self.driver,
            self.share_id,
            consumed,
            admin_access=self.admin_access is True,
        )


class _Opaque(Frozen):
    driver: str
    parameters: Raw


class _Config(Frozen):
    source: ConfigSource
    requests: tuple[str, ...] | None = None
    opaque: _Opaque | None = None

    def value(self, opaque: _Opaque) -> ClaimConfig:
        return ClaimConfig(self.source, self.requests or (), opaque.driver, bytes(opaque.parameters))


class _Devices(Frozen):
    results: tuple[_Result, ...] | None = None
    config: tuple[_Config, ...] | None = None


class _Allocation(Frozen):
    devices: _Devices | None = None


class _Status(Frozen):
    allocation: _Allocation | None = None
    reserved_for: tuple[Consumer, ...] | None = None


class ClaimJson(Frozen):
    """A ResourceClaim, as JSON."""

    metadata: _Meta
    status: _Status | None = None


def _whole(amount: str | int, name: str, device: str) -> int:
    """A whole number that is not negative. Raises CodecError."""
    try:
        number = parse_quantity(str(amount))
    except ValueError as error:
        raise CodecError(f"{name[:60]} of {device[:63]}: {error}") from None
    if number != int(number):
        raise CodecError(f"{name[:60]} of {device[:63]}: {str(amount)[:32]!r} is not a whole number")
    return int(number)

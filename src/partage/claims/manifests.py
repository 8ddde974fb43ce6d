"""ResourceClaims, ResourceClaimTemplates and DeviceClasses of manifests, or as the API server has them.

What is read is collected with its problems: ``check`` shows them, ``explain`` refuses what is wrong. What the
API server checks is not checked here, unless what is asked for depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from partage.claims.decide.classes import names_meant
from partage.claims.decide.config import ConfigError, read_config
from partage.claims.model.claim import (
    ClaimConfig,
    ClaimRequest,
    ClaimSpec,
    ConfigSource,
    DeviceAsk,
    DeviceClass,
    DeviceRule,
)
from partage.claims.model.names import OWN_NAMES, ClaimNames
from partage.codec.fields import nearest_word
from partage.codec.values import decode
from partage.errors import InputError
from partage.kubernetes.decide.node_rules import Toleration
from partage.kubernetes.manifests.node import CheckedProblem, LineOf, ManifestNode
from partage.kubernetes.manifests.pods import object_place
from partage.units import parse_quantity

GROUP, VERSION = "resource.k8s.io", "v1"
CLAIM, TEMPLATE, CLASS = "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"
KINDS = (CLAIM, TEMPLATE, CLASS)

_REQUEST = ("name", "exactly", "firstAvailable")
_ASK = ("deviceClassName", "selectors", "allocationMode", "count", "tolerations", "capacity")
_EXACTLY = (*_ASK, "adminAccess")
_DEVICES = ("requests", "constraints", "config")
_SAME_SHAPE = "v1beta2"


def is_claim_object(document: Mapping[str, Any]) -> bool:
    """Whether the object is one of those three, of any version."""
    group = str(document.get("apiVersion")).partition("/")[0]
    return document.get("kind") in KINDS and group in (GROUP, VERSION)


def device_class_of(name: str, spec: bytes) -> DeviceClass:
    """A DeviceClass as the API server has it. spec: JSON. Raises CodecError."""
    document = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": CLASS,
        "metadata": {"name": name},
        "spec": decode(dict[str, Any], spec),
    }
    return ClaimObjectReader(document).device_class()


class ClaimObjectReader:
    """Reads one object, and collects what is wrong in it.

    names: of the driver whose configuration is looked into.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        file: str = "",
        path: str = "",
        line_of: LineOf | None = None,
        names: ClaimNames = OWN_NAMES,
    ) -> None:
        self.top = object_place(document, file, path, line_of)
        self.problems: list[CheckedProblem] = []
        self._names = names
        self._kind = str(document.get("kind"))
        self._name = str(self.top.at("metadata", "name").value or "without a name")

    @property
    def devices(self) -> ManifestNode:
        """Where the requests are."""
        deep = self.top.at("spec", "spec", "devices")
        shallow = self.top.at("spec", "devices")
        return deep if self._kind == TEMPLATE and shallow.value is None else shallow

    def request_node(self, name: str) -> ManifestNode:
        """The place of a request or alternative by its name, ``req`` or ``req/sub``."""
        first, _, second = name.partition("/")
        for place in self.devices.at("requests").items:
            if place.at("name").value == first:
                for sub in place.at("firstAvailable").items if second else ():
                    if sub.at("name").value == second:
                        return sub
                return place if second else place.at("exactly")
        return self.devices

    def spec(self) -> ClaimSpec:
        """Of a claim or template."""
        self._version()
        if self._kind == TEMPLATE and self.top.at("spec", "devices").value is not None:
            self._wrong(
                self.top.at("spec", "devices"),
                "devices of a template stand one level deeper: Kubernetes ignores these",
                "spec: {spec: {devices: ...}}",
            )
        devices = self.devices
        self._keys(devices, _DEVICES)
        requests = tuple(self._request(place) for place in devices.at("requests").items)
        if not requests:
            self._wrong(devices, "the claim asks for nothing", "spec.devices.requests has a request")
        return ClaimSpec(
            f"{self._kind} {self._name}",
            tuple(request for request in requests if request is not None),
            tuple(self._rules(devices)),
            tuple(self._configs(devices.at("config"), ConfigSource.CLAIM)),
        )

    def device_class(self) -> DeviceClass:
        """Of a DeviceClass."""
        self._version()
        spec = self.top.at("spec")
        self._keys(spec, ("selectors", "config", "extendedResourceName"))
        return DeviceClass(
            self._name,
            self._selectors(spec),
            tuple(self._configs(spec.at("config"), ConfigSource.CLASS)),
            self._text(spec.at("extendedResourceName")),
        )

    # --- parts ------------------------------------------------------------------------------------

    def _version(self) -> None:
        group, _, version = str(self.top.at("apiVersion").value).partition("/")
        if (group, version) == (GROUP, VERSION):
            return
        said = f"apiVersion is {self.top.at('apiVersion').value}"
        hint = f"apiVersion: {GROUP}/{VERSION}"
        if group == GROUP and version == _SAME_SHAPE:
            self.problems.append(
                self.top.at("apiVersion").warning(f"{said}, which newer servers do not have", hint)
            )
        else:
            self._wrong(self.top.at("apiVersion"), f"{said}: claims are of {GROUP}/{VERSION}", hint)

    def _request(self, place: ManifestNode) -> ClaimRequest | None:
        name = self._text(place.at("name"))
        inline = [key for key in place.keys if key in _EXACTLY]
        if inline:
            self._wrong(
                place.at(inline[0]),
                f"{inline[0]} stands in the request itself, as in v1beta1: Kubernetes ignores it there",
                f"exactly: {{{inline[0]}: ...}}",
            )
        else:
            self._keys(place, _REQUEST)
        alternatives = place.at("firstAvailable").items
        exactly = place.at("exactly")
        if (exactly.value is None) is not bool(alternatives):
            if not inline:
                self._wrong(
                    place, "needs one of exactly and firstAvailable", "exactly: {deviceClassName: ...}"
                )
            return None
        if not alternatives:
            self._keys(exactly, _EXACTLY)
            return ClaimRequest(name, (self._ask(exactly, name),))
        ways = []
        for sub in alternatives:
            self._keys(sub, ("name", *_ASK))
            ways.append(self._ask(sub, f"{name}/{self._text(sub.at('name'))}"))
        return ClaimRequest(name, tuple(ways))

    def _ask(self, place: ManifestNode, name: str) -> DeviceAsk:
        device_class = self._text(place.at("deviceClassName"))
        if not device_class:
            self._wrong(place, "names no class", "deviceClassName: gpu.partage.dev")
        count = place.at("count").value
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            self._wrong(place.at("count"), f"{count!r} is no number of devices", "1 or more")
            count = None
        mode = place.at("allocationMode").value
        if mode not in (None, "ExactCount", "All"):
            self._wrong(place.at("allocationMode"), f"{mode!r} is none of ExactCount and All")
        self._keys(place.at("capacity"), ("requests",))
        return DeviceAsk(
            name=name,
            device_class=device_class,
            selectors=self._selectors(place),
            named=tuple(self._amounts(place.at("capacity", "requests"))),
            count=min(count or 1, 64),
            every=mode == "All",
            admin=place.at("adminAccess").value is True,
            tolerations=tuple(map(self._toleration, place.at("tolerations").items)),
        )

    def _amounts(self, place: ManifestNode) -> Iterator[tuple[str, Decimal]]:
        for name in place.keys:
            value = place.at(name).value
            try:
                if isinstance(value, bool) or not isinstance(value, int | float | str):
                    raise ValueError(f"{value!r} is not an amount")  # noqa: TRY004, TRY301 - as every other
                yield name, parse_quantity(str(value).strip())
            except ValueError as error:
                self._wrong(place.at(name), str(error), "10Gi of memory, 25 of cores")

    def _selectors(self, place: ManifestNode) -> tuple[str, ...]:
        found = []
        for selector in place.at("selectors").items:
            self._keys(selector, ("cel",))
            text = self._text(selector.at("cel", "expression"))
            if not text:
                self._wrong(selector, "has no expression", "- cel: {expression: ...}")
            found.append(text)
        return tuple(found)

    def _toleration(self, place: ManifestNode) -> Toleration:
        key, value, effect = (self._text(place.at(word)) for word in ("key", "value", "effect"))
        return Toleration(key, self._text(place.at("operator")) or "Equal", value, effect)

    def _rules(self, devices: ManifestNode) -> Iterator[DeviceRule]:
        for place in devices.at("constraints").items:
            self._keys(place, ("requests", "matchAttribute", "distinctAttribute"))
            requests = tuple(self._text(name) for name in place.at("requests").items)
            for key, distinct in (("matchAttribute", False), ("distinctAttribute", True)):
                if attribute := self._text(place.at(key)):
                    yield DeviceRule(requests, attribute, distinct)

    def _configs(self, places: ManifestNode, source: ConfigSource) -> Iterator[ClaimConfig]:
        for place in places.items:
            opaque = place.at("opaque")
            self._keys(place, ("requests", "opaque") if source is ConfigSource.CLAIM else ("opaque",))
            parameters = opaque.at("parameters")
            requests = tuple(self._text(name) for name in place.at("requests").items)
            content = json.dumps(parameters.value).encode()
            config = ClaimConfig(source, requests, self._text(opaque.at("driver")), content)
            if config.driver == self._names.driver:
                try:
                    read_config(config, self._names)
                except ConfigError as error:
                    self._wrong(parameters, str(error))
            yield config

    # --- problems -----------------------------------------------------------------------------------

    def _keys(self, place: ManifestNode, known: Collection[str]) -> None:
        for key in place.keys:
            if key not in known:
                near = nearest_word(key, list(known))
                hint = f"did you mean {near}?" if near else f"possible: {', '.join(known)}"
                self._wrong(place.at(key), f"unknown key {key}: Kubernetes ignores or refuses it", hint)

    def _text(self, place: ManifestNode) -> str:
        if place.value is None or isinstance(place.value, str):
            return place.value or ""
        self._wrong(place, f"{place.value!r} is not a text", "write it in quotes")
        return ""

    def _wrong(self, place: ManifestNode, message: str, hint: str = "") -> None:
        self.problems.append(place.error(message, hint))


def names_in(documents: Iterable[Mapping[str, Any]]) -> ClaimNames:
    """Whose names the claims, templates and classes of manifests mean, whatever is wrong in them."""
    readers = [ClaimObjectReader(document) for document in documents if is_claim_object(document)]
    classes = [reader.device_class() for reader in readers if reader.top.at("kind").value == CLASS]
    return names_meant([reader.spec() for reader in readers if reader.top.at("kind").value != CLASS], classes)


def read_or_refuse(reader: ClaimObjectReader) -> ClaimSpec | DeviceClass:
    """What the object says. Raises InputError with everything that is wrong."""
    found = reader.device_class() if reader.top.at("kind").value == CLASS else reader.spec()
    wrong = [finding.problem for finding in reader.problems if finding.problem.severity == "error"]
    if wrong:
        raise InputError(wrong)
    return found

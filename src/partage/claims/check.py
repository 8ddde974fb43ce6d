"""What is wrong with claims, templates and classes of manifests, also beside what a policy offers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from partage.claims.decide.book import ClaimBook
from partage.claims.decide.cel import SelectorError, selects
from partage.claims.decide.cel_syntax import NotEvaluated
from partage.claims.decide.charge import Charge, charge_of
from partage.claims.decide.nearest import nearest
from partage.claims.decide.scheduling import Classes, PodClaim, Unplaced, place, refused_by_node
from partage.claims.manifests import CLASS, ClaimObjectReader, is_claim_object
from partage.claims.model.claim import ClaimSpec, DeviceAsk, DeviceClass, amount_words
from partage.claims.model.names import CORES, MEMORY, NVIDIA_NAMES, OWN_NAMES, SHARES, ClaimNames
from partage.codec.fields import nearest_word
from partage.kubernetes.manifests.node import CheckedProblem, LineOf
from partage.model.ids import GPU_CLASS, SHARE_CLASS
from partage.text import listed
from partage.values import Frozen

_CAPACITIES: Mapping[str, tuple[str, ...]] = {
    GPU_CLASS: (MEMORY, CORES),
    SHARE_CLASS: (SHARES,),
    NVIDIA_NAMES.class_of(GPU_CLASS): (MEMORY, CORES, SHARES),
}
"""What a request can name an amount of, by classes whose devices are shared."""
_PROFILE = re.compile(r"""\.profile\s*==\s*['"]([^'"]{1,40})['"]""")


class ClaimTerms(Frozen):
    """What claims are judged by. classes: by name, those of the files with those of the chart. book: what a
    policy offers to claims on the machine, names: what it lists by device plugin there; None: not known.
    driver: whose names hold. models_of: the ids of the models that have a MIG profile.
    """

    classes: Classes
    models_of: Callable[[str], Collection[str]]
    book: ClaimBook | None = None
    names: Collection[str] = ()
    driver: ClaimNames = OWN_NAMES


def class_of_object(document: Mapping[str, Any]) -> DeviceClass | None:
    """The DeviceClass that the object is, whatever is wrong in it; None: it is none."""
    if not is_claim_object(document) or document.get("kind") != CLASS:
        return None
    return ClaimObjectReader(document).device_class()


def claim_findings(
    document: Mapping[str, Any], file: str, path: str, line_of: LineOf | None, terms: ClaimTerms
) -> Iterator[CheckedProblem]:
    """Everything that is wrong with one object; nothing for an object of another kind."""
    if not is_claim_object(document):
        return
    reader = ClaimObjectReader(document, file, path, line_of, terms.driver)
    if document.get("kind") == CLASS:
        device_class = reader.device_class()
        yield from reader.problems
        yield from _name_twice(reader, device_class, terms)
        return
    spec = reader.spec()
    yield from reader.problems
    wrong = bool(reader.problems)
    for request in spec.requests:
        for way in request.ways:
            found = [*_of_way(reader, way, terms)]
            yield from found
            wrong = wrong or any(finding.problem.severity == "error" for finding in found)
    if not wrong and terms.book is not None:
        yield from _on_machine(reader, spec, terms, terms.book)


def _name_twice(
    reader: ClaimObjectReader, device_class: DeviceClass, terms: ClaimTerms
) -> Iterator[CheckedProblem]:
    """Where a device plugin lists the name, too, the scheduler takes claims as soon as it lists nothing."""
    name = device_class.extended
    if not name or terms.book is None or name not in terms.names:
        return
    if any(_of_class(device_class, terms.book)):
        yield reader.top.at("spec", "extendedResourceName").error(
            f"the node lists {name} by device plugin, and has GPUs for claims behind this class: the "
            "scheduler takes those only once the plugin lists nothing, while pods of before still hold GPUs",
            "give the class another extendedResourceName, or all GPUs of the name to claims (via: claims)",
            here=True,
        )


def _of_class(device_class: DeviceClass, book: ClaimBook) -> Iterator[bool]:
    for device in book.devices:
        try:
            yield all(selects(text, device.device, device.driver) for text in device_class.selectors)
        except (SelectorError, NotEvaluated):
            yield False


def _of_way(reader: ClaimObjectReader, way: DeviceAsk, terms: ClaimTerms) -> Iterator[CheckedProblem]:
    place_ = reader.request_node(way.name)
    if way.device_class and way.device_class not in terms.classes:
        near = nearest_word(way.device_class, sorted(terms.classes))
        known = f"there are: {listed(sorted(terms.classes))}; others are looked up in the cluster only"
        yield place_.at("deviceClassName").warning(
            f"no DeviceClass {way.device_class} is known here", f"did you mean {near}?" if near else known
        )
    possible = _CAPACITIES.get(way.device_class)
    for name, amount in way.amounts.items():
        asked = place_.at("capacity", "requests", name)
        if possible is not None and name not in possible:
            near = nearest_word(name, list(possible))
            there = f"possible: {', '.join(possible)}"
            yield asked.error(
                f"nothing of {way.device_class} can be asked for as {name}",
                f"did you mean {near}?" if near else there,
            )
        elif name == CORES and amount > 100:
            yield asked.error(
                f"{amount_words(amount)} of cores is more than all", "cores are percent, at most 100"
            )
    for number, expression in enumerate(way.selectors):
        for profile in _PROFILE.findall(expression):
            if not terms.models_of(profile):
                yield place_.at("selectors", number).warning(
                    f"no known GPU model has a MIG profile {profile}", "look for a misprint"
                )


def _on_machine(
    reader: ClaimObjectReader, spec: ClaimSpec, terms: ClaimTerms, book: ClaimBook
) -> Iterator[CheckedProblem]:
    """Beside what the policy offers, with nobody on it."""
    if any(way.device_class not in terms.classes for request in spec.requests for way in request.ways):
        return
    claim = PodClaim("claim", spec)
    found = place([claim], book, terms.classes)
    if isinstance(found, Unplaced):
        asked = reader.request_node(found.request.name if len(found.ways) > 1 else found.ways[0].way.name)
        yield asked.error(f"the pod would stay pending: {nearest(found)}", "ask for what is there", here=True)
        return
    for given in found.given:
        charge = charge_of(given.way, given.device.device)
        for name, amount in given.way.amounts.items():
            if isinstance(charge, Charge) and charge.amounts.get(name, amount) > amount:
                there = reader.request_node(given.way.name).at("capacity", "requests", name)
                charged = amount_words(charge.amounts[name])
                yield there.warning(
                    f"{name} {amount_words(amount)} counts as {charged}: the GPU is shared in larger steps",
                    f"ask for {charged}",
                    here=True,
                )
    refused = refused_by_node([claim], found, book, terms.classes, {})
    if refused is not None:
        yield reader.devices.error(f"the node would refuse it: {refused.text}", here=True)

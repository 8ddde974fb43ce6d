"""The DeviceClasses of the chart, and whose names hold, where nobody has looked into a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from partage.claims.model.claim import ClaimSpec, DeviceClass
from partage.claims.model.names import NAMES_OF_DRIVER, OWN_NAMES, ClaimNames, Mode
from partage.model.ids import GPU_CLASS, MIG_CLASS, SHARE_CLASS, ResourceName

MODES_OF: Mapping[ResourceName, tuple[Mode, ...]] = {
    GPU_CLASS: (Mode.WHOLE, Mode.AMOUNTS),
    SHARE_CLASS: (Mode.REPLICAS,),
    MIG_CLASS: (Mode.MIG,),
}
"""What each class of Partage's selects."""


def chart_classes(names: ClaimNames = OWN_NAMES) -> dict[str, DeviceClass]:
    """The classes by name, each with the expression that the chart writes."""
    driver, found = names.driver, {}
    for resource, modes in MODES_OF.items():
        name = names.class_of(resource)
        attribute, values = "mode", [str(mode) for mode in modes]
        if names.classes:  # NVIDIA's, whose devices have no mode
            attribute, values = "type", ["mig" if resource == MIG_CLASS else "gpu"]
        listed = ",".join(f'"{value}"' for value in values)
        expression = f'device.driver == "{driver}" && device.attributes["{driver}"].{attribute} in [{listed}]'
        found[str(name)] = DeviceClass(name, (expression,))
    return found


def names_meant(claims: Iterable[ClaimSpec], classes: Collection[DeviceClass] = ()) -> ClaimNames:
    """Whose names hold where no node says it. classes: that stand beside the claims: the driver that they
    select says it. Else the classes that the claims ask for do: Partage's, unless all that are known are
    NVIDIA's.
    """
    written = "\n".join(text for device_class in classes for text in device_class.selectors)
    selected = [names for driver, names in NAMES_OF_DRIVER.items() if _quoted(driver, written)]
    if len(selected) == 1:
        return selected[0]
    asked = {way.device_class for spec in claims for request in spec.requests for way in request.ways}
    meant = [names for names in NAMES_OF_DRIVER.values() if asked & chart_classes(names).keys()]
    return meant[0] if len(meant) == 1 else OWN_NAMES


def _quoted(driver: str, text: str) -> bool:
    return f'"{driver}"' in text or f"'{driver}'" in text

"""The DeviceClasses of the chart: what claims can name where nobody has looked into a cluster."""

from __future__ import annotations

from collections.abc import Mapping

from partage.claims.model.names import OWN_NAMES, Mode
from partage.claims.model.request import DeviceClass
from partage.model.ids import GPU_CLASS, MIG_CLASS, SHARE_CLASS

MODES_OF: Mapping[str, tuple[Mode, ...]] = {
    GPU_CLASS: (Mode.WHOLE, Mode.AMOUNTS),
    SHARE_CLASS: (Mode.REPLICAS,),
    MIG_CLASS: (Mode.MIG,),
}
"""What each class selects."""


def chart_classes(driver: str = OWN_NAMES.driver) -> dict[str, DeviceClass]:
    """The classes by name, each with the expression that the chart writes."""
    found = {}
    for name, modes in MODES_OF.items():
        listed = ",".join(f'"{mode}"' for mode in modes)
        expression = f'device.driver == "{driver}" && device.attributes["{driver}"].mode in [{listed}]'
        found[name] = DeviceClass(name, (expression,))
    return found

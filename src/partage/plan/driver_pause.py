"""Whether the driver has to be left alone, by what the GPU Operator says. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

VALIDATIONS = ("driver-ready", "toolkit-ready")
"""Files that the GPU Operator's validator writes, in this order, once the driver and then the container
toolkit work."""

_DEPLOY = "nvidia.com/gpu.deploy."
_PAUSED = "paused-for-"


def paused_by(labels: Mapping[str, str]) -> str:
    """Why the users of the driver have to let go of it; empty if they need not.

    Before an upgrade of the driver, and before a change of MIG layouts by NVIDIA's manager, the Operator
    gives its labels ``nvidia.com/gpu.deploy.*`` a value such as ``paused-for-driver-upgrade``, except those
    that an admin has set to ``false``.
    """
    for key in sorted(labels):
        if key.startswith(_DEPLOY) and labels[key].startswith(_PAUSED):
            return f"the Node's label {key} says {labels[key]}"
    return ""


def not_validated(directory: str, files: Collection[str] | None) -> str:
    """Which validation of the GPU Operator is still to come; empty if none is.

    files: names in its directory; None: there is no such directory, so no Operator.
    """
    if files is None:
        return ""
    missing = [name for name in VALIDATIONS if name not in files]
    return f"the GPU Operator has not written {directory}/{missing[0]} yet" if missing else ""

"""What an XID means for its GPU: a table, and the operator's exceptions.

Source of the table: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, "Resolution Bucket
(Immediate Action)"), read in October 2025; the XIDs that NVIDIA's device plugin v0.20.0 ignores;
docs/adr/0021.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from partage.values import Frozen


class XidClass(StrEnum):
    """What follows from an XID.

    ignored: nothing; an error of the application (catalogue: RESTART_APP), or information (IGNORE).
    unknown: the meaning is not known; the GPU is suspect.
    fault: the GPU is not offered until some time has passed without events.
    reset: the GPU is not offered until there is proof of a reset (catalogue: RESET_GPU, RESTART_BM).
    """

    IGNORED = "ignored"
    UNKNOWN = "unknown"
    FAULT = "fault"
    RESET = "reset"


RESET_XIDS = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    64: "row remapping failure",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",  # ignored by NVIDIA's plugin, RESET_GPU in NVIDIA's catalogue
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    155: "NVLink software-defined error",
    156: "resource retirement event",
    158: "GPU fatal timeout",
    167: "PCIe fatal timeout",
    169: "internal micro-controller halt",
}
"""XIDs after which the GPU needs a reset (or the node a reboot), with their meaning."""

IGNORED_XIDS = frozenset(
    {
        # RESTART_APP: push buffers, exceptions, page faults, copy and media engines, contained memory errors.
        *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86),
        *(88, 89, 94, 96, 97, 98, 99, *range(100, 106), *range(126, 136), 139),
        # IGNORE: channels cleaned up, firmware notes, rows remapped, error rates, test messages. 154 says
        # that the recovery action changed, which every GpuCondition reports too.
        *(14, 37, 38, 43, 44, 45, 63, 66, 67, 78, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 154),
        *(157, 160, 161, 162, 163, 164, 165),
        # Encoders: unused in the catalogue, ignored by NVIDIA's plugin.
        65,
    }
)
"""XIDs that are no sign of a broken GPU."""


COUNTED_XIDS = (*sorted({*RESET_XIDS, 13, 31, 43, 45, 63, 92, 94}),)
"""XIDs that are worth an alert: counted from 0. Besides those that need a reset, errors of applications (13,
31, 43,
45), remapped rows (63), many corrected errors (92), contained memory errors (94).
"""


class XidRules(Frozen):
    """The operator's exceptions (DP_DISABLE_HEALTHCHECKS, DP_ENABLE_HEALTHCHECKS).

    off: no health checks, except that a GPU that does not answer is never offered.
    xids_off: XIDs are ignored.
    disabled: these XIDs are ignored.
    enabled, all_enabled: these XIDs count, whatever the other fields say; one that the table ignores is a
    fault.
    """

    off: bool = False
    xids_off: bool = False
    disabled: frozenset[int] = frozenset()
    enabled: frozenset[int] = frozenset()
    all_enabled: bool = False

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> XidRules:
        """From the two variables."""
        return cls.parse(
            environ.get("DP_DISABLE_HEALTHCHECKS", ""), environ.get("DP_ENABLE_HEALTHCHECKS", "")
        )

    @classmethod
    def parse(cls, disable: str, enable: str) -> XidRules:
        """From the texts of the two variables; empty if not set.

        ``all``, ``xids`` (to disable only) or XIDs separated by commas. Malformed items are skipped, as in
        NVIDIA's plugin. ``all`` disabled and some enabled: all but those are ignored (NVIDIA's plugin: no
        check at all).
        """
        disabled, enabled = _items(disable), _items(enable)
        return cls(
            off="all" in disabled,
            xids_off=not disabled.isdisjoint({"all", "xids"}),
            disabled=_codes(disabled),
            enabled=_codes(enabled),
            all_enabled="all" in enabled,
        )

    def class_of(self, code: int) -> XidClass:
        """The class of this XID under these rules."""
        meaning = _in_table(code)
        if self.all_enabled or code in self.enabled:
            return XidClass.RESET if meaning is XidClass.RESET else XidClass.FAULT
        if self.xids_off or code in self.disabled:
            return XidClass.IGNORED
        return meaning


def describe(code: int) -> str:
    """``XID 79 (GPU has fallen off the bus)``."""
    return f"XID {code} ({RESET_XIDS[code]})" if code in RESET_XIDS else f"XID {code}"


DEFAULT_RULES = XidRules()


def _in_table(code: int) -> XidClass:
    if code in RESET_XIDS:
        return XidClass.RESET
    return XidClass.IGNORED if code in IGNORED_XIDS else XidClass.UNKNOWN


def _items(text: str) -> set[str]:
    return {item.strip().lower() for item in text.split(",")}


def _codes(items: set[str]) -> frozenset[int]:
    return frozenset(int(item) for item in items if item.isascii() and item.isdigit() and len(item) < 10)

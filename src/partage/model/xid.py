"""What an XID says about its GPU: a table, and the operator's exceptions to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class XidClass(StrEnum):
    """note: nothing (an application's fault, or information). doubt: unknown. fault: out, back when quiet.
    reset: out, back with proof of a reset."""

    NOTE = "note"
    DOUBT = "doubt"
    FAULT = "fault"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class XidRules:
    """The operator's exceptions (DP_DISABLE_HEALTHCHECKS, DP_ENABLE_HEALTHCHECKS).

    off: no health checks at all but for a lost GPU. xids_off: XIDs change nothing.
    disabled: these change nothing. enabled, all_enabled: these count, whatever else stands here.
    """

    off: bool = False
    xids_off: bool = False
    disabled: frozenset[int] = frozenset()
    enabled: frozenset[int] = frozenset()
    all_enabled: bool = False

    @classmethod
    def parse(cls, disable: str, enable: str) -> XidRules:
        """The two variables' texts, empty where unset. Malformed items are skipped, as NVIDIA's plugin does."""
        raise NotImplementedError

    def class_of(self, code: int) -> XidClass:
        """What this XID means under these rules."""
        raise NotImplementedError


DEFAULT_RULES = XidRules()

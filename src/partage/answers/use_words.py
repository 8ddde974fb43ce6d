"""Figures of use in words, for ``show`` and the page."""

from __future__ import annotations

UNKNOWN = "not known"
WHEN_SAMPLED = "The agent samples while a share is held, its metrics are scraped, or its page is open."


def part(value: float | None) -> str:
    """``43 %``, of a part from 0 to 1. What is more than nothing is not called 0."""
    if value is None:
        return UNKNOWN
    return "<1 %" if 0 < value < 0.005 else f"{value:.0%}".replace("%", " %")


def degrees(value: float | None) -> str:
    """``61 °C``."""
    return UNKNOWN if value is None else f"{value:.0f} °C"


def watts(value: float | None) -> str:
    """``250 W``."""
    return UNKNOWN if value is None else f"{value:.0f} W"

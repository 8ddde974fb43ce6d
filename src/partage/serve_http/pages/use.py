"""What a GPU does, on the page: figures of now, small curves of the last hour, and their numbers as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from xml.etree.ElementTree import Element

from partage.answers.documents.use import HourRow, SampledGpuRow, UseRow
from partage.answers.wording import UNKNOWN, WHEN_SAMPLED, degrees, part, watts
from partage.serve_http.pages.markup import Child, element, moment
from partage.units import format_bytes

_TOP = 100
"""Height of a curve in units of its drawing; the style sheet has it in pixels."""
_LEAST = 3.0
"""Height of a minute with 0, so that it is not taken for one that nobody sampled."""

Minute = tuple[str, float | None, int | None, float | None, float | None]
"""``12:05``, and the figures of that minute."""


def sampled(use: UseRow | None) -> Element:
    """When the figures of use were sampled; where there are none of now, since when, and what would help."""
    if use is None:
        return element("p", "Use of the GPUs: not told by this version of the agent.", class_="dim")
    if use.gpus and use.sampled_at:
        return element("p", "Use of the GPUs: sampled ", moment(use.sampled_at), ".", class_="dim")
    since = moment(use.sampled_at or use.began_at)
    return element("p", "Use of the GPUs: not sampled since ", since, f". {WHEN_SAMPLED}", class_="dim")


def gpu_use(index: int, now: SampledGpuRow | None, hour: HourRow | None) -> Element | None:
    """The figures of one GPU and its curves; None where nothing is known."""
    if now is None and hour is None:
        return None
    total = now.memory_total_bytes if now is not None else None
    busy = None if now is None else now.utilisation
    used = None if now is None else now.memory_used_bytes
    return element(
        "div",
        _figure("Utilisation", part(busy), _busy_curve(index, hour)),
        _figure("Memory", _bytes(used), _memory_curve(index, hour, total)),
        element(
            "div",
            *_sensor("Temperature", degrees(now.temperature_c if now else None)),
            *_sensor("Power", _power(now)),
            class_="figure sensors",
        ),
        class_="use",
    )


def hour_details(index: int, hour: HourRow) -> Element:
    """All numbers of the curves of one GPU, the latest first, as a table that can be opened."""
    head = element(
        "tr",
        *(
            element("th", name, scope="col")
            for name in ("Minute (UTC)", "Utilisation", "Memory used", "Temperature", "Power")
        ),
    )
    rows = list(_table_rows(hour))[::-1]
    return element(
        "details",
        element("summary", f"GPU {index}, minute by minute"),
        element(
            "table",
            element("caption", f"The last hour of GPU {index}", class_="unseen"),
            element("thead", head),
            element("tbody", *rows),
            class_="numbers",
        ),
        id=f"hour-{index}",
    )


# --- figures -------------------------------------------------------------------------------------


def _figure(name: str, value: str, curve: Element | None) -> Element:
    return element(
        "div", element("span", f"{name} ", class_="dim"), element("strong", value), curve, class_="figure"
    )


def _sensor(name: str, value: str) -> tuple[Element, Element]:
    """Its unit says what it is; its name is for those who cannot see where it stands."""
    return element("span", f"{name} ", class_="unseen"), element("strong", value, title=name)


def _bytes(used: int | None) -> str:
    return UNKNOWN if used is None else format_bytes(used)


def _power(now: SampledGpuRow | None) -> str:
    if now is None or now.power_w is None:
        return watts(None)
    if now.power_limit_w is None:
        return watts(now.power_w)
    return f"{now.power_w:.0f} of {watts(now.power_limit_w)}"


# --- curves --------------------------------------------------------------------------------------


def _busy_curve(index: int, hour: HourRow | None) -> Element | None:
    if hour is None:
        return None
    known = [busy for busy in hour.utilisation if busy is not None]
    if not known:
        return None
    text = f"{part(min(known))} to {part(max(known))}"
    return _curve(
        [None if busy is None else min(1.0, busy) for busy in hour.utilisation], index, "utilisation", text
    )


def _memory_curve(index: int, hour: HourRow | None, total: int | None) -> Element | None:
    known = (
        []
        if hour is None
        else [used_bytes for used_bytes in hour.memory_used_bytes if used_bytes is not None]
    )
    if hour is None or not known:
        return None
    top = total or max(known) or 1
    text = f"{format_bytes(min(known))} to {format_bytes(max(known))}"
    parts = [
        None if used_bytes is None else min(1.0, used_bytes / top) for used_bytes in hour.memory_used_bytes
    ]
    return _curve(parts, index, "memory used", text)


def _curve(parts: Sequence[float | None], index: int, what: str, text: str) -> Element:
    """A bar for each minute, without gaps between them: 0 to 1; None: no bar. It leads to its numbers."""
    bars = "".join(
        f"M{minute} {_TOP}v{-max(_LEAST, height * _TOP):.0f}h1V{_TOP}z"
        for minute, height in enumerate(parts)
        if height is not None
    )
    drawn = element(
        "svg",
        element("path", d=bars),
        class_="curve",
        viewBox=f"0 0 {len(parts)} {_TOP}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"GPU {index}, {what} in the last hour: {text}. All numbers",
    )
    return element("a", drawn, href=f"#hour-{index}", title=f"{what} in the last hour: {text}")


# --- numbers -------------------------------------------------------------------------------------


def _minutes(hour: HourRow) -> Iterator[Minute]:
    begins = datetime.fromisoformat(hour.begins_at)
    columns = (hour.utilisation, hour.memory_used_bytes, hour.temperature_c, hour.power_w)
    for passed, (busy, used, warm, power) in enumerate(zip(*columns, strict=True)):
        yield f"{begins + timedelta(minutes=passed):%H:%M}", busy, used, warm, power


def _table_rows(hour: HourRow) -> Iterator[Element]:
    """A row for each minute that was sampled, and one for all those without samples between two of them."""
    for sampled, some in groupby(_minutes(hour), key=lambda one: any(value is not None for value in one[1:])):
        minutes = list(some)
        if not sampled:
            first, last = minutes[0][0], minutes[-1][0]
            when = first if first == last else f"{first} to {last}"
            yield _row(when, element("td", "not sampled", colspan="4"))
        else:
            for when, busy, used, warm, power in minutes:
                yield _row(when, part(busy), _bytes(used), degrees(warm), watts(power))


def _row(when: str, *cells: Child) -> Element:
    made = (cell if isinstance(cell, Element) else element("td", cell) for cell in cells)
    return element("tr", element("th", when, scope="row"), *made)

"""A GPU on the page: who holds what of it and uses how much memory, figures of now, small curves of the last
hour, and their numbers as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from xml.etree.ElementTree import Element

from partage.answers.documents.report import EntryRow, ReportDocument
from partage.answers.documents.use import HourRow, SampledGpuRow, UseRow
from partage.answers.wording import UNKNOWN, WHEN_SAMPLED, degrees, part, watts, who_holds
from partage.model.ids import GpuUuid, ShareId
from partage.model.share import Guarantee
from partage.plan.serve.ledger_entry import Certainty
from partage.serve_http.pages.markup import Child, element, moment
from partage.units import format_bytes
from partage.values import Frozen


class MemoryUse(Frozen):
    """What a container uses of a GPU. peak_bytes: the highest since it began; None: not known. at_least: not
    all of its use is known. utilisation: its part of the GPU's time, 0 to 1; None: not known.
    """

    used_bytes: int
    peak_bytes: int | None = None
    at_least: bool = False
    utilisation: float | None = None


Uses = Mapping[tuple[GpuUuid, str], MemoryUse]
"""GPU and container, ``namespace/pod/container``, to what it uses."""


class HeldShares(Frozen):
    """What one container holds of one GPU under one resource. shares: ids. use: None: not known. by_memory:
    they are units of memory.
    """

    resource: str
    holders: tuple[str, ...]
    shares: tuple[ShareId, ...]
    since: str
    certainty: Certainty
    use: MemoryUse | None = None
    promised_bytes: int | None = None
    guarantee: Guarantee | None = None
    by_memory: bool = False


def sampled_uses(report: ReportDocument) -> Uses:
    """What was sampled last. A container with several MIG devices of one GPU has their sum."""
    uses: dict[tuple[GpuUuid, str], MemoryUse] = {}
    for row in () if report.use is None else report.use.containers:
        if row.used_bytes is not None:
            key = row.gpu, f"{row.namespace}/{row.pod}/{row.container}"
            here = MemoryUse(row.used_bytes, row.peak_bytes, row.at_least, row.utilisation)
            uses[key] = _sum(uses[key], here) if key in uses else here
    return uses


def _sum(use: MemoryUse, other: MemoryUse) -> MemoryUse:
    peaks = (use.peak_bytes, other.peak_bytes)
    known = [peak for peak in peaks if peak is not None]
    peak = sum(known) if len(known) == len(peaks) else None
    parts = [busy for busy in (use.utilisation, other.utilisation) if busy is not None]
    return MemoryUse(
        use.used_bytes + other.used_bytes,
        peak,
        use.at_least or other.at_least,
        sum(parts) if parts else None,
    )


def watched(report: ReportDocument) -> Uses:
    """What the watchdog saw last."""
    return {
        (row.gpu, f"{row.namespace}/{row.pod}/{row.container}"): MemoryUse(row.used_bytes, None, row.at_least)
        for row in (report.watch.containers if report.watch else ())
    }


def holdings(report: ReportDocument) -> dict[int, list[HeldShares]]:
    """GPU index to who holds shares of it. Equal holders of one resource are one row. What was not sampled of
    them, the watchdog may have seen.
    """
    index_of, seen = report.gpu_of_share, {**watched(report), **sampled_uses(report)}
    uuids = {gpu.index: gpu.uuid for gpu in report.gpus}
    promises = {
        share: offering
        for gpu_offer in report.offer.values()
        for offering in gpu_offer
        for share in offering.share_ids
    }
    grouped: dict[tuple[int, str, tuple[str, ...]], list[EntryRow]] = {}
    for entry in report.held:
        names = who_holds(entry.holders, entry.claim)
        # Shares whose holder is not known are not known to be one container's.
        key = index_of.get(entry.id, -1), entry.resource, names or (f"\0{entry.id}",)
        grouped.setdefault(key, []).append(entry)
    found: dict[int, list[HeldShares]] = {}
    for (index, resource, names), entries in grouped.items():
        offered = [promises[entry.id] for entry in entries if entry.id in promises]
        alone = names[0] if len(names) == 1 and index in uuids else ""
        found.setdefault(index, []).append(
            HeldShares(
                resource=resource,
                holders=() if names[0].startswith("\0") else names,
                shares=tuple(entry.id for entry in entries),
                since=min(entry.since for entry in entries),
                certainty=entries[0].certainty,
                use=seen.get((uuids[index], alone)) if alone else None,
                promised_bytes=sum(offering.memory_bytes for offering in offered) if offered else None,
                guarantee=offered[0].guarantee if offered else None,
                by_memory=any(offering.by_memory for offering in offered),
            )
        )
    return found


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

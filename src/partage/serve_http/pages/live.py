"""What is sent to an open page: the sections that have changed since the last event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping

_LOOK_EVERY_S = 0.5
"""Seconds between two looks while a page is open. Nobody looks while none is."""
_KEEP_ALIVE_S = 15.0
"""So often something is sent, so that both ends notice when the other has gone."""


def changes(
    sections: Callable[[], tuple[object, Callable[[], Mapping[str, str]]]],
    runs: Callable[[], bool],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Events as JSON: ``sections`` (id to HTML), ``order``; or ``reload`` where sections have come or gone.

    sections: a mark that is another one when something may have changed, and what makes the sections.
    """
    mark, make = sections()
    before = make()
    yield ""
    silent_s = 0.0
    while runs():
        pause(_LOOK_EVERY_S)
        silent_s += _LOOK_EVERY_S
        last, (mark, make) = mark, sections()
        if mark != last:
            now = make()
            event = difference(before, now)
            before = now
            if event:
                silent_s = 0.0
                yield event
        if silent_s >= _KEEP_ALIVE_S:
            silent_s = 0.0
            yield ""


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The event from one to the other; empty where nothing has changed. ``order``: all ids, where they stand
    in another order than before."""
    if before.keys() != now.keys():
        return json.dumps({"reload": True})
    changed = {name: text for name, text in now.items() if before[name] != text}
    order = {} if list(before) == list(now) else {"order": list(now)}
    return json.dumps({"sections": changed, **order}) if changed or order else ""

"""One formatter for the agent's log: text on a terminal, JSON elsewhere, or as asked; an event and its facts,
on stderr.

An event is a short phrase in the past tense. Facts are passed as ``extra={"gpu": ..., "resource": ...}``.
info: something changed; warning: degraded, but working; error: a person must act. What others can cause at
will is logged ``Seldom``.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from partage.text import printable, printable_json, printable_lines, shortened
from partage.values import Frozen


class LogFormat(StrEnum):
    """How a line of the log is written."""

    TEXT = "text"
    JSON = "json"


_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """The facts of one event: what was passed as ``extra``, None left out."""
    found = record.__dict__.items()
    return {key: value for key, value in found if key not in _STANDARD and value is not None}


class TextFormatter(logging.Formatter):
    """``12:03:04 warning policy refused  file=policy.yaml``."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        rest = "".join(f"  {key}={value}" for key, value in facts_of(record).items())
        text = printable(f"{moment} {record.levelname.lower():7} {record.getMessage()}{rest}")
        if record.exc_info:
            text += f"\n{printable_lines(self.formatException(record.exc_info))}"
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``event``, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(line, default=str, ensure_ascii=False))


class Seldom:
    """Lets an event into the log once in ``pause_s`` seconds, so that nobody who causes it can fill the log.
    Any thread may ask."""

    def __init__(self, pause_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause_s, self._clock = pause_s, clock
        self._lock = threading.Lock()
        self._next_s = -math.inf
        self._left_out = 0

    def left_out(self) -> int | None:
        """How many were left out since the last one; None: leave this one out, too."""
        with self._lock:
            now_s = self._clock()
            if now_s < self._next_s:
                self._left_out += 1
                return None
            self._next_s = now_s + self._pause_s
            found, self._left_out = self._left_out, 0
            return found

    def warn(self, logger: logging.Logger, event: str, reason: object, **more: str) -> None:
        """Log it, unless it is left out."""
        if (left_out := self.left_out()) is not None:
            logger.warning(event, extra={**more, "reason": str(reason), "left_out": left_out or None})


def warn_anew(logger: logging.Logger, event: str, trouble: str, before: str) -> str:
    """Log a trouble that is not the one before; empty: there is none. Returns it, to be kept."""
    if trouble and trouble != before:
        logger.warning(event, extra={"reason": trouble})
    return trouble


class GrpcErrors(logging.Filter):
    """What came over a gRPC socket and is no gRPC: one line now and then, in place of the tracebacks of the
    libraries that read it."""

    def __init__(self) -> None:
        super().__init__()
        self._seldom = Seldom()

    def filter(self, record: logging.LogRecord) -> bool:
        """False: this one is left out."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not _is_of_grpc(error):
            return True
        left_out = self._seldom.left_out()
        if left_out is None:
            return False
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = "what came over a gRPC socket was refused", ()
        record.exc_info = record.exc_text = None
        record.reason = shortened(f"{type(error).__name__}: {error}", 200)
        record.left_out = left_out or None
        return True


def _is_of_grpc(error: BaseException) -> bool:
    """Whether grpclib has read what failed, and no code of ours has failed on it: that would be a bug."""
    frames = traceback.walk_tb(error.__traceback__)
    packages = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in frames]
    return "grpclib" in packages and packages[-1] != "partage"


class LogOptions(Frozen):
    """level: the least that is logged. format: None: text where stderr is a terminal, else JSON."""

    level: str = "info"
    format: LogFormat | None = None


_USUAL = LogOptions()


def configure(options: LogOptions = _USUAL) -> None:
    """Send the log of Partage to stderr, and the warnings of its libraries in the same form."""
    handler = logging.StreamHandler(sys.stderr)
    for_people = sys.stderr.isatty() if options.format is None else options.format is LogFormat.TEXT
    handler.setFormatter(TextFormatter() if for_people else JsonFormatter())
    refused = GrpcErrors()
    for name, threshold in (
        ("partage", options.level.upper()),
        ("asyncio", "WARNING"),
        ("grpclib", "WARNING"),
    ):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(threshold)
        logger.propagate = False
    for name in ("asyncio", "grpclib.server"):  # a filter is asked for what was said to its own logger only
        logging.getLogger(name).filters = [refused]

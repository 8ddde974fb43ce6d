"""One formatter for the agent's log: text on a terminal, JSON elsewhere; an event and its facts, on stderr.

An event is a short phrase in the past tense. Facts are passed as ``extra={"gpu": ..., "resource": ...}``.
info: something changed; warning: degraded, but working; error: a person must act.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from partage.text import printable, printable_json, printable_lines

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


def configure(level: str = "info") -> None:
    """Send the log of Partage to stderr, and the warnings of its libraries in the same form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    for name, threshold in (("partage", level.upper()), ("asyncio", "WARNING"), ("grpclib", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(threshold)
        logger.propagate = False

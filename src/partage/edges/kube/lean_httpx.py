"""httpx without its command line, which would import rich and pygments: 12 MiB."""

from __future__ import annotations

import sys

_COMMAND_LINE = "httpx._main"

if "httpx" not in sys.modules:
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment]

import httpx  # noqa: E402

if sys.modules.get(_COMMAND_LINE, httpx) is None:
    del sys.modules[_COMMAND_LINE]

__all__ = ["httpx"]

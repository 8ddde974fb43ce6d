"""Prometheus' HTTP API: values of a query over a window of time."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from partage.edges.host.http_exchange import HttpRequest, ProtocolError, answer_of, is_http_url
from partage.errors import InputError, Rejected, Unreachable
from partage.values import Frozen

if TYPE_CHECKING:
    import ssl

_ANSWERS_WITHIN_S = 60.0
_LARGEST_BYTES = 256 * 2**20
MOST_POINTS = 11_000
"""More for one series are refused by Prometheus."""


class Series(Frozen):
    """One time series. points: time (Unix seconds) and value; values that are no numbers are left out."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class Prometheus:
    """A server by its URL. token: sent as bearer token. within_s: for each whole answer.

    Raises InputError for what is no URL.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        *,
        within_s: float = _ANSWERS_WITHIN_S,
    ) -> None:
        if not is_http_url(url):
            raise InputError(f"{url!r} is no URL of a Prometheus", "http://prometheus:9090")
        self._url, self._token, self._tls, self._within_s = url, token, tls, within_s

    def query_range(self, query: str, start_s: float, end_s: float, step_s: float) -> tuple[Series, ...]:
        """The values of the query. Raises Unreachable, and Rejected with what Prometheus says of it."""
        asked = urlencode({"query": query, "start": start_s, "end": end_s, "step": step_s})
        status, content = self._post("/api/v1/query_range", asked)
        try:
            answer: Any = json.loads(content)
            if status != 200 or answer["status"] != "success":
                why = answer.get("error") if isinstance(answer, dict) else None
                said = f"{self._url} refuses a query: {why or f'status {status}'}"
                raise Rejected(said, f"the query: {query}")
            return tuple(_series(one) for one in answer["data"]["result"])
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            said = f"{self._url} does not answer like a Prometheus (status {status})"
            raise Rejected(said, "check the URL") from error

    def _post(self, path: str, body: str) -> tuple[int, bytes]:
        asked = HttpRequest(
            "POST", path, content=body.encode(), media_type="application/x-www-form-urlencoded"
        )
        answer = answer_of(
            self._url, asked, self._token, self._tls, within_s=self._within_s, limit_bytes=_LARGEST_BYTES
        )
        try:
            return asyncio.run(answer)
        except (OSError, ProtocolError) as error:
            # asyncio says "Connect call failed" and the address, in place of what was wrong
            number = error.errno if isinstance(error, ConnectionError) else None
            why = error if number is None else os.strerror(number)
            raise Unreachable(f"{self._url} does not answer: {why}", "check --prometheus") from error


def _series(row: Any) -> Series:  # noqa: ANN401 - JSON
    points = ((float(at), float(value)) for at, value in row["values"])
    labels = {str(name): str(value) for name, value in row["metric"].items()}
    return Series(labels, tuple((at, value) for at, value in points if isfinite(value)))

"""What containers used over a window, from Prometheus: values of a query by its HTTP API, and the exporter's
metrics as runs.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from partage.edges.host.http_exchange import HttpRequest, ProtocolError, answer_of, is_http_url
from partage.errors import InputError, Rejected, Unreachable
from partage.plan.history.evidence import TAKEN_FOR_ALL, Run, workload_of
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
                text = f"{self._url} refuses a query: {why or f'status {status}'}"
                raise Rejected(text, f"the query: {query}")
            return tuple(_series(row) for row in answer["data"]["result"])
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            text = f"{self._url} does not answer like a Prometheus (status {status})"
            raise Rejected(text, "check the URL") from error

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


_FEWEST_STEP_S, _MOST_STEPS = 15.0, 2000
_KEY = ("namespace", "pod", "container", "device", "gpu", "node")
_DEVICES = (
    "max by (device) (partage_mig_memory_total_bytes or "
    'label_replace(partage_gpu_memory_total_bytes, "device", "$1", "gpu", "(.*)"))'
)
"""The memory of GPUs and MIG devices, by UUID. A program that takes a part of its GPU's memory takes it of
the GPU on which it ran, not of the one for which it is sized."""


class UsageHistory(Frozen):
    """Runs, and which part of the GPUs' used memory belonged to no container."""

    runs: tuple[Run, ...]
    unattributed: float
    step_s: float


class Window(Frozen):
    """Which part of the past, and of whom. selector: label matchers, ``namespace="team"``; empty: all."""

    end_s: float
    length_s: float
    selector: str = ""


def read_history(
    server: Prometheus,
    window: Window,
    device_bytes: int,
    on_query: Callable[[str], None] = lambda _: None,
) -> UsageHistory:
    """Ask for the window. device_bytes: memory of a GPU that no series tells. on_query: called before each
    query, for progress.
    """
    step_s = max(_FEWEST_STEP_S, float(round(window.length_s / _MOST_STEPS)))

    def ask(name: str, query: str) -> dict[tuple[str, ...], Series]:
        on_query(name)
        serieses = server.query_range(query, window.end_s - window.length_s, window.end_s, step_s)
        return {_key(series.labels): series for series in serieses if series.points}

    def container(name: str, *more: str) -> str:
        return f"partage_container_{name}{{{','.join((*filter(None, (window.selector,)), *more))}}}"

    def highest(name: str) -> str:
        # Where scrapes are further apart than steps, the last value holds until the next one. The product
        # takes the metric's name away, as max_over_time does: both are one series.
        return f"max_over_time({container(name)}[{step_s:g}s]) or {container(name)} * 1"

    used = ask("memory", highest("memory_used_bytes"))
    peaks = ask("peaks", highest("memory_peak_bytes"))
    busy = ask("activity", highest("sm_utilization_ratio"))
    shares = ask("shares", container("memory_share_bytes"))
    limits = ask("guarantees", container("guarantee", f'guarantee=~"{"|".join(TAKEN_FOR_ALL)}"'))
    devices = ask("devices", _DEVICES)
    processes = ask("processes", highest("processes"))
    rest = ask("unattributed", "sum(partage_unattributed_memory_bytes)")
    total = ask("used by GPUs", "sum(partage_gpu_memory_used_bytes)")
    sizes = {key[3]: int(_highest(one)) for key, one in devices.items()}
    runs = []
    for key, series in used.items():
        namespace, pod, name, device, _, node = key
        share, activity = shares.get(key), busy.get(key)
        runs.append(
            Run(
                workload=f"{namespace}/{workload_of(pod)}/{name}",
                at_s=tuple(at for at, _ in series.points),
                used_bytes=tuple(int(value) for _, value in series.points),
                device_bytes=sizes.get(device, device_bytes),
                peak_bytes=int(_highest(peaks[key])) if key in peaks else None,
                sm=tuple(value for _, value in activity.points) if activity else (),
                share_bytes=int(share.points[-1][1]) if share else None,
                limited=key in limits,
                processes=max(1, int(_highest(processes[key]))) if key in processes else 1,
                container="/".join((node, namespace, pod, name)),
            )
        )
    return UsageHistory(tuple(runs), _part(rest, total), step_s)


def _key(labels: Mapping[str, str]) -> tuple[str, ...]:
    # Beside honorLabels: false, the exporter's own labels are called exported_....
    return tuple(labels.get(f"exported_{name}", labels.get(name, "")) for name in _KEY)


def _highest(series: Series) -> float:
    return max(value for _, value in series.points)


def _part(rest: Mapping[tuple[str, ...], Series], total: Mapping[tuple[str, ...], Series]) -> float:
    """Mean of the one by mean of the other."""
    means = [
        sum(value for _, value in series.points) / len(series.points)
        for found in (rest, total)
        for series in found.values()
    ]
    return min(1.0, means[0] / means[1]) if len(means) == 2 and means[1] else 0.0

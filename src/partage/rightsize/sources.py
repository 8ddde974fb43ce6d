"""The evidence of ``rightsize``: a trace, a Prometheus, or the history of agents.

A trace is a CSV file, a line for each sample. Columns, by their names in the first line, in any order:
``time`` (seconds, any start), ``namespace``, ``pod``, ``container``, ``memory_bytes`` (empty or NaN: not
measured); where known also ``device`` (UUID), ``pid`` (a line for each process; those of one container and
time are added up), ``peak_bytes`` (the highest so far), ``sm`` (0 to 1), ``share_bytes``, ``guarantee`` and
``device_bytes``. Other columns are left alone. Prometheus is asked for values of a query by its HTTP API, and
for the exporter's metrics as runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from partage.answers.process_start import lean_imports
from partage.edges.files.csv_table import Row, WrongCell, number, read_table
from partage.edges.host.http_exchange import HttpRequest, ProtocolError, answer_of, is_http_url
from partage.errors import InputError, Rejected, Unreachable
from partage.plan.history.evidence import TAKEN_FOR_ALL, Evidence, Run, gather, workload_of
from partage.rightsize.decide import GpuSize
from partage.text import count_of, listed
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


NEEDED = ("time", "namespace", "pod", "container", "memory_bytes")
_LATEST_S = 1e11
"""Times beyond, the year 5138, are not seconds."""


def read_usage_trace(path: Path, device_bytes: int) -> tuple[Run, ...]:
    """The runs of a trace. device_bytes: memory of a GPU, where the trace does not say it.

    Raises InputError with all problems, up to ten.
    """
    runs: dict[tuple[str, ...], _Samples] = {}

    def take(row: Row) -> None:
        key = tuple(row.get(name) or "" for name in ("namespace", "pod", "container", "device"))
        runs.setdefault(key, _Samples()).add(row)

    read_table(path, NEEDED, take)
    return tuple(samples.run(key, device_bytes) for key, samples in runs.items() if samples)


def _measured(row: Row, name: str) -> float | None:
    """As ``number``; programs that write tables write NaN for what they do not know."""
    return None if (row.get(name) or "").strip().lower() == "nan" else number(row, name)


class _Samples:
    """The samples of one container on one device."""

    def __init__(self) -> None:
        self._used: dict[float, dict[str, int]] = {}
        self._sm: dict[float, float] = {}
        self._peak: int | None = None
        self._share: int | None = None
        self._device: int | None = None
        self._limited = False

    def __bool__(self) -> bool:
        return bool(self._used)

    def add(self, row: Row) -> None:
        """Take a line. Raises ValueError with what is wrong with it."""
        at, used = number(row, "time"), _measured(row, "memory_bytes")
        if at is None:
            raise ValueError("time is empty")
        if at > _LATEST_S:
            raise WrongCell(f"time is {at:.0f}; seconds are needed", "milliseconds? divide by 1000")
        sm, share, device = (_measured(row, name) for name in ("sm", "share_bytes", "device_bytes"))
        if sm is not None and sm > 1:
            raise ValueError(f"sm is {sm:g}; it is a part of the time, from 0 to 1")
        self._share = self._share if share is None else int(share)
        self._device = self._device if device is None else int(device)
        self._limited = self._limited or row.get("guarantee") in TAKEN_FOR_ALL
        if (peak := _measured(row, "peak_bytes")) is not None:
            self._peak = max(self._peak or 0, int(peak))
        if used is not None:
            self._take(at, (row.get("pid") or "").strip(), int(used), sm)

    def _take(self, at: float, pid: str, used: int, sm: float | None) -> None:
        now = self._used.setdefault(at, {})
        if pid in now:
            raise WrongCell(
                f"time {at:g} is there twice for this container",
                "a line for each container and time; the columns device and pid tell several GPUs and "
                "processes apart",
            )
        now[pid] = used
        if sm is not None:
            self._sm[at] = min(1.0, self._sm.get(at, 0.0) + sm)

    def run(self, key: tuple[str, ...], device_bytes: int) -> Run:
        """All of them as one run."""
        namespace, pod, container, _ = key
        times = sorted(self._used)
        return Run(
            workload=f"{namespace}/{workload_of(pod)}/{container}",
            at_s=tuple(times),
            used_bytes=tuple(sum(self._used[at].values()) for at in times),
            sm=tuple(self._sm[at] for at in times if at in self._sm),
            device_bytes=self._device or device_bytes,
            peak_bytes=self._peak,
            share_bytes=self._share,
            limited=self._limited,
            processes=max(map(len, self._used.values())),
            container="/".join((namespace, pod, container)),
        )


class ObservedUse(Frozen):
    """What was observed, and for which GPU it is to be sized. source: a sentence."""

    evidence: tuple[Evidence, ...]
    size: GpuSize
    source: str
    unattributed: float = 0.0


def from_trace(trace: Path, size: GpuSize, namespace: str | None) -> ObservedUse:
    """From a recorded trace. Raises InputError."""
    runs = read_usage_trace(trace, size.memory_bytes)
    if namespace is not None:
        runs = tuple(run for run in runs if run.workload.startswith(f"{namespace}/"))
    return ObservedUse(gather(runs), size, f"The trace {trace}.")


class PrometheusPlace(Frozen):
    """url: of the server. token_file: None: it wants none. window: how far to look back, ``7d``."""

    url: str
    token_file: Path | None
    window: str


def from_prometheus(
    place: PrometheusPlace, size: GpuSize, namespace: str | None, on_query: Callable[[str], None]
) -> ObservedUse:
    """From a Prometheus. on_query: called before each query. Raises InputError, Unreachable, Rejected."""
    with lean_imports(tls=True):
        import asyncio  # noqa: F401 - with TLS, before others import it without (answers.process_start)

    from partage.edges.host.read_file import read_token

    selector = "" if namespace is None else f"namespace={_quoted(namespace)}"
    looked = Window(time.time(), _duration(place.window), selector)
    server = Prometheus(place.url, "" if place.token_file is None else read_token(place.token_file))
    history = read_history(server, looked, size.memory_bytes, on_query)
    source = f"Prometheus {place.url}, the last {place.window}."
    return ObservedUse(gather(history.runs, history.step_s), size, source, history.unattributed)


def from_history(paths: Sequence[Path], gpu: str | None, namespace: str | None) -> ObservedUse:
    """From the files of agents. gpu: None: the model that all their nodes have. Raises InputError."""
    from partage.edges.files.usage_days import read_usage_days
    from partage.rightsize.decide import gather_days, unattributed_part

    days = [day for path in paths for day in read_usage_days(path)]
    if not days:
        raise InputError("the history is empty", "an agent writes it some minutes after a pod has used a GPU")
    evidence = gather_days(days)
    if namespace is not None:
        evidence = tuple(workload for workload in evidence if workload.workload.startswith(f"{namespace}/"))
    dates, nodes = sorted({day.date for day in days}), sorted({day.node for day in days})
    source = f"The agents' history of {count_of(len(nodes), 'node')}, {dates[0]} to {dates[-1]}."
    if left_out := sum(day.left_out for day in days):
        source += f" On some days there were too many workloads: {left_out} were left out."
    products = sorted({gpu_seen.product for day in days for gpu_seen in day.gpus})
    if gpu is None and len(products) != 1:
        which = f"of several GPU models: {listed(products, 5)}" if products else "of no GPU model"
        raise InputError(f"the history is {which}", "--gpu says for which one to size")
    return ObservedUse(evidence, gpu_size(gpu or products[0]), source, unattributed_part(days))


def gpu_size(name: str) -> GpuSize:
    """A GPU model by its name. Raises InputError."""
    from partage.edges.files.catalogue import model_named
    from partage.sim.node.machine import new_gpu

    found = model_named(name)
    gpu, model = new_gpu(0, *found, None), found[0]
    product = gpu.product.removeprefix("NVIDIA ")
    return GpuSize(product, gpu.memory_bytes, geometry=model.geometry)


def _duration(text: str) -> float:
    """Seconds of ``90m``, ``36h``, ``7d``, at most a year. Raises InputError."""
    match = re.fullmatch(r"([1-9]\d{0,5})([mhd])", text.strip())
    seconds = int(match[1]) * {"m": 60, "h": 3600, "d": 86400}[match[2]] if match else 0
    if not 0 < seconds <= 366 * 86400:
        raise InputError(f"--window {text[:40]!r} is not a time up to a year", "90m, 36h, 7d")
    return float(seconds)


def _quoted(text: str) -> str:
    """A text as PromQL writes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

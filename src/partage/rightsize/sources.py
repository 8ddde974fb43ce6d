"""The evidence of ``rightsize``: a trace, a Prometheus, or the history of agents."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from partage.answers.lean_imports import lean_imports
from partage.errors import InputError
from partage.plan.history.evidence import Evidence, gather
from partage.rightsize.decide.recommend import GpuSize
from partage.text import count_of, listed
from partage.values import Frozen


class ObservedUse(Frozen):
    """What was observed, and for which GPU it is to be sized. source: a sentence."""

    evidence: tuple[Evidence, ...]
    size: GpuSize
    source: str
    unattributed: float = 0.0


def from_trace(trace: Path, size: GpuSize, namespace: str | None) -> ObservedUse:
    """From a recorded trace. Raises InputError."""
    from partage.rightsize.trace import read_usage_trace

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
        import asyncio  # noqa: F401 - with TLS, before others import it without (answers.lean_imports)

    from partage.edges.host.read_file import read_token
    from partage.rightsize.prometheus import Prometheus, Window, read_history

    selector = "" if namespace is None else f"namespace={_quoted(namespace)}"
    looked = Window(time.time(), _duration(place.window), selector)
    server = Prometheus(place.url, "" if place.token_file is None else read_token(place.token_file))
    history = read_history(server, looked, size.memory_bytes, on_query)
    source = f"Prometheus {place.url}, the last {place.window}."
    return ObservedUse(gather(history.runs, history.step_s), size, source, history.unattributed)


def from_history(paths: Sequence[Path], gpu: str | None, namespace: str | None) -> ObservedUse:
    """From the files of agents. gpu: None: the model that all their nodes have. Raises InputError."""
    from partage.edges.files.usage_days import read_usage_days
    from partage.rightsize.decide.from_history import gather_days, unattributed_part

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

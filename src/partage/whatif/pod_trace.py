"""Traces of pods: CSV with the columns of Alibaba's published GPU traces, or JSON with requests and times.

CSV, columns by their names in the first line, in any order: ``name``, ``cpu_milli``, ``memory_mib``,
``num_gpu``, ``gpu_milli`` (thousandths of each GPU); where there are any also ``gpu_spec`` (models, joined by
``|``), ``gpu_memory_mib`` (of each GPU, in place of ``gpu_milli``), ``creation_time``, ``scheduled_time``,
``deletion_time`` (seconds), ``node`` (where it is). Other columns are left alone. JSON:
``{"pods": [...]}``, see ``_JsonPod``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any

from msgspec import field

from partage.claims.manifests import ClaimObjectReader
from partage.claims.model.claim import ClaimSpec
from partage.codec.values import CodecError, decode
from partage.edges.files.csv_table import (
    MOST_PROBLEMS,
    Row,
    WrongCell,
    number,
    read_table,
    read_text,
    whole_number,
)
from partage.errors import InputError, Problem, wrong_input
from partage.model.ids import parse_resource_name
from partage.plan.placement.mix import WHOLE_MILLI
from partage.units import MIB, parse_bytes
from partage.values import Frozen
from partage.whatif.decide.pods import AskedGpus, PodWants, TracePod

NEEDED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MOST_PODS = 1_000_000
_MOST_GPUS = 1024
_SECONDS = "times are in seconds, from any moment on"
_NATIVE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.*")
"""What a node has beside devices; of these, ``cpu`` and ``memory`` are played."""
_CPU = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(m?)", re.ASCII)


def read_pod_trace(path: Path, most: int = MOST_PODS) -> tuple[TracePod, ...]:
    """The pods of a trace, in the order of the file. Raises InputError with all problems, up to ten, or
    because there are more pods than ``most``."""
    pods = _read_json(path) if path.suffix.lower() == ".json" else _read_csv(path, most)
    if not pods:
        raise wrong_input(path, "names no pods", "one line for each pod is needed")
    if len(pods) > most:
        message = f"names {len(pods):,} pods; at most {most:,} are played"
        raise wrong_input(path, message, "take a part of it")
    return tuple(pods)


# --- CSV ----------------------------------------------------------------------------------------


def _read_csv(path: Path, most: int) -> list[TracePod]:
    return read_table(path, NEEDED, _csv_pod, most=most)


def _csv_pod(row: Row) -> TracePod:
    gpus, milli, memory_mib = _gpus_of(row)
    wants = PodWants(
        cpu_milli=whole_number(row, "cpu_milli", 0),
        memory_bytes=whole_number(row, "memory_mib", 0) * MIB,
        gpus=gpus,
        gpu_milli=milli,
        gpu_memory_bytes=memory_mib * MIB,
        models=_models((row.get("gpu_spec") or "").split("|")) if gpus else frozenset(),
    )
    created_s, lasts_s = _times(row)
    name, node = ((row.get(column) or "").strip() for column in ("name", "node"))
    return TracePod(name, wants, created_s, lasts_s, node)


def _gpus_of(row: Row) -> tuple[int, int, int]:
    """Number of GPUs, and thousandths or MiB of each."""
    gpus = whole_number(row, "num_gpu", 0)
    if gpus > _MOST_GPUS:
        raise WrongCell(f"num_gpu is {gpus}, a pod of at most {_MOST_GPUS} GPUs can be played")
    milli, memory_mib = whole_number(row, "gpu_milli", 0), whole_number(row, "gpu_memory_mib", 0)
    if not gpus:
        if milli or memory_mib:
            raise WrongCell(
                f"num_gpu is 0, and {'gpu_milli' if milli else 'gpu_memory_mib'} is {milli or memory_mib}",
                "num_gpu says of how many GPUs; leave both 0 for a pod without GPU",
            )
        return 0, 0, 0
    if milli and memory_mib:
        raise WrongCell("both gpu_milli and gpu_memory_mib say how much of a GPU", "leave one of them empty")
    if memory_mib:
        return gpus, 0, memory_mib
    if milli > WHOLE_MILLI:
        raise WrongCell(
            f"gpu_milli is {milli}, a number from 1 to {WHOLE_MILLI} is needed",
            "it is of each GPU: num_gpu 2 and gpu_milli 1000 are two whole ones",
        )
    if not milli:
        raise WrongCell(
            f"num_gpu is {gpus} and gpu_milli is 0",
            "gpu_milli says how much of each GPU is asked for: 1000 is a whole one",
        )
    return gpus, milli, 0


def _models(names: list[str] | tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names if name.strip())


def _times(row: Row) -> tuple[float, float | None]:
    """When it is created, and how long it runs: from when it was scheduled, where the trace says that."""
    created_s = number(row, "creation_time", _SECONDS) or 0.0
    scheduled_s = number(row, "scheduled_time", _SECONDS)
    deleted_s = number(row, "deletion_time", _SECONDS)
    if scheduled_s is not None and scheduled_s < created_s:
        raise WrongCell(f"scheduled_time {scheduled_s:g} is before creation_time {created_s:g}")
    if deleted_s is None:
        return created_s, None
    started_s = created_s if scheduled_s is None else scheduled_s
    if deleted_s < started_s:
        which = "creation_time" if scheduled_s is None else "scheduled_time"
        raise WrongCell(
            f"deletion_time {deleted_s:g} is before {which} {started_s:g}",
            "leave deletion_time empty for a pod that does not end",
        )
    return created_s, deleted_s - started_s


# --- JSON ---------------------------------------------------------------------------------------


class _JsonPod(AskedGpus, kw_only=True, forbid_unknown_fields=True):
    """requests: as in a manifest, resource names, ``cpu`` and ``memory``. gpus, gpuMilli or gpuMemory: in
    place of a GPU resource in them. claims: the ``spec`` of each of its ResourceClaims, in place of both.
    lastsSeconds: null: it does not end.
    """

    name: str
    created_s: float = 0.0
    lasts_s: float | None = None
    requests: Mapping[str, int | float | str] = field(default_factory=dict)
    gpu_memory: str = ""
    models: tuple[str, ...] = ()
    claims: tuple[dict[str, Any], ...] = ()


class _JsonTrace(Frozen, forbid_unknown_fields=True):
    pods: tuple[_JsonPod, ...]


def _read_json(path: Path) -> list[TracePod]:
    try:
        trace = decode(_JsonTrace, read_text(path).encode(), strict=False)
    except CodecError as error:
        hint = 'a trace is {"pods": [{"name": "a", "requests": {"nvidia.com/gpu": 1}}]}'
        raise wrong_input(path, str(error), hint) from error
    pods: list[TracePod] = []
    problems: list[Problem] = []
    for number_, pod in enumerate(trace.pods):
        try:
            pods.append(_json_pod(pod))
        except ValueError as error:
            hint = error.hint if isinstance(error, WrongCell) else ""
            problems.append(Problem(str(path), f"pods[{number_}]", "error", str(error), hint))
            if len(problems) == MOST_PROBLEMS:
                break
    if problems:
        raise InputError(problems)
    return pods


def _json_pod(pod: _JsonPod) -> TracePod:
    if not (pod.name.isprintable() and all(map(str.isprintable, pod.models))):
        raise WrongCell("its name or a model has characters that cannot be printed")
    if not 0 <= pod.created_s < 1e18:
        raise WrongCell(f"createdSeconds is {pod.created_s:g}, a number from 0 on is needed")
    if pod.lasts_s is not None and not 0 <= pod.lasts_s < 1e18:
        hint = "leave it out for a pod that does not end"
        raise WrongCell(f"lastsSeconds is {pod.lasts_s:g}, a number from 0 on is needed", hint)
    requests = tuple(
        sorted(
            (parse_resource_name(name), _count(name, amount))
            for name, amount in pod.requests.items()
            if not _NATIVE.fullmatch(name) and amount != 0
        )
    )
    if pod.claims and (requests or pod.gpus):
        raise WrongCell("has claims beside gpus or a GPU resource", "one of them says what it asks for")
    if requests and pod.gpus:
        raise WrongCell(
            "has both gpus and a GPU resource in requests", "one of the two says what it asks for"
        )
    if not 0 <= pod.gpus <= _MOST_GPUS:
        raise WrongCell(f"gpus is {pod.gpus}, a number from 0 to {_MOST_GPUS} is needed")
    if not pod.gpus and (pod.gpu_milli or pod.gpu_memory):
        raise WrongCell(
            f"has {'gpuMilli' if pod.gpu_milli else 'gpuMemory'} without gpus",
            "gpus says of how many GPUs it asks for so much",
        )
    if pod.gpus and bool(pod.gpu_milli) == bool(pod.gpu_memory):
        raise WrongCell(
            f"gpus is {pod.gpus}, and how much of each is not clear",
            "give one of gpuMilli (1000 is a whole GPU) and gpuMemory (6Gi)",
        )
    if not 0 <= pod.gpu_milli <= WHOLE_MILLI:
        raise WrongCell(f"gpuMilli is {pod.gpu_milli}, a number from 1 to {WHOLE_MILLI} is needed")
    wants = PodWants(
        cpu_milli=_cpu_milli(pod.requests.get("cpu", 0)),
        memory_bytes=_bytes("requests of memory", pod.requests.get("memory", 0)),
        gpus=pod.gpus,
        gpu_milli=pod.gpu_milli if pod.gpus else 0,
        gpu_memory_bytes=_bytes("gpuMemory", pod.gpu_memory or 0) if pod.gpus else 0,
        models=_models(pod.models) if pod.gpus or requests else frozenset(),
        requests=requests,
        claims=tuple(_claim(number, spec) for number, spec in enumerate(pod.claims)),
    )
    return TracePod(pod.name, wants, pod.created_s, pod.lasts_s)


def _claim(number: int, spec: Mapping[str, Any]) -> ClaimSpec:
    document = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"claims[{number}]"},
        "spec": spec,
    }
    reader = ClaimObjectReader(document)
    found = reader.spec()
    if reader.problems:
        first = reader.problems[0].problem
        raise WrongCell(f"claims[{number}].{first.path.removeprefix('spec.')}: {first.message}", first.hint)
    return found


def _count(name: str, amount: float | str) -> int:
    text = str(amount)
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise WrongCell(f"requests of {name}: {text[:40]!r} is no whole number")
    return int(text)


def _bytes(where: str, amount: float | str) -> int:
    if amount in {0, "0"}:
        return 0
    try:
        return parse_bytes(str(amount))
    except ValueError as error:
        raise WrongCell(f"{where}: {error}") from error


def _cpu_milli(amount: float | str) -> int:
    """Thousandths of a CPU, rounded up as in Kubernetes: ``2``, ``500m``, ``1.5``."""
    match = _CPU.fullmatch(str(amount).strip())
    if match is None:
        raise WrongCell(f"requests of cpu: {str(amount)[:40]!r} is no number of CPUs such as 2 or 500m")
    return ceil(float(match[1]) * (1 if match[2] else 1000))

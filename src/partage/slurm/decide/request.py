"""What becomes of a job that asks for GRES: accepted, refused, waits for ever, or starts and fails.

Source of each rule: what 22.05.8 and 24.11.5 answered (docs/reference/slurm.md); tests/slurm asks them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from partage.slurm.decide import releases
from partage.slurm.decide.node_view import SHARED, GresCount, SlurmNodeView, parse_gres
from partage.slurm.decide.type_names import SHARED_SUFFIX
from partage.slurm.model import SlurmVersion
from partage.slurm.text.hostlist import format_hostlist
from partage.text import listed
from partage.values import Answer

_INVALID = "Invalid generic resource (gres) specification"
_MIXED_TYPES = "Invalid GRES specification (with and without type identification)"
_NOT_AVAILABLE = "Requested node configuration is not available"
_PROFILE = re.compile(r"\d+g\.\d+gb", re.ASCII)


class Outcome(StrEnum):
    """accepted: it runs as soon as there is room. refused: at once. waits: for ever, without a message.
    fails: it is started, and does not get what it asked for."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    WAITS = "waits for ever"
    FAILS = "starts and fails"


class RequestVerdict(Answer):
    """What becomes of a request. nodes: where it can run. slurm_says: Slurm's own message; empty: none is
    known.
    """

    request: str
    outcome: Outcome
    why: str
    hint: str = ""
    slurm_says: str = ""
    nodes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def judge_request(
    request: str,
    nodes: Sequence[SlurmNodeView],
    types: Sequence[str],
    version: SlurmVersion,
    *,
    spread: bool = False,
) -> RequestVerdict:
    """Judge ``--gres=request``. types: GresTypes. spread: MULTIPLE_SHARING_GRES_PJ is set.

    request: per node, as in ``--gres`` and ``--tres-per-node``.
    """
    try:
        asked = parse_gres(request)
    except ValueError as error:
        return RequestVerdict(request, Outcome.REFUSED, str(error), "write it as gpu:h200:1")
    if not asked:
        return RequestVerdict(
            request, Outcome.REFUSED, "it asks for nothing", "write it as gpu:h200:1", _INVALID
        )
    asked = tuple(
        {(gres.name, gres.type): gres for gres in asked}.values()
    )  # of one that is said twice, the last
    if [gres.name.lower() for gres in asked] == ["none"]:
        asked = ()
    asked = tuple(gres for gres in asked if gres.count != 0)
    if not asked:
        names = tuple(node.name for node in nodes)
        return RequestVerdict(request, Outcome.ACCEPTED, "it asks for no GRES, and gets none", nodes=names)
    return (
        _misformed(request, asked, nodes, types, version)
        or _impossible(request, asked, nodes)
        or _too_large_for_one(request, asked, nodes, spread=spread and version >= releases.MULTIPLE_SHARING)
        or _accepted(request, asked, nodes, version)
    )


def _misformed(
    request: str,
    asked: Sequence[GresCount],
    nodes: Sequence[SlurmNodeView],
    types: Sequence[str],
    version: SlurmVersion,
) -> RequestVerdict | None:
    names = [wanted.name for wanted in asked]
    for gres in asked:
        if gres.name not in types:
            known = f"GRES here are {', '.join(types)}" if types else "the cluster has no GRES"
            return RequestVerdict(request, Outcome.REFUSED, f"there is no GRES {gres.name}", known, _INVALID)
        if gres.type[:1].isdigit() and gres.count is None and version < releases.TYPE_MAY_BEGIN_WITH_DIGIT:
            why = f"Slurm {version} reads {gres.type} as a number"
            hint = f"write the count: {gres.name}:{gres.type}:1"
            return RequestVerdict(
                request, Outcome.REFUSED, why, hint, "Invalid Trackable RESource (TRES) specification"
            )
    if len({bool(wanted.type) for wanted in asked if wanted.name == "gpu"}) > 1:
        why = "some of its GPUs have a type and some have none"
        hint = "name the type of each, or of none"
        return RequestVerdict(request, Outcome.REFUSED, why, hint, _MIXED_TYPES)
    shared = [name for name in SHARED if name in names]
    if len(shared) > 1:
        why = "with mps and shard in one job it gets its GPU from the one, its percentage from the other"
        return RequestVerdict(request, Outcome.FAILS, why, "ask for one of them")
    if shared and "gpu" in names:
        why = f"a whole GPU and {shared[0]} exclude each other in one job"
        return RequestVerdict(request, Outcome.REFUSED, why, "ask for one of them", _INVALID)
    for gres_count in asked:
        if gres_count.name in SHARED and gres_count.type:
            why = f"{gres_count.name} has no type of its own: the job is started, and its steps are refused"
            return RequestVerdict(request, Outcome.FAILS, why, _without_type(gres_count, nodes), _INVALID)
    return None


def _without_type(gres: GresCount, nodes: Sequence[SlurmNodeView]) -> str:
    """The request for shares that works. Only of what a node has: with another feature no job is accepted."""
    plain = f"--gres={gres.name}:{_amount(gres)}"
    there = {feature for node in nodes if node.shares.get(gres.name) for feature in node.features}
    for feature in (gres.type, gres.type.removesuffix(SHARED_SUFFIX)):
        if feature in there:
            return f"choose the kind of GPU by a feature of the node: {plain} --constraint={feature}"
    return f"leave the type out: {plain}"


def _amount(gres: GresCount) -> int:
    return 1 if gres.count is None else gres.count


def _has(node: SlurmNodeView, gres: GresCount) -> int:
    if gres.name == "gpu":
        return sum(not gres.type or gpu.type == gres.type for gpu in node.gpus)
    return sum(node.shares.get(gres.name, ()))


def _impossible(
    request: str, asked: Sequence[GresCount], nodes: Sequence[SlurmNodeView]
) -> RequestVerdict | None:
    if any(all(_has(node, gres_count) >= _amount(gres_count) for gres_count in asked) for node in nodes):
        return None
    for gres in asked:
        most = max((_has(node, gres) for node in nodes), default=0)
        if most < _amount(gres):
            return RequestVerdict(request, Outcome.REFUSED, *_why_not(gres, most, nodes), _NOT_AVAILABLE)
    return RequestVerdict(request, Outcome.REFUSED, "no node has all of it", "", _NOT_AVAILABLE)


def _why_not(gres: GresCount, most: int, nodes: Sequence[SlurmNodeView]) -> tuple[str, str]:
    name = ":".join(part for part in (gres.name, gres.type) if part)
    types = sorted({gpu.type for node in nodes for gpu in node.gpus if gpu.type})
    if most or not gres.type:
        has = f"no node has more than {most}" if most else "no node has any"
        hint = f"ask for {most} at most, or for several nodes" if most else ""
        return f"{_amount(gres)} x {name} on one node, and {has}", hint
    same = next((kind for kind in types if kind.lower() == gres.type.lower()), None)
    alike = [kind for kind in types if gres.type in kind or kind in gres.type]
    if same is not None:
        return (
            f"no node has a gpu of type {gres.type}",
            f"types are compared letter by letter: write gpu:{same}",
        )
    hint = f"there is {listed(alike or types)}" if types else "the GPUs here have no types"
    return f"no node has a gpu of type {gres.type}", hint


def _too_large_for_one(
    request: str, asked: Sequence[GresCount], nodes: Sequence[SlurmNodeView], *, spread: bool
) -> RequestVerdict | None:
    """A job's shares come from one GPU: more than that passes every check and never starts."""
    if spread:
        return None
    for gres in asked:
        if gres.name not in SHARED:
            continue
        largest = max((max(node.shares.get(gres.name, (0,))) for node in nodes), default=0)
        if _amount(gres) > largest:
            why = f"a job's {gres.name} come from one GPU, and none has more than {largest}"
            return RequestVerdict(
                request, Outcome.WAITS, why, f"ask for {gres.name}:{largest} at most, or for a whole GPU"
            )
    return None


def _accepted(
    request: str, asked: Sequence[GresCount], nodes: Sequence[SlurmNodeView], version: SlurmVersion
) -> RequestVerdict:
    able = [node for node in nodes if all(_fits(node, gres) for gres in asked)] or [
        node for node in nodes if all(_has(node, gres) >= _amount(gres) for gres in asked)
    ]
    names = tuple(node.name for node in able)
    why = f"it can run on {format_hostlist(names)}"
    return RequestVerdict(
        request, Outcome.ACCEPTED, why, nodes=names, doubts=tuple(_doubts(asked, able, version))
    )


def _fits(node: SlurmNodeView, gres: GresCount) -> bool:
    if gres.name == "gpu":
        return _has(node, gres) >= _amount(gres)
    return max(node.shares.get(gres.name, (0,))) >= _amount(gres)


def _doubts(
    asked: Sequence[GresCount], able: Sequence[SlurmNodeView], version: SlurmVersion
) -> Iterator[str]:
    for gres in asked:
        if gres.name == "mps":
            percents = sorted({max(1, _amount(gres) * 100 // units) for units in _sizes(able, gres)})
            if percents and percents != [_amount(gres)]:
                shown = " or ".join(f"{percent} %" for percent in percents)
                yield f"mps:{_amount(gres)} is {shown} of a GPU here"
            if not percents:  # no GPU has so many
                yield "a task can use mps of one GPU only: start one task for each GPU (srun -n)"
        if (
            gres.name == "gpu"
            and _amount(gres) > 1
            and any(
                len(gpu.files) > 1 or _PROFILE.search(gpu.type)
                for node in able
                for gpu in node.gpus
                if gpu.type == gres.type
            )
        ):
            yield "a process sees one MIG device only: start one process for each (--gpus-per-task=1)"
        if gres.name == "gpu" and not gres.type and len({gpu.type for node in able for gpu in node.gpus}) > 1:
            kinds = listed(sorted({gpu.type for node in able for gpu in node.gpus}))
            yield f"without a type it may be any of {kinds}, MIG devices too"
        shares = any(node.shares for node in able)
        if gres.name == "gpu" and shares and (said := releases.double_booking(version)):
            yield said[0]


def _sizes(able: Sequence[SlurmNodeView], gres: GresCount) -> set[int]:
    return {units for node in able for units in node.shares.get(gres.name, ()) if units >= _amount(gres)}

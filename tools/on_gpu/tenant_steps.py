"""Steps with CUDA programs on the GPU as it is set: time-slicing, memory, the guard, bench, and an XID.

Tenants are those of ``partage bench`` and ``prove``: through the driver's own library, where there is no
PyTorch.
"""

from __future__ import annotations

import asyncio
import json
import math

from partage.lab.tenant import OK, TenantFailed, TenantProcess
from partage.model.samples import GpuSample
from partage.units import GIB, MIB, format_bytes
from tools.on_gpu.notes import Notes, StepPlace, partage
from tools.on_gpu.put_back import opened

_MOST_TENANTS = 8
_PI_OFF = 0.05
"""Of so many points, any error of this size is no chance."""
_BENCH = ("--quick", "--repeats", "3", "--seconds", "0.25")
_BENCH_S, _PROVE_S = 270.0, 110.0
_SAMPLES = 3
_SLICED = "version: partage/v1\ngpus: [{select: rest, guard: true, time-slicing: {replicas: 4}}]\n"


def engine_of(place: StepPlace) -> tuple[str, ...]:
    """Options of bench and prove: PyTorch where it is."""
    return ("--engine", "torch", "--python", place.torch) if place.torch else ("--engine", "cuda")


async def time_slicing(place: StepPlace, notes: Notes) -> None:
    """One tenant more each time, until eight have a context, memory and a kernel; each may have it all."""
    tenants: list[TenantProcess] = []
    each = place.memory_bytes // (2 * _MOST_TENANTS) // MIB * MIB
    starts = []
    try:
        for count in range(1, _MOST_TENANTS + 1):
            tenants.append(tenant := await place.tenant())
            starts.append(round(tenant.start_s, 3))
            answers = {await tenant.allocate(each), *[await one.attempt("launch") for one in tenants]}
            if answers != {OK}:
                notes.contradicted(
                    "time-slicing", f"with {count} tenants: {', '.join(sorted(answers - {OK}))}"
                )
                return
        notes.keep("startSeconds", starts)
        beyond = await tenants[0].allocate(each)
    except TenantFailed as error:
        notes.contradicted("time-slicing", f"tenant {len(starts) + 1}: {error}")
        return
    finally:
        await asyncio.gather(*(tenant.end() for tenant in tenants))
    more = "as much again" if beyond == OK else f"no more: {beyond}"
    notes.judge(
        "time-slicing",
        beyond == OK,
        f"{_MOST_TENANTS} tenants with {format_bytes(each)} each worked at the same time, and one got {more}",
    )


async def memory(place: StepPlace, notes: Notes) -> None:
    """A peak that is over before the second look, and what the driver counts for a process that is known."""
    wanted = min(GIB, place.memory_bytes // 4)
    async with opened(place.driver_root, place.run_dir) as hardware:

        async def sample() -> tuple[GpuSample, dict[int, int | None]]:
            found = await hardware.samples()
            gpu = next(one for one in found.gpus if one.gpu == place.gpu)
            return gpu, {row.pid: row.used_bytes for row in found.processes.rows if row.gpu == place.gpu}

        before, _ = await sample()
        tenant = await place.tenant()
        try:
            answer = await tenant.allocate(wanted)
            await asyncio.sleep(_SAMPLES)  # the sampler looks each second
            held, processes = await sample()
        finally:
            await tenant.end()
        await asyncio.sleep(_SAMPLES)
        after, _ = await sample()
    used = processes.get(tenant.pid)
    notes.keep(
        "samples", {"before": before, "held": held, "after": after, "process": used, "allocated": wanted}
    )
    if answer != OK:
        notes.contradicted("memory", f"{format_bytes(wanted)} could not be allocated: {answer}")
        return
    rose = (held.memory.used_bytes if held.memory else 0) - (before.memory.used_bytes if before.memory else 0)
    peak = (after.peak_bytes or 0) - (before.memory.used_bytes if before.memory else 0)
    row = "no row" if used is None else format_bytes(used)
    words = (
        f"allocated {format_bytes(wanted)}; the GPU's use rose by {format_bytes(max(rose, 0))}, its peak "
        f"afterwards by {format_bytes(max(peak, 0))}, the process had {row}"
    )
    notes.judge("memory", min(rose, peak) >= wanted and (used or 0) >= wanted, words)


async def guard(place: StepPlace, notes: Notes) -> None:
    """The promises of time-slicing with the guard, tried by ``partage prove``."""
    policy = place.work / "sliced.yaml"
    policy.write_text(_SLICED, encoding="utf-8")
    attacks = "slicing-over-share,guard-over-share,guard-off"
    await prove(place, notes, "guard", "--policy", str(policy), "--only", attacks, *engine_of(place))


async def prove(place: StepPlace, notes: Notes, row: str, *arguments: str, expected: int = 1) -> None:
    """One run of ``partage prove``, and what it says of a row. expected: attacks that have to have been
    tried.
    """
    where = ("--gpu", place.gpu, "--run-dir", str(place.run_dir), "--pod-resources", "none", "-o", "json")
    said = await partage(place, "prove", *where, *arguments, limit_s=_PROVE_S)
    try:
        document = json.loads(said.out)
        rows = [one for one in document["rows"] if one["share"] is not None]
    except (ValueError, KeyError, TypeError):
        notes.not_here(row, f"partage prove could not try it: {said.words}")
        return
    notes.keep(f"prove {row}", document)
    tried = [one for one in rows if one["verdict"] != "not-tried"]
    if len(tried) < expected:
        notes.not_here(
            row, "; ".join(dict.fromkeys(one["reason"] for one in rows if one["reason"])) or said.words
        )
        return
    words = "; ".join(f"{one['attack']} {one['verdict']}: {one['seen']}" for one in tried)
    notes.judge(row, all(one["verdict"] == "kept" for one in tried), words)


async def bench(place: StepPlace, notes: Notes) -> None:
    """The pi program alone and with up to seven others, and memory up to the limit of a share."""
    guarded = ("--guard",) if place.torch else ()
    await measure(place, notes, "bench", "--processes", "1,2,3,4,5,6,7,8", "--only", "pi,memory", *guarded)


async def measure(place: StepPlace, notes: Notes, row: str, *what: str) -> None:
    """One run of ``partage bench``; the value of pi tells whether it computed at all."""
    save = place.work / f"{row}.json"
    where = ("--gpu", place.gpu, "--run-dir", str(place.run_dir), "--save", str(save))
    said = await partage(place, "bench", *_BENCH, *where, *what, *engine_of(place), limit_s=_BENCH_S)
    if said.code:
        notes.contradicted(row, said.words)
        return
    document = json.loads(save.read_text(encoding="utf-8"))
    notes.keep("bench", document)
    turns = [turn for cell in document["cells"] for repeat in cell["repeats"] for turn in repeat["turns"]]
    failed = sorted({turn["failure"]["message"] for turn in turns if turn.get("failure")})
    values = [turn["value"] for turn in turns if turn.get("value") is not None]
    off = max((abs(value - math.pi) for value in values), default=math.pi)
    engine = "PyTorch" if place.torch else "a kernel of its own"
    modes = ", ".join(sorted({cell["mode"] for cell in document["cells"]}))
    words = f"{len(document['cells'])} cells with {engine} ({modes}); pi was off by {off:.4f} at most"
    notes.judge(row, off < _PI_OFF and not failed, "; ".join([words, *failed]))


async def xid(place: StepPlace, notes: Notes) -> None:
    """A kernel that writes to an invalid address, in a process of its own: its context ends, and the
    driver tells.
    """
    async with opened(place.driver_root, place.run_dir) as hardware:
        await hardware.events(0.1)  # the watch is there before the fault
        tenant = await place.tenant()
        try:
            waiting = asyncio.ensure_future(hardware.events(20.0))
            answer = await tenant.attempt("fault")
            events = await waiting
        finally:
            await tenant.end()
    raised = [one for one in events.xids if one.gpu == place.gpu]
    notes.keep("xids", raised)
    notes.keep("answer", answer)
    if not raised:
        notes.contradicted("xid-instance", f"the tenant got {answer}, and no XID came within 20 s")
        return
    notes.seen("xid-instance", "; ".join(str(one) for one in raised))

"""``make bench``: what Partage costs, next to NVIDIA's plugin. ``python -m bench [--quick]``.

Everything is measured from outside: a real agent and its helper as processes, a kubelet on the socket.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import bench_claims, bench_extender, bench_mig, bench_packing, bench_slurm, bench_verbs, peer
from bench.cells import Cell, cells_of, measure, plain_plugins, queue_cell, waiting_cell
from bench.client import Client, client, go_binary
from bench.node import WHOLE, Starts, bare_plugin, behind_a_queue, node, sliced, starts
from bench.processes import AtRest, Memory, at_rest, memory
from bench.storm import PODS_PER_S, Storm, storm
from tests.agent.harness import MACHINE

SOURCE = Path(__file__).parents[1] / "src"
MIXED = """\
version: partage/v1
gpus:
  - {select: {index: [0, 1]}, time-slicing: {replicas: 48}}
  - {select: {index: [2, 3]}, mps: {replicas: 4}}
  - {select: {index: [4]}, mig: {layout: [3g.40gb, 2g.20gb, 1g.10gb]}}
"""


WAITING = "8 x 48 shares, all but two held"


@dataclass(frozen=True)
class Effort:
    """How much is measured. Rounds are medians of each other."""

    calls: int
    claims: int
    rounds: int
    starts: int
    rest_s: float
    storm_s: float
    kills: int


FULL = Effort(calls=2000, claims=300, rounds=3, starts=7, rest_s=20.0, storm_s=15.0, kills=3)
QUICK = Effort(calls=200, claims=50, rounds=3, starts=3, rest_s=5.0, storm_s=6.0, kills=1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls: a minute instead of five")
    parser.add_argument("--grpcio", action="store_true", help="call with grpcio even where Go is there")
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    compileall.compile_dir(str(SOURCE), quiet=1)  # as an installed package is
    go = None if options.grpcio else go_binary()
    with client(go) as caller:
        _heading(effort, caller)
        started = starts(sliced(48), effort.starts)
        cells, plain, costs = _calls(caller, go, effort)
        real = _with_driver(effort)
        weather = storm(caller, effort.storm_s, effort.kills)
        prepared = bench_claims.measure(caller, effort.claims)
    with_claims = bench_claims.with_claims(effort.starts, effort.rest_s)
    slower = _slower(plain)
    _print_calls(cells, slower)
    _print_plain(plain, slower)
    _print_costs(started, costs, real)
    _print_storm(weather)
    print("\n" + "\n".join(bench_claims.lines(prepared, with_claims)))
    _print_plan(effort)
    version_ms, verbs = bench_verbs.measure(effort.starts)
    print("\n" + "\n".join(bench_verbs.lines(version_ms, verbs)))
    mig = bench_mig.measure()
    print(f"\n{bench_mig.line(mig)}")
    files = bench_slurm.measure()
    print(bench_slurm.line(files))
    _print_packing()
    _print_extender(effort)
    _print_ratios(started, cells, plain, costs)
    _print_budgets(started, cells, plain, costs, real, weather, slower)
    for what, value, budget in bench_claims.verdicts(prepared, with_claims):
        _verdict(what, value, budget)
    slowest = max(verbs, key=lambda name: verbs[name])
    what = f"slowest verb that only reads ({slowest}), of --version"
    _verdict(what, verbs[slowest] / version_ms, bench_verbs.BUDGET)
    _verdict("MIG planned for 8 GPUs, ms, the worst case", mig.worst, bench_mig.BUDGET_MS)
    _verdict("Slurm's files for 1,000 nodes of 8 GPUs, s", files.seconds, bench_slurm.BUDGET_S)


# --- measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Agent and helper together, and each."""

    both: Memory
    agent: Memory
    helper: Memory
    scraped: Memory
    rest: AtRest
    bare: Memory
    bare_rest: AtRest


@dataclass(frozen=True)
class WithDriver:
    """Agent, and a helper that has loaded a stand-in for NVIDIA's library."""

    both: Memory
    rest: AtRest


Cases = dict[str, list[Cell]]


def _calls(caller: Client, go: Path | None, effort: Effort) -> tuple[Cases, list[Cell], Costs]:
    cases: Cases = {}
    with node(sliced(48)) as shared, bare_plugin(shared.place, shared.kubelet) as (bare, _):
        time.sleep(5)  # what the start left to be done
        rest, bare_rest = at_rest([shared.pids, [bare.pid]], effort.rest_s)
        both, agent, helper = memory(shared.pids), memory(shared.pids[:1]), memory(shared.pids[1:])
        shared.agent.get("/metrics")
        costs = Costs(both, agent, helper, memory(shared.pids), rest, memory([bare.pid]), bare_rest)
        own = cases["8 x 48 shares"] = cells_of(caller, shared, "8 x 48 shares")
        with plain_plugins(shared, caller, own, go) as plain:
            measure(caller, [*own, *plain], effort.calls, effort.rounds)
    for case, policy in (("8 x 10 shares", sliced(10)), ("8 whole GPUs", WHOLE)):
        with node(policy) as other:
            cases[case] = cells_of(caller, other, case)
            measure(caller, cases[case], effort.calls, effort.rounds)
    with behind_a_queue() as waiting:
        waits = waiting_cell(waiting)
        measure(caller, [waits], effort.calls, effort.rounds)
        full = queue_cell(caller, waiting)
        measure(caller, [full], effort.calls, effort.rounds)
        cases[WAITING] = [waits, full]
    return cases, plain, costs


def _with_driver(effort: Effort) -> WithDriver | None:
    """None where there is no C compiler for the stand-in."""
    if shutil.which("cc") is None:
        return None
    with node(sliced(48), driver=True) as real:
        time.sleep(5)
        (rest,) = at_rest([real.pids], effort.rest_s)
        return WithDriver(memory(real.pids), rest)


def _slower(plain: Sequence[Cell]) -> float:
    """How much slower this machine is, now, than the one of NVIDIA's figures."""
    return _plain_allocate(plain).p50 / peer.PLAIN_GRPCLIB_ALLOCATE


def _plan_ms(count: int) -> float:
    """The whole verb ``partage plan`` on 8 GPUs with a mixed policy, from exec to exit."""
    command = [sys.executable, "-m", "partage", "plan", "--machine", MACHINE, "--policy", "-", "-o", "json"]
    times = []
    for _ in range(count):
        began = time.perf_counter()
        subprocess.run(command, input=MIXED, text=True, capture_output=True, check=True)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def _plan_alone_ms(count: int) -> float:
    """From the policy's text to what is offered, without starting Python."""
    from partage.edges.files.catalogue import geometry_of
    from partage.edges.files.policy import parse_policy
    from partage.plan.offer.advertise import advertise
    from partage.plan.offer.assign import assign
    from partage.sim.node.machine_names import parse_machine

    inventory = parse_machine(MACHINE).inventory

    def plan() -> None:
        policy = parse_policy(MIXED, "bench").policy
        advertise(assign(policy, inventory, geometry_of), inventory, policy)

    return statistics.median(_timed_ms(plan) for _ in range(count))


def _timed_ms(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


# --- printing ------------------------------------------------------------------------------------


def _heading(effort: Effort, caller: Client) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, {platform.machine()}, {os.cpu_count()} cores, load {_load()}")
    print(f"CPython {platform.python_version()}, node {MACHINE}, {caller.kind} client,", end=" ")
    print(f"{effort.calls} calls a cell, medians of {effort.rounds} rounds; times in microseconds")
    if caller.kind != "Go":
        print("NVIDIA's figures were taken with a Go client: with this one the ratios say little")
    sys.stdout.flush()


def _load() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def _row(*cells: object) -> None:
    first, *rest = cells
    print(f"{first!s:34}" + "".join(f"{_figure(cell):>11}" for cell in rest))


def _figure(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
    return str(value)


def _print_calls(cases: Cases, slower: float) -> None:
    print(
        f"\nThis machine now: {slower:.2f} times the time of the one of NVIDIA's figures for a plain plugin."
    )
    print("ratio: p50 by NVIDIA's p50; even: the same, as if both machines were equally fast.")
    for case, cells in cases.items():
        print()
        _row(case, "p50", "p99", "NVIDIA p50", "p99", "ratio", "even")
        for cell in cells:
            known = cell.peer
            ratio = cell.p50 / known.p50 if known else None
            even = ratio / slower if ratio else None
            label = {"both": "preferred + Allocate"}.get(cell.what, cell.what)
            p50, p99 = (known.p50, known.p99) if known else (None, None)
            _row(f"{label} {cell.size}", cell.p50, cell.p99, p50, p99, ratio, even)


def _print_plain(plain: Sequence[Cell], slower: float) -> None:
    print()
    _row("plugins that do nothing, 8 x 48", "p50", "p99")
    for cell in plain:
        _row(cell.what, cell.p50, cell.p99)


def _print_costs(started: Starts, costs: Costs, real: WithDriver | None) -> None:
    print()
    _row("processes, 8 x 48, policy, HTTP", "ours", "agent", "helper", "NVIDIA")
    _row("exec to Register, ms", started.register, None, None, peer.EXEC_TO_REGISTER_MS)
    _row("  the slowest of all starts", started.slowest)
    _row("  processor time until then, ms", None, started.agent_cpu, started.helper_cpu)
    _row("first device list, ms", started.first_list, None, None, peer.FIRST_LIST_MS)
    _row("kubelet restart to Register, ms", started.again, None, None, peer.KUBELET_RESTART_MS)
    _row("SIGTERM to the end, ms", started.stop, None, None, peer.STOP_MS)
    _row("PSS, MiB", costs.both.pss, costs.agent.pss, costs.helper.pss, peer.IDLE_PSS_MIB)
    _row("  with no other Python around", costs.both.alone)
    _row("  after a scrape of /metrics", costs.scraped.pss)
    _row("RSS, MiB", costs.both.rss, costs.agent.rss, costs.helper.rss, peer.IDLE_RSS_MIB)
    _row("threads", costs.both.threads, costs.agent.threads, costs.helper.threads, peer.THREADS)
    _row("CPU at rest, ms per s", costs.rest.cpu_ms, None, None, peer.IDLE_CPU_MS_PER_S)
    _row("wake-ups per s", costs.rest.wake_ups, None, None, peer.WAKE_UPS_PER_S)
    if real is not None:
        print("helper with a stand-in for NVIDIA's library, whose own time is in it")
        _row("  PSS, MiB", real.both.pss)
        _row("    with no other Python around", real.both.alone)
        _row("  CPU at rest, ms per s", real.rest.cpu_ms)
        _row("  wake-ups per s", real.rest.wake_ups)


def _print_ratios(started: Starts, cases: Cases, plain: Sequence[Cell], costs: Costs) -> None:
    """Next to a plugin that does nothing on the same library, in turn with it: what a busy machine changes,
    it changes for both.
    """
    print()
    _row("next to a bare plugin on grpclib", "ours", "bare", "ratio")
    cpu = started.agent_cpu + started.helper_cpu
    for what, ours, bare in (
        ("exec to Register, ms", started.register, started.bare.register),
        ("  processor time until then, ms", cpu, started.bare.cpu),
        ("  of the agent alone", started.agent_cpu, started.bare.cpu),
        ("SIGTERM to the end, ms", started.stop, started.bare.stop),
        ("PSS, MiB", costs.both.pss, costs.bare.pss),
        ("  with no other Python around", costs.both.alone, costs.bare.alone),
        ("CPU at rest, ms per s", costs.rest.cpu_ms, costs.bare_rest.cpu_ms),
        ("wake-ups per s", costs.rest.wake_ups, costs.bare_rest.wake_ups),
        ("Allocate 1, microseconds", _allocate(cases).p50, _plain_allocate(plain).p50),
    ):
        _row(what, ours, bare, ours / bare if bare else None)


def _allocate(cases: Cases) -> Cell:
    (one,) = (cell for cell in cases["8 x 48 shares"] if (cell.what, cell.size) == ("Allocate", 1))
    return one


def _plain_allocate(plain: Sequence[Cell]) -> Cell:
    (one,) = (cell for cell in plain if cell.what == "plain grpclib: Allocate")
    return one


def _print_storm(weather: Storm) -> None:
    kills = len(weather.absent_s)
    print(f"\n{PODS_PER_S} pods a second, {weather.wanted} in all, agent killed {kills} times and started")
    print(f"  admitted {weather.admitted}, lost {weather.wanted - weather.admitted};", end=" ")
    print(
        f"calls that failed and were repeated {weather.failed_calls}, wrong answers {weather.wrong},", end=" "
    )
    print(f"ids on which agent and kubelet disagree in the end {weather.disagreeing}")
    print(f"  preferred + Allocate 1: p50 {weather.p50:.0f}, p99 {weather.p99:.0f} microseconds;", end=" ")
    absent = ", ".join(f"{seconds:.2f}" for seconds in weather.absent_s)
    print(f"from kill to next admission {absent} s; longest wait of a pod {weather.longest_wait_s:.2f} s")


def _print_plan(effort: Effort) -> None:
    print(
        f"\npartage plan, 8 GPUs, mixed policy: {_plan_ms(effort.starts):.0f} ms from exec to exit,", end=" "
    )
    print(f"{_plan_alone_ms(effort.starts * 10):.1f} ms of it to read the policy and decide")


def _print_packing() -> None:
    print("\n" + "\n".join(bench_packing.table()))


def _print_extender(effort: Effort) -> None:
    nodes, pending = 1000, 5000
    found = bench_extender.measure(nodes, pending, effort.calls)
    print("\n" + "\n".join(bench_extender.lines(nodes, pending, found)))


def _print_budgets(
    started: Starts,
    cases: Cases,
    plain: Sequence[Cell],
    costs: Costs,
    real: WithDriver | None,
    weather: Storm,
    slower: float,
) -> None:
    both = {cell.size: cell for cell in cases["8 x 48 shares"] if cell.what == "both"}
    print(f"\nbudgets (times as if both machines were equally fast); load at the end {_load()}")
    for size, times in ((1, 1.5), (4, 1.0), (8, 1.0)):
        known = both[size].peer
        assert known is not None
        raw = both[size].p50 / known.p50
        _verdict(f"preferred + Allocate {size}, of NVIDIA's (raw {raw:.2f})", raw / slower, times)
    alone = _allocate(cases)
    _verdict("Allocate 1, of a bare plugin's", alone.p50 / _plain_allocate(plain).p50, 1.25)
    for cell in cases[WAITING]:
        _verdict(f"{cell.what}, of one where none waits", cell.p50 / alone.p50, 1.25)
    _verdict("exec to Register, ms", started.register, 300)
    _verdict("kubelet restart to Register, ms", started.again, 50)
    _verdict("SIGTERM to the end, ms", started.stop, 30)
    _verdict("PSS of agent and helper, MiB", costs.both.pss, 40)
    _verdict("  with no other Python around", costs.both.alone, 40)
    _verdict("CPU at rest, ms per s", costs.rest.cpu_ms, 1)
    _verdict("wake-ups per s", costs.rest.wake_ups, 3)
    if real is not None:
        _verdict("PSS with a stand-in for NVML, MiB", real.both.pss, 40)
        _verdict("CPU at rest with it, ms per s", real.rest.cpu_ms, 1)
        _verdict("wake-ups per s with it", real.rest.wake_ups, 3)
    _verdict("pods lost, ids given twice", weather.wanted - weather.admitted + weather.wrong, 0)


def _verdict(what: str, value: float, budget: float) -> None:
    word = "kept" if value <= budget else "MISSED"
    print(f"  {word:7}{what:50}{_figure(float(value)):>8}, at most {budget:g}")


if __name__ == "__main__":
    main()

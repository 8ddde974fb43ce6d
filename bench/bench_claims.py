"""What claims cost: ``python -m bench.bench_claims [--calls N] [--beside COMMAND] [--limited COMMAND]``.

Prepares of a whole GPU and of a share on an MPS daemon that runs already, next to a bare driver on the same
library, in turn, in blocks; the same with 1,000 claims that are kept; a hundred claims at once; memory and
rest of agent and helper with ``--dra`` and without.

COMMAND starts another driver for ``gpu.nvidia.com`` with ``$KUBECONFIG`` and ``$FOLDER``, where its socket is
to be ``plugins/gpu.nvidia.com/dra.sock``; docs/evidence/performance.md has one. The limited one is asked for
a hundred shares of a GPU at once only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.claim_node import (
    NODE,
    PLUGIN_POLICY,
    REPLICAS,
    ApiServer,
    ClaimNode,
    Driver,
    Result,
    bare,
    claim_node,
    plain_node,
    started,
)
from bench.client import Client, client, go_binary
from bench.processes import at_rest, memory
from partage.model.claim import ClaimRef
from tests.dra_script import DriverSocket
from tests.kubelet_script import wait_for

BLOCK, KEPT, AT_ONCE = 50, 1_000, 100
OTHER = "gpu.nvidia.com"
WHOLE_BUDGET, SHARE_BUDGET, KEPT_BUDGET, MEMORY_BUDGET_MIB = 4.0, 2.0, 1.25, 6.0


@dataclass(frozen=True)
class Prepared:
    """Each in turn with the others. kept: of a whole GPU, with so many claims beside it. at_once: seconds,
    of ours and of the limited driver."""

    drivers: list[Driver]
    kept: list[Driver]
    at_once: list[tuple[str, float]]


def measure(caller: Client, calls: int, beside: str = "", limited: str = "") -> Prepared:
    """Prepare claims that often."""
    with ExitStack() as stack:
        node = stack.enter_context(claim_node())
        drivers = [node.whole(), node.amount(), stack.enter_context(bare(node.place.root))]
        if beside:
            drivers.append(stack.enter_context(other(node.place.root / "other", node.api, beside)))
        _in_turn(caller, node.api, drivers, calls)
        at_once = [("ours", _at_once(node.api, node.socket, _share(node, 2)))]
        if limited:
            slow = stack.enter_context(other(node.place.root / "limited", node.api, limited))
            share = {**slow.result, "consumedCapacity": {"memory": "1Mi"}}
            at_once.append(("limited", _at_once(node.api, slow.socket, share)))
        _keep(node)
        kept = [node.whole(), Driver("bare driver", drivers[2].socket, drivers[2].result)]
        kept[1].what = "bare driver again"
        _in_turn(caller, node.api, kept, calls)
        return Prepared(drivers, kept, at_once)


def _in_turn(caller: Client, api: ApiServer, drivers: Sequence[Driver], calls: int) -> None:
    for driver in drivers:
        driver.measure(caller, api, 5)
        driver.micros.clear()
        driver.back.clear()
    for _ in range(max(1, calls // BLOCK)):
        for driver in drivers:
            driver.measure(caller, api, min(calls, BLOCK))


def _share(node: ClaimNode, gpu: int) -> Result:
    return node.result(gpu, shares="1", memory="0")


def _keep(node: ClaimNode) -> None:
    """Claims that stay, of the GPUs with many shares, which nothing else uses."""
    calls = DriverSocket(node.socket)
    for number in range(KEPT):
        _prepare(calls, node.api.put_claim(f"kept-{number}", _share(node, 3 + number // REPLICAS)))
    calls.close()
    time.sleep(5)  # their status is still to be written


def _prepare(calls: DriverSocket, claim: ClaimRef) -> None:
    answer = calls.prepare(claim)[claim.uid]
    assert answer.devices, answer.error


def _prepare_in_the_end(calls: DriverSocket, claim: ClaimRef) -> None:
    """Asked again after an error, as a kubelet does, which waits before that."""
    wait_for(lambda: calls.prepare(claim)[claim.uid].devices, what="prepared")


def _at_once(api: ApiServer, socket: Path, share: Result) -> float:
    """Seconds, from the first call until the last is prepared; a connection for all, as the kubelet has."""
    claims = [api.put_claim(f"once-{n}", {**share, "shareID": f"s-{n}"}) for n in range(AT_ONCE)]
    calls = DriverSocket(socket)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        began = time.monotonic()
        for done in [pool.submit(_prepare_in_the_end, calls, claim) for claim in claims]:
            done.result()
        took_s = time.monotonic() - began
    for claim in claims:
        calls.unprepare(claim)
        api.remove_claim(claim)
    calls.close()
    return took_s


@contextmanager
def other(folder: Path, api: ApiServer, command: str) -> Iterator[Driver]:
    """Another driver, by a command of the shell."""
    (folder / "registry").mkdir(parents=True)
    environment = {"FOLDER": str(folder), "KUBECONFIG": str(api.kubeconfig), "NODE_NAME": NODE}
    socket = folder / "plugins" / OTHER / "dra.sock"
    with started(["sh", "-c", f"exec {command}"], environment) as process:
        wait_for(lambda: socket.exists() or process.poll() is not None, what="the other driver")
        yield Driver(OTHER, socket, {"driver": OTHER, "pool": NODE, "device": "gpu-0"})


@dataclass(frozen=True)
class WithClaims:
    """MiB more, and milliseconds of processor time per second, with ``--dra``; medians of several starts."""

    pss_more: float
    alone_more: float
    pss: float
    cpu_without: float
    cpu_with: float
    wakes_without: float
    wakes_with: float


def with_claims(starts: int, rest_s: float) -> WithClaims:
    """Two agents side by side: all GPUs for the device plugin, and all for claims."""
    rows = []
    for _ in range(starts):
        with plain_node(policy=PLUGIN_POLICY) as (_, _, without), claim_node() as node:
            helper = without.helper_pid()
            assert helper is not None
            pids = [[without.pid, helper], node.pids]
            time.sleep(5)  # what the start left to be done
            rest = at_rest(pids, rest_s)
            rows.append(([memory(one) for one in pids], rest))
    return WithClaims(
        pss_more=statistics.median(after.pss - before.pss for (before, after), _ in rows),
        alone_more=statistics.median(after.alone - before.alone for (before, after), _ in rows),
        pss=statistics.median(after.pss for (_, after), _ in rows),
        cpu_without=statistics.median(rest[0].cpu_ms for _, rest in rows),
        cpu_with=statistics.median(rest[1].cpu_ms for _, rest in rows),
        wakes_without=statistics.median(rest[0].wake_ups for _, rest in rows),
        wakes_with=statistics.median(rest[1].wake_ups for _, rest in rows),
    )


def p99(values: Sequence[float]) -> float:
    """Of microseconds."""
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else values[0]


def lines(found: Prepared, cost: WithClaims) -> list[str]:
    """What was measured, for people."""
    said = [f"{'claims, microseconds':34}{'p50':>11}{'p99':>11}{'unprepare':>11}{'p99':>11}"]
    for driver in [*found.drivers, *found.kept]:
        what = f"{driver.what}, {KEPT:,} kept" if driver is found.kept[0] else driver.what
        said.append(
            f"{what:34}{statistics.median(driver.micros):11.0f}{p99(driver.micros):11.0f}"
            f"{statistics.median(driver.back):11.0f}{p99(driver.back):11.0f}"
        )
    for what, took_s in found.at_once:
        said.append(f"{AT_ONCE} claims at once, {what}: {took_s:.2f} s")
    said += [
        f"with --dra: PSS {cost.pss_more:+.1f} MiB, {cost.alone_more:+.1f} with no other Python around",
        f"  CPU at rest {cost.cpu_with:.2f} ms per s, without {cost.cpu_without:.2f};"
        f" wake-ups {cost.wakes_with:.1f} per s, without {cost.wakes_without:.1f}",
    ]
    return said


def verdicts(found: Prepared, cost: WithClaims) -> list[tuple[str, float, float]]:
    """What, measured, at most."""
    whole, share, bare_driver, *others = (statistics.median(driver.micros) for driver in found.drivers)
    kept, again = (statistics.median(driver.micros) for driver in found.kept)
    said = [
        ("prepare of a whole GPU, of a bare driver's", whole / bare_driver, WHOLE_BUDGET),
        ("  with 1,000 claims kept, of one without", kept / again / (whole / bare_driver), KEPT_BUDGET),
        ("prepare of a share on a daemon, of a whole GPU", share / whole, SHARE_BUDGET),
        ("PSS with --dra, MiB more", cost.pss_more, MEMORY_BUDGET_MIB),
    ]
    if others:
        theirs = found.drivers[3]
        said.append(
            ("p99 of a whole GPU, of the other's", p99(found.drivers[0].micros) / p99(theirs.micros), 1)
        )
    if len(found.at_once) > 1:
        (_, ours_s), (_, theirs_s) = found.at_once
        said.append((f"{AT_ONCE} at once, of the limited driver's", ours_s / theirs_s, 0.1))
    return said


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_claims", description=__doc__)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rest", type=float, default=20.0)
    parser.add_argument("--beside", default="")
    parser.add_argument("--limited", default="")
    options = parser.parse_args()
    with client(go_binary()) as caller:
        print(f"{time.strftime('%Y-%m-%d %H:%M')}, {caller.kind} client, load {os.getloadavg()[0]:.1f}")
        found = measure(caller, options.calls, options.beside, options.limited)
    cost = with_claims(options.starts, options.rest)
    print("\n".join(lines(found, cost)))
    for what, value, budget in verdicts(found, cost):
        print(f"  {'kept' if value <= budget else 'MISSED':7}{what:50}{value:8.2f}, at most {budget:g}")
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

"""What a scrape of the metrics costs: ``python -m bench.bench_scrape [SHARES] [SCRAPES]``.

A real agent with its helper, eight GPUs in SHARES time slices each (48), every share held by a pod with one
process under load, and a scripted kubelet that names them all. The time of a scrape is that of the whole
HTTP request, from outside. Then the node rests for some seconds, sampled every second, and its processor
time is counted.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from bench.node import sliced, spawn_as_shipped
from bench.processes import AtRest, Memory, at_rest, cpu_ms, memory
from tests.agent.harness import Place, place, registered, running
from tests.kubelet_script import ScriptedKubelet, held, scripted_kubelet

GPUS = 8
MACHINE = "8xh100-sxm5-80gb"
REST_S = 20.0
BUDGET_MS, BUDGET_MIB = 50.0, 60.0
RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True)
class Scrapes:
    """Milliseconds of each; processor time of one, agent and helper, which a busy machine changes less;
    bytes and
    samples of the last one. agent, helper: while nobody scrapes and the
    node is
    sampled all the same. memory: of both in the end.
    """

    times: list[float]
    cpu: tuple[float, float]
    size: int
    samples: int
    agent: AtRest
    helper: AtRest
    memory: Memory


def machine_file(directory: Path, shares: int) -> Path:
    """Eight GPUs, with a process for each share from the start."""
    faults = [
        {
            "gpu": gpu,
            "used-by": f"work-{number}",
            "pid": 1000 + number,
            "memory": "512Mi",
            "container": f"{number:064x}",
            "pod": f"0b5a1e0c-6f1e-4d3c-9b42-{number:012d}",
            "load": {"shape": "wave", "to": "1Gi", "busy": "2%", "noise": "5%", "seed": number},
            "after-calls": 0,
        }
        for gpu in range(GPUS)
        for number in range(gpu * shares, (gpu + 1) * shares)
    ]
    path = directory / "machine.json"
    gpu = {"name": "NVIDIA H100 80GB HBM3"}
    path.write_text(json.dumps({"gpus": [gpu] * GPUS, "faults": faults}), encoding="utf-8")
    return path


def plant(node: Place, kubelet: ScriptedKubelet, ids: list[str], shares: int) -> None:
    """A pod for each share, known by the kubelet and by the names of logs."""
    node.container_logs.mkdir()
    by_gpu: dict[str, list[str]] = {}
    for share in ids:
        by_gpu.setdefault(share.partition("::")[0], []).append(share)
    pods = {}
    for gpu, own in enumerate(by_gpu.values()):
        for place_in_gpu, share in enumerate(own):
            number = gpu * shares + place_in_gpu
            (node.container_logs / f"pod-{number}_team_main-{number:064x}.log").touch()
            pods[f"team/pod-{number}"] = {"main": {RESOURCE: [share]}}
    kubelet.pod_resources = held(pods)


def measure(shares: int, count: int, *options: str) -> Scrapes:
    """Scrape an agent that often."""
    with place() as node, scripted_kubelet(node.kubelet_dir, node.pod_resources) as kubelet:
        machine = str(machine_file(node.root, shares))
        agent = spawn_as_shipped(node, *options, machine=machine, policy=sliced(shares))
        with running(agent):
            watch = registered(kubelet, RESOURCE).watch
            assert watch is not None
            plant(node, kubelet, list(watch.health), shares)
            agent.wait(lambda:
            agent.metric(f'partage_shares_held{{certainty="observed",resource="{RESOURCE}"}}')
                       == GPUS * shares, "all held", 30)  # fmt: skip
            helper = agent.helper_pid()
            assert helper is not None
            times, body = [], b""
            before = cpu_ms(agent.pid), cpu_ms(helper)
            for _ in range(count):
                began = time.perf_counter()
                with urllib.request.urlopen(agent.url + "/metrics") as answer:
                    body = answer.read()
                times.append((time.perf_counter() - began) * 1000)
                time.sleep(0.05)
            spent = (cpu_ms(agent.pid) - before[0]) / count, (cpu_ms(helper) - before[1]) / count
            samples = sum(1 for line in body.splitlines() if not line.startswith(b"#"))
            rest = at_rest([[agent.pid], [helper]], REST_S)
            return Scrapes(times, spent, len(body), samples, rest[0], rest[1], memory([agent.pid, helper]))


def lines(shares: int, found: Scrapes) -> list[str]:
    """What was measured, for people."""
    times, memory_ = sorted(found.times), found.memory
    p99 = times[min(len(times) - 1, round(0.99 * len(times)))]
    kept = "kept" if p99 < BUDGET_MS and memory_.alone < BUDGET_MIB else "missed"
    return [
        f"/metrics, {GPUS} x {shares} shares, all held, {GPUS * shares} processes: {found.samples} samples, "
        f"{found.size / 1024:.0f} KiB",
        f"  p50 {statistics.median(times):.1f} ms, p99 {p99:.1f} ms, slowest {times[-1]:.1f} ms",
        f"  processor time of a scrape: agent {found.cpu[0]:.1f} ms, helper {found.cpu[1]:.1f} ms",
        f"  after the last scrape: agent {found.agent.cpu_ms:.1f} ms of processor time per s and "
        f"{found.agent.wake_ups:.1f} wake-ups,",
        f"  helper {found.helper.cpu_ms:.1f} ms and {found.helper.wake_ups:.1f}",
        f"  PSS of both {memory_.pss:.1f} MiB, with no other Python around {memory_.alone:.1f} MiB; {kept}",
    ]


def main() -> None:
    """Print the lines, without and with dcgm-exporter's names."""
    given = [int(argument) for argument in sys.argv[1:3]]
    shares, count = (*given, *(48, 200)[len(given) :])
    for options in ((), ("--dcgm-names=both",)):
        print(*options or ("own names only",))
        print("\n".join(lines(shares, measure(shares, count, *options))), flush=True)


if __name__ == "__main__":
    main()

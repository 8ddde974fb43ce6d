"""What the hook of memory limits costs a start: ``python -m bench.bench_limit_hook [STARTS] [AT_ONCE]``.

The real runc starts containers of busybox (100, 8 at a time), by turns with our hook and with one that does
nothing (/bin/true), in a mount namespace with cgroup v2; as root. The hook calls the stand-in for NVML, so
what a real driver needs for its own start is not in it. Then the hook alone, NVIDIA's, and what Allocate
waits for a file.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from partage.edges.cdi.limit_files import LimitFiles
from partage.model.driver_limit import DriverLimit
from partage.model.ids import ResourceName
from partage.plan.serve.limit_edits import hook_edits, limit_set, limit_terms
from tests.edges.cdi.limit_hook.node import GROUP, CgroupNode, Runc, built_hook
from tests.edges.hardware.conftest import compiled_stub
from tests.edges.hardware.stub import StubNode
from tests.nvidia.packages import FOLDER

BUDGET = 1.1
"""How much longer a start may take, at the 99th percentile."""

ROUNDS = 3
NAME = ResourceName("nvidia.com/gpu.shared")
LIMIT = DriverLimit(StubNode.uuid(0), 8 << 30)


def main() -> None:
    """Measure and print."""
    starts, at_once = (int(word) for word in (sys.argv[1:] + ["100", "8"][len(sys.argv) - 1 :])[:2])
    with tempfile.TemporaryDirectory(prefix="partage-bench-") as folder:
        node, driver = CgroupNode(), _driver(Path(folder))
        runc = Runc(node, Path(folder), _image(Path(folder)))
        hook = built_hook(Path(folder))
        try:
            _starts(runc, _hooks(hook, driver), starts, at_once)
            _alone(node, hook, driver)
            _files(Path(folder), hook)
        finally:
            runc.close()
            node.close()


def _hooks(program: Path, driver: StubNode) -> Mapping[str, dict[str, Any]]:
    terms = limit_terms(str(program), str(driver.root), "", nvidia=False)
    hooks = {
        "a hook that does nothing": {"path": "/bin/true", "args": ["true"], "env": ["LC_ALL=C"]},
        "Partage's hook": hook_edits([LIMIT], terms, "bench")["hooks"][0],
    }
    for hook in hooks.values():
        hook.pop("hookName", None)
    return hooks


def _starts(runc: Runc, hooks: Mapping[str, dict[str, Any]], starts: int, at_once: int) -> None:
    """By turns within each batch: a noisy second is shared."""
    times: dict[str, list[list[float]]] = {what: [] for what in hooks}
    for turn in range(ROUNDS + 1):
        found: dict[str, list[float]] = {what: [] for what in hooks}

        def start(number: int, turn: int = turn, found: dict[str, list[float]] = found) -> None:
            for what in sorted(hooks, reverse=bool(number % 2)):
                id_ = f"r{turn}-{number}-{what[:1] == 'P'}"
                bundle = runc.bundle(id_, [hooks[what]], "true")
                began_s = time.perf_counter()
                ran = runc.node.run(*runc.command("run", "--bundle", str(bundle), id_))
                found[what].append((time.perf_counter() - began_s) * 1000)
                assert ran.returncode == 0, ran.stderr

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(start, range(starts if turn else at_once)))
        for what, measured in found.items():
            times[what] += [measured] if turn else []
    load = f"load {os.getloadavg()[0]:.1f}"
    print(f"{starts} starts of each, {at_once} at a time, {ROUNDS} rounds, by turns; ms; {load}")
    p99 = {}
    for what, rounds in times.items():
        p99[what] = statistics.median(_percentile(each, 99) for each in rounds)
        p50 = statistics.median(statistics.median(each) for each in rounds)
        print(f"  {what:26}  median {p50:7.1f}   p99 {p99[what]:7.1f}")
    ratio = p99["Partage's hook"] / p99["a hook that does nothing"]
    print(f"  p99 is {ratio:.2f} times as long (at most {BUDGET})")


def _alone(node: CgroupNode, hook: Path, driver: StubNode) -> None:
    """Nothing else beside: from fork to exit."""
    id_ = "0123456789abcdef"
    with node.process_in(f"/{GROUP}/{id_}") as pid:
        (driver.root / "state").write_text(f'{{"id":"{id_}","pid":{pid},"bundle":"{driver.root}"}}')
        words = [str(hook), "set", f"--driver-root={driver.root}", str(LIMIT)]
        _print_runs("Partage's hook alone, in C", node, driver, words)
        words = ["/usr/bin/python3", "-I", "-S", "-c", "import ctypes, json"]
        _print_runs("Python that loads ctypes and json", node, driver, words)
        words = ["/usr/bin/python3", "-I", "-S", "-c", ""]
        _print_runs("Python alone, -I -S", node, driver, words)
        theirs = FOLDER / "toolkit" / "nvidia-cdi-hook"
        if theirs.exists():
            env = '["NVIDIA_GPU_MEMORY_REQUEST=0","NVIDIA_GPU_MEMORY_LIMIT=8192"]'
            (driver.root / "config.json").write_text(f'{{"process":{{"env":{env}}}}}')
            words = [str(theirs), "apply-cuda-memory-limits", "--driver-root", str(driver.root)]
            _print_runs("NVIDIA's hook alone", node, driver, [*words, "--gpu-id", LIMIT.gpu])


def _print_runs(what: str, node: CgroupNode, driver: StubNode, words: list[str]) -> None:
    """Of 50 runs, without the shell around them: it says how long they took together."""
    loop = 'n=0; while [ $n -lt 50 ]; do "$@" < "$0" || exit 1; n=$((n+1)); done'
    rounds = []
    for _ in range(5):
        began_s = time.perf_counter()
        ran = node.run("sh", "-c", loop, driver.root / "state", *words)
        rounds.append((time.perf_counter() - began_s) * 1000 / 50)
        assert ran.returncode == 0, ran.stderr
    print(f"  {what:36} {min(rounds):6.1f} ms (best of 5 rounds of 50)")


def _files(folder: Path, hook: Path) -> None:
    files, terms = LimitFiles(folder / "cdi", folder / "kept"), limit_terms(str(hook), "/", "", nvidia=False)

    def write(number: int) -> None:
        files.write(limit_set([DriverLimit(LIMIT.gpu, (number + 1) << 20)], NAME), terms)

    print(f"  the two files of a new set of limits {_median_us(write):6.0f} µs (median of 500)")


def _median_us(act: Callable[[int], None]) -> float:
    took = []
    for number in range(500):
        began_s = time.perf_counter()
        act(number)
        took.append((time.perf_counter() - began_s) * 1e6)
    return statistics.median(took)


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def _driver(folder: Path) -> StubNode:
    driver = StubNode(folder / "root", compiled_stub(folder)).add_h100s(1)
    driver.write(**{"gpu.0.limits": "misc"})
    return driver


def _image(folder: Path) -> Path:
    image = folder / "image"
    (image / "bin").mkdir(parents=True)
    (image / "proc").mkdir()
    shutil.copy("/bin/busybox", image / "bin")
    (image / "bin" / "true").symlink_to("busybox")
    return image


if __name__ == "__main__":
    main()

"""What an answer of the extender costs: ``python -m bench.bench_extender [NODES] [PENDING] [CALLS]``.

The verb as shipped, against an API server that only lists: NODES nodes of eight GPUs each with what runs
there, and PENDING pods that wait, of which each is asked for in turn, as kube-scheduler does. Between two
calls a claim is allocated now and then, so that nodes change. Then a server of the same library that answers
the same bytes.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from random import Random

from bench.processes import memory
from tests.edges.kube.scripted import PKI
from tests.edges.kube.store import NODES, PODS, SLICES, ObjectStore, object_store
from tests.scheduler.objects import MEMORY, Json, claim, classes, device, node, pod, slices

BUDGET_MS, BUDGET_MIB, BUDGET_RATIO = 10.0, 200.0, 4.0
API = "/apis/resource.k8s.io/v1"
GPUS = 8
EVERY = 5
"""Calls between two changes of a node."""
MEASURED = 250
"""Calls between two looks at memory."""
SIZES = (100, 120, 250, 330, 470, 500, 810, 1000)


@dataclass(frozen=True)
class Answers:
    """Milliseconds of each. bytes_: of the last answer. mib: most PSS of the verb and of its trial."""

    times: list[float]
    plain: list[float]
    bytes_: int
    mib: float
    changes: int


class Cluster:
    """Objects of a cluster that is half full."""

    def __init__(self, nodes: int, pending: int) -> None:
        random = self._random = Random(1)
        self.names = [f"gpu-node-{number:04}" for number in range(nodes)]
        self.objects: dict[str, list[Json]] = {kind: [] for kind in (NODES, PODS, SLICES, "claims")}
        for number, name in enumerate(self.names):
            self.objects[NODES].append(node(name, 128_000))
            devices = [device(gpu, "AB"[number % 2]) for gpu in range(GPUS)]
            self.objects[SLICES].append(slices(name, devices))
            for gpu in range(random.randrange(GPUS)):
                self.objects[PODS], self.objects["claims"] = self._more(f"run-{number}-{gpu}", name, gpu)
        self.waiting = []
        for number in range(pending):
            key = f"wait-{number}"
            size = random.choice(SIZES)
            self.objects["claims"].append(
                claim(key, 1 if size < 1000 else random.choice((1, 2, 4, 8)), size * MEMORY // 1000)
            )
            self.waiting.append(pod(key, random.choice((2000, 4000, 8000, 12_000)), 1024, [key]))
        self.objects[PODS] += self.waiting

    def _more(self, key: str, name: str, gpu: int) -> tuple[list[Json], list[Json]]:
        size = self._random.choice(SIZES) * MEMORY // 1000
        taken = claim(key, 1, size, given={name: [f"gpu-{gpu}"]}, consumed={"memory": size})
        here = pod(key, self._random.choice((2000, 4000, 8000)), 1024, [key], on=name)
        return [*self.objects[PODS], here], [*self.objects["claims"], taken]


def fill(store: ObjectStore, cluster: Cluster) -> None:
    """Put all objects."""
    for path in (NODES, PODS, SLICES):
        for one in cluster.objects[path]:
            store.put(path, one, "ADDED")
    for one in cluster.objects["claims"]:
        store.put(f"{API}/resourceclaims", one, "ADDED")
    for one in classes():
        store.put(f"{API}/deviceclasses", one, "ADDED")
    store.log.clear()


@contextmanager
def api_server_of(cluster: Cluster) -> Iterator[tuple[ObjectStore, asyncio.AbstractEventLoop]]:
    """In a thread of its own."""
    found: list[tuple[ObjectStore, asyncio.AbstractEventLoop]] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with object_store() as store:
            fill(store, cluster)
            found.append((store, asyncio.get_running_loop()))
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.1)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(60)
    try:
        yield found[0]
    finally:
        stop.set()
        thread.join()


@contextmanager
def extender(url: str, folder: Path) -> Iterator[tuple[int, int]]:
    """The verb: its process and port, as soon as it is ready."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [
                    {"name": "c", "cluster": {"server": url, "certificate-authority": str(PKI / "ca.crt")}}
                ],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    command = [
        sys.executable,
        "-m",
        "partage",
        "scheduler",
        "--kubeconfig",
        str(kubeconfig),
        "--http",
        "127.0.0.1:0",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"MALLOC_ARENA_MAX": "1"}
    )
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)$", process.stdout.readline().strip())
        assert found is not None, "the verb prints where it serves"
        port = int(found[1])
        deadline = time.monotonic() + 120
        while _status(port) != 200:
            assert time.monotonic() < deadline, "the extender is not ready"
            time.sleep(0.2)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(20)


def _status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def measure(nodes: int, pending: int, calls: int) -> Answers:
    """Ask for pods in turn."""
    cluster = Cluster(nodes, pending)
    with (
        tempfile.TemporaryDirectory() as folder,
        api_server_of(cluster) as (store, loop),
        extender(store.server.url, Path(folder)) as (pid, port),
    ):
        time.sleep(3)  # what waits is counted beforehand, a moment after it was seen
        bodies = [
            json.dumps({"Pod": one, "Nodes": None, "NodeNames": cluster.names}).encode()
            for one in cluster.waiting[:calls]
        ]
        times: list[float] = []
        plain: list[float] = []
        changes, mib = 0, 0.0
        random = Random(2)
        with _kept(port) as ask:
            content = ask(bodies[0])
        # In turn: what a busy machine changes, it changes for both.
        with _plain(content) as plain_port, _kept(port) as ask, _kept(plain_port) as ask_plain:
            for number, body in enumerate(bodies):
                if number % MEASURED == 0:
                    mib = max(mib, memory(_with_trial(pid)).pss)
                if number % EVERY == 0:
                    changes += 1
                    _change(store, loop, cluster.names[random.randrange(nodes)], number)
                content = _timed(ask, body, times)
                _timed(ask_plain, body, plain)
        assert len(json.loads(content)) == nodes
        return Answers(times, plain, len(content), mib, changes)


def _with_trial(pid: int) -> list[int]:
    """The process, and the one that it may have begun to try ways to score."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [pid, *(int(child) for one in threads for child in (one / "children").read_text().split())]


def _change(store: ObjectStore, loop: asyncio.AbstractEventLoop, name: str, number: int) -> None:
    """Somebody's claim is allocated on a node."""
    size = 100 * MEMORY // 1000
    found = claim(f"more-{number}", 1, size, given={name: ["gpu-7"]}, consumed={"memory": size})
    loop.call_soon_threadsafe(store.put, f"{API}/resourceclaims", found, "ADDED")
    time.sleep(0.01)


def _timed(ask: Callable[[bytes], bytes], body: bytes, times: list[float]) -> bytes:
    began = time.perf_counter()
    content = ask(body)
    times.append((time.perf_counter() - began) * 1000)
    return content


@contextmanager
def _plain(content: bytes) -> Iterator[int]:
    """A server on the same library that knows its answer, in a process of its own: its port."""
    code = (
        "import sys, time\n"
        "from http import HTTPStatus\n"
        "from partage.serve_http.http import HttpServer\n"
        "from partage.serve_http.serving import listen\n"
        "body = sys.stdin.buffer.read()\n"
        "page = lambda _: (HTTPStatus.OK, 'application/json', body)\n"
        "sock = listen('127.0.0.1:0')\n"
        "server = HttpServer(sock, {'/prioritize': page}, posts=('/prioritize',))\n"
        "print(sock.getsockname()[1], flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(content)
        process.stdin.close()
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


@contextmanager
def _kept(port: int) -> Iterator[Callable[[bytes], bytes]]:
    """Ask over one connection that stays open."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(body: bytes) -> bytes:
        connection.request("POST", "/prioritize", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == HTTPStatus.OK, content
        return content

    try:
        yield ask
    finally:
        connection.close()


def p99(times: Sequence[float]) -> float:
    """Of milliseconds."""
    return sorted(times)[min(len(times) - 1, round(0.99 * len(times)))]


def lines(nodes: int, pending: int, found: Answers) -> list[str]:
    """What was measured, for people."""
    ratio = p99(found.times) / p99(found.plain)
    kept = p99(found.times) < BUDGET_MS and ratio <= BUDGET_RATIO and found.mib < BUDGET_MIB
    return [
        f"Prioritize, {nodes} nodes x {GPUS} GPUs, {pending} pods pending, {len(found.times)} calls, "
        f"{found.changes} changes between them, {found.bytes_ / 1024:.0f} KiB answered",
        f"  p50 {statistics.median(found.times):.1f} ms, p99 {p99(found.times):.1f} ms, "
        f"slowest {max(found.times):.1f} ms",
        f"  a server of the same bytes: p50 {statistics.median(found.plain):.1f} ms, "
        f"p99 {p99(found.plain):.1f} ms; ratio of p99 {ratio:.1f}",
        f"  PSS {found.mib:.0f} MiB; {'kept' if kept else 'missed'}",
    ]


def main() -> None:
    """Print the lines."""
    given = [int(argument) for argument in sys.argv[1:4]]
    nodes, pending, calls = (*given, *(1000, 5000, 3000)[len(given) :])
    print("\n".join(lines(nodes, pending, measure(nodes, pending, calls))), flush=True)


if __name__ == "__main__":
    main()

"""How long the kubelet waits for its two calls, cell by cell."""

from __future__ import annotations

import base64
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import peer
from bench.client import Answered, Call, Client, call
from bench.node import Node
from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from tests.kubelet_script import wait_for

SIZES = (1, 4, 8)


@dataclass
class Cell:
    """One figure of the table: what is called, and what came of it in each round."""

    what: str
    size: int
    socket: Path
    calls: Sequence[Call]
    peer: peer.Timed | None = None
    rounds: list[Answered] = field(default_factory=list)

    @property
    def p50(self) -> float:
        """Median of the rounds' medians, microseconds."""
        return statistics.median(one.p50 for one in self.rounds)

    @property
    def p99(self) -> float:
        """Median of the rounds' 99th percentiles."""
        return statistics.median(one.p99 for one in self.rounds)


def measure(client: Client, cells: Sequence[Cell], calls: int, rounds: int) -> None:
    """Round after round, every cell in each: a noisy minute is shared by all."""
    for _ in range(rounds):
        for cell in cells:
            cell.rounds.append(client.ask(cell.socket, cell.calls, repeat=calls, warm=calls // 10))


def cells_of(client: Client, node: Node, case: str) -> list[Cell]:
    """All cells of one agent, its ids in random order as the kubelet sends them."""
    socket = _socket_of(node)
    ids = list(node.ids)
    random.Random(1).shuffle(ids)
    cells = []
    for size in SIZES:
        prefer = preferred_call(ids, size)
        allocate = allocate_call(preferred_ids(client.ask(socket, [prefer]).bodies[0]))
        known = peer.PREFERRED[case].get(size)
        cells += [
            Cell("preferred", size, socket, [prefer], known),
            Cell("Allocate", size, socket, [allocate], peer.allocate(size)),
            Cell("both", size, socket, [prefer, allocate], peer.together(case, size)),
        ]
    return sorted(cells, key=lambda cell: ("preferred", "Allocate", "both").index(cell.what))


def waiting_cell(node: Node) -> Cell:
    """Allocate of one of the free shares, while a GPU waits for the ends of its holders."""
    return Cell("Allocate, a GPU waits", 1, _socket_of(node), [allocate_call(node.ids[:1])], peer.allocate(1))


def queue_cell(client: Client, node: Node) -> Cell:
    """The same when no share is free any more: the held ones of the GPU that waits are unhealthy."""
    found = node.kubelet.last(node.resource)
    assert found is not None
    watch = found.watch
    assert watch is not None
    socket = _socket_of(node)
    client.ask(socket, [allocate_call([id_]) for id_ in node.ids])
    wait_for(lambda: "Unhealthy" in watch.health.values(), what="held shares are unhealthy")
    return replace(waiting_cell(node), what="Allocate, behind a queue")


def _socket_of(node: Node) -> Path:
    found = node.kubelet.last(node.resource)
    assert found is not None
    return node.place.kubelet_dir / found.request.endpoint


def preferred_call(ids: Sequence[str], size: int) -> Call:
    """GetPreferredAllocation of so many out of these."""
    request = pb.PreferredAllocationRequest()
    request.container_requests.add(available_deviceIDs=ids, allocation_size=size)
    return call("GetPreferredAllocation", request)


def preferred_ids(body: bytes) -> list[str]:
    """What it answered."""
    return list(pb.PreferredAllocationResponse.FromString(body).container_responses[0].deviceIDs)


def allocate_call(ids: Sequence[str]) -> Call:
    """Allocate of these."""
    request = pb.AllocateRequest()
    request.container_requests.add(devices_ids=ids)
    return call("Allocate", request)


@contextmanager
def plain_plugins(node: Node, client: Client, own: Sequence[Cell], go: Path | None) -> Iterator[list[Cell]]:
    """Plugins without any work behind them, asked and answering the same bytes as ours for one share."""
    ones = {cell.what: cell.calls[0] for cell in own if cell.size == 1 and len(cell.calls) == 1}
    bodies = {one.method: client.ask(own[0].socket, [one]).bodies[0] for one in ones.values()}
    answers = node.place.root / "answers.json"
    said = {method: base64.b64encode(body).decode() for method, body in bodies.items()}
    answers.write_text(json.dumps(said), encoding="ascii")
    python = [sys.executable, "-m", "bench.plain_plugin"]
    argvs = {"plain grpclib": [*python, "grpclib"], "plain grpcio": [*python, "grpcio"]}
    if go is not None:
        argvs["plain Go"] = [str(go), "serve"]
    processes, cells = [], []
    try:
        for name, argv in argvs.items():
            socket = node.place.root / f"{name.replace(' ', '-')}.sock"
            processes.append(subprocess.Popen([*argv, str(socket), str(answers)]))
            wait_for(socket.exists, what=f"{name} serves")
            cells += [Cell(f"{name}: {what}", 1, socket, [one]) for what, one in ones.items()]
        yield cells
    finally:
        for process in processes:
            process.kill()
            process.wait()

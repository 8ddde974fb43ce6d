"""One tenant of the experiments: a program of its own that needs nothing but PyTorch, or not even that.

It may be run by another Python than Partage's, 3.8 or newer, and imports nothing of Partage. Device, mode and
limits come through the environment (CUDA_VISIBLE_DEVICES, CUDA_MPS_PIPE_DIRECTORY, ...), as a container gets
them. Orders come as lines of JSON on standard input, events leave so on standard output:

    -> {"job": "pi", "points": 65536, "rounds": 1000}       get ready: allocate, warm up
    <- {"event": "ready"}
    -> {"go": 1234.5}                                       start at that time of the monotonic clock
    <- {"event": "done", "started": ..., "ended": ..., "value": 3.1416}

or ``{"event": "failed", "what": "oom" | "error", "message": ...}`` at any time. The first event is ``hello``.
It ends with its standard input, whatever it is computing then: no tenant outlives the bench.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import queue
import random
import sys
import threading
import time
from typing import Any, Callable, Dict, TextIO  # noqa: UP035 - Python 3.8 has no dict[str, Any] to evaluate

Order = Dict[str, Any]  # noqa: UP006

_WARM_UP_S = {"cuda": 0.3, "cpu": 0.02}
"""A GPU raises its clocks within this time."""
_SPIN_S = 0.002
"""The last moment before the start is spent awake: a sleeper is woken late."""
_WIDTH, _LAYERS = 1024, 4
_PYTHON_WIDTH = 24


class TorchEngine:
    """The experiments with PyTorch, on the device that the environment shows as the first, or on the CPU."""

    def __init__(self, device: str) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._device = device
        if device == "cpu":
            self._torch.set_num_threads(1)  # one tenant, one core: parallel tenants are to share cores
        self._torch.zeros(1, device=device).sum().item()
        self._held: list[Any] = []

    def facts(self) -> Order:
        """What it runs on."""
        torch = self._torch
        found: Order = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda or "")}
        if self._device == "cuda":
            found["multiprocessors"] = int(torch.cuda.get_device_properties(0).multi_processor_count)
        return found

    def pi(self, points: int) -> Callable[[int], float]:
        """Monte Carlo: a function of the number of rounds, each of seven kernels over that many points."""
        torch = self._torch
        x = torch.empty(points, device=self._device)
        y = torch.empty(points, device=self._device)

        def estimate(rounds: int) -> float:
            inside = torch.zeros((), dtype=torch.int64, device=self._device)
            for _ in range(rounds):
                x.uniform_()
                y.uniform_()
                x.mul_(x).addcmul_(y, y)
                inside += (x <= 1).sum()
            return 4 * float(inside.item()) / (points * rounds)

        return estimate

    def inference(self) -> Callable[[], object]:
        """One request to a small model: its input goes to the device, its output comes back."""
        torch = self._torch
        layers: list[Any] = []
        for _ in range(_LAYERS):
            layers += [torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers).to(self._device).eval()
        request = torch.rand(1, _WIDTH)

        def answer() -> object:
            with torch.no_grad():
                return model(request.to(self._device)).cpu()

        return answer

    def hold(self, size_bytes: int) -> None:
        """Allocate a tensor, write to all of it and keep it."""
        tensor = self._torch.empty(size_bytes, dtype=self._torch.uint8, device=self._device)
        tensor.fill_(1)
        if self._device == "cuda":
            self._torch.cuda.synchronize()
        self._held.append(tensor)


class PythonEngine:
    """The same without PyTorch and without a GPU: for trying the tool, not for figures."""

    def __init__(self, device: str) -> None:
        if device != "cpu":
            raise RuntimeError("the engine without PyTorch computes on the CPU only")
        self._held: list[bytes] = []

    def facts(self) -> Order:
        """Nothing but Python."""
        return {}

    def pi(self, points: int) -> Callable[[int], float]:
        """Monte Carlo, point by point."""
        draw = random.Random(1).random  # noqa: S311 - no secret

        def estimate(rounds: int) -> float:
            inside = sum(draw() ** 2 + draw() ** 2 <= 1 for _ in range(points * rounds))
            return 4 * inside / (points * rounds)

        return estimate

    def inference(self) -> Callable[[], object]:
        """A matrix times a vector."""
        row = [n / _PYTHON_WIDTH for n in range(_PYTHON_WIDTH)]

        def answer() -> object:
            return [sum(a * b for a, b in zip(row, row)) for _ in row]  # noqa: B905 - Python 3.8

        return answer

    def hold(self, size_bytes: int) -> None:
        """Allocate that much and write to all of it."""
        self._held.append(b"\x01" * size_bytes)


ENGINES: Dict[str, Any] = {"torch": TorchEngine, "python": PythonEngine}  # noqa: UP006


class Tenant:
    """Does one order after the other."""

    def __init__(self, orders: queue.Queue[Order], say: Callable[..., None]) -> None:
        self._orders, self._say = orders, say
        self._engine: Any = None
        self._warm_up_s = 0.0

    def serve(self, engine: str, device: str) -> None:
        """Say hello, then do what is ordered, until the process is ended."""
        self._warm_up_s = _WARM_UP_S[device]
        self._engine = ENGINES[engine](device)
        self._say(
            "hello",
            pid=os.getpid(),
            python=platform.python_version(),
            guard=os.environ.get("PARTAGE_GUARD_APPLIED", ""),
            **self._engine.facts(),
        )
        jobs: Any = {"pi": self._pi, "inference": self._inference, "memory": self._memory}
        while True:
            order = self._orders.get()
            jobs[order["job"]](order)

    def _pi(self, order: Order) -> None:
        estimate = self._engine.pi(order["points"])
        self._warm_up(lambda: estimate(1))
        self._wait()
        started = time.monotonic()
        value = estimate(order["rounds"])
        self._say("done", started=started, ended=time.monotonic(), value=value)

    def _inference(self, order: Order) -> None:
        """Requests for a while. The first ``keep`` of them are timed one by one; the others are company."""
        answer = self._engine.inference()
        self._warm_up(answer)
        self._wait()
        latencies_us: list[float] = []
        requests = 0
        started = now = time.monotonic()
        while now < started + order["seconds"] or not requests:
            answer()
            before, now = now, time.monotonic()
            requests += 1
            if requests <= order["keep"]:
                latencies_us.append(round((now - before) * 1e6, 1))
        self._say("done", started=started, ended=now, requests=requests, latenciesUs=latencies_us)

    def _memory(self, order: Order) -> None:
        self._wait()
        started = time.monotonic()
        for size_bytes in order["tensors"]:
            self._engine.hold(size_bytes)
        self._say("done", started=started, ended=time.monotonic())

    def _warm_up(self, once: Callable[[], object]) -> None:
        end = time.monotonic() + self._warm_up_s
        once()
        while time.monotonic() < end:
            once()

    def _wait(self) -> None:
        """Say ready; come back at the time of the start."""
        self._say("ready")
        start = self._orders.get()["go"]
        time.sleep(max(0.0, start - time.monotonic() - _SPIN_S))
        while time.monotonic() < start:
            pass


def failure(error: BaseException) -> Order:
    """What went wrong, in words. Each version of a framework says "out of memory" in another class."""
    text = " ".join(str(error).split()) or type(error).__name__
    spent = ("out of memory", "can't allocate memory", "not enough memory")
    oom = isinstance(error, MemoryError) or any(words in text.lower() for words in spent)
    return {"what": "oom" if oom else "error", "message": text[:500]}


def main() -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description="One tenant of partage bench; the bench starts it itself.")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="torch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    # This file's neighbours are Partage's: no library shall import one of them by a name of its own.
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry != here]
    # Whatever libraries print shall not stand among the events.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(event: str, **rest: object) -> None:
        events.write(json.dumps({"event": event, **rest}) + "\n")
        events.flush()

    orders: queue.Queue[Order] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, orders), daemon=True).start()
    try:
        Tenant(orders, say).serve(options.engine, options.device)
    except Exception as error:  # noqa: BLE001 - whatever a framework raises is this tenant's result
        say("failed", **failure(error))
    return 1


def _listen(stdin: TextIO, orders: queue.Queue[Order]) -> None:
    for line in stdin:
        orders.put(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

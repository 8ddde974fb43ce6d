"""One tenant of an experiment: a program of its own that needs nothing but PyTorch, or not even that.

It may be run by another Python than Partage's, 3.8 or newer, and imports nothing of Partage. Device, mode and
limits come through the environment (CUDA_VISIBLE_DEVICES, CUDA_MPS_PIPE_DIRECTORY, ...), as a container gets
them. Requests come as lines on standard input; one line on standard output answers each:

    ok            done
    ok RESULT     done, with a result in JSON
    error WORDS   not done: the name of CUDA's error, or the framework's own words

The first answer comes without a request: whether the tenant has reached its device. Requests:

    facts                   versions, and what this process sees of the GPU
    allocate BYTES          keep that much memory and write to all of it
    launch                  run a kernel that does no harm
    fault                   run a kernel that writes to an invalid address: the end of this CUDA context
    pi POINTS ROUNDS        prepare the pi program: allocate and warm up
    inference SECONDS KEEP  prepare requests to a small model, and time the first KEEP of them
    go TIME                 do what is prepared, from that time of the monotonic clock on

The simulated MPS client (``partage.sim.mps.client``) answers allocate, launch and fault in the same way. With
a user's number as argument the tenant runs as that user. It ends as soon as its standard input ends,
whatever it is doing then, so no tenant outlives the experiment.
"""

from __future__ import annotations

import argparse
import ctypes
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

Facts = Dict[str, Any]  # noqa: UP006

_WARM_UP_S = {"cuda": 0.3, "cpu": 0.02}
"""A GPU raises its clocks within this time."""
_SPIN_S = 0.002
"""The last moment before the start is spent awake, because a sleeping process wakes up late."""
_WIDTH, _LAYERS = 1024, 4
_PYTHON_WIDTH = 24
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.h
_STORE_TO_INVALID_ADDRESS = b"""
.version 6.0
.target sm_70
.address_size 64
.visible .entry store_to_invalid_address() {
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""
_COUNT_INSIDE = b"""
.version 6.0
.target sm_70
.address_size 64
.visible .entry count_inside(.param .u64 sum, .param .u32 seed, .param .u32 points) {
    .reg .pred %again, %is_inside;
    .reg .b32 %random, %shifted, %thread, %size, %left, %inside;
    .reg .f32 %x, %y;
    .reg .b64 %sum, %wide;
    ld.param.u64 %sum, [sum];
    ld.param.u32 %random, [seed];
    ld.param.u32 %left, [points];
    mov.u32 %thread, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mul.lo.u32 %thread, %thread, %size;
    mov.u32 %size, %tid.x;
    add.u32 %thread, %thread, %size;
    mad.lo.u32 %random, %random, 0x9e3779b1, %thread;
    shr.u32 %shifted, %random, 16;
    xor.b32 %random, %random, %shifted;
    mul.lo.u32 %random, %random, 0x85ebca6b;
    shr.u32 %shifted, %random, 13;
    xor.b32 %random, %random, %shifted;
    mul.lo.u32 %random, %random, 0xc2b2ae35;
    shr.u32 %shifted, %random, 16;
    xor.b32 %random, %random, %shifted;
    or.b32 %random, %random, 1;
    mov.u32 %inside, 0;
next:
    shl.b32 %shifted, %random, 13;
    xor.b32 %random, %random, %shifted;
    shr.u32 %shifted, %random, 17;
    xor.b32 %random, %random, %shifted;
    shl.b32 %shifted, %random, 5;
    xor.b32 %random, %random, %shifted;
    shr.u32 %shifted, %random, 8;
    cvt.rn.f32.u32 %x, %shifted;
    mul.f32 %x, %x, 0f33800000;
    shl.b32 %shifted, %random, 13;
    xor.b32 %random, %random, %shifted;
    shr.u32 %shifted, %random, 17;
    xor.b32 %random, %random, %shifted;
    shl.b32 %shifted, %random, 5;
    xor.b32 %random, %random, %shifted;
    shr.u32 %shifted, %random, 8;
    cvt.rn.f32.u32 %y, %shifted;
    mul.f32 %y, %y, 0f33800000;
    mul.f32 %x, %x, %x;
    fma.rn.f32 %x, %y, %y, %x;
    setp.le.f32 %is_inside, %x, 0f3f800000;
    @%is_inside add.u32 %inside, %inside, 1;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %again, %left, 0;
    @%again bra next;
    cvt.u64.u32 %wide, %inside;
    red.global.add.u64 [%sum], %wide;
    ret;
}
"""
"""Each thread draws ``points`` points of the unit square (xorshift, 24 bits; 0f33800000 is 2**-24) and adds
those inside of the quarter circle to ``sum``. ``tests/lab/cuda_stub.c`` has the same in C."""
_BLOCK, _MOST_THREADS, _POINTS_EACH = 256, 2**17, 16
"""Threads of a block, threads at most, and points of each thread at least."""


class Tenant:
    """What a tenant of every engine can do: prepare a job, and start it at a given time."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._job: Callable[[], Facts] = dict
        self._held: list[Any] = []

    def connect(self) -> None:
        """Reach the device."""

    def facts(self) -> Facts:
        """Versions, and what this process sees of the GPU."""
        return {"python": platform.python_version(), "guard": os.environ.get("PARTAGE_GUARD_APPLIED", "")}

    def pi(self, points: int, rounds: int) -> None:
        """Prepare the pi program."""
        estimate = self.estimator(points)
        self._warm_up(lambda: estimate(1))
        self._job = lambda: {"value": estimate(rounds)}

    def inference(self, seconds: float, keep: int) -> None:
        """Prepare requests to a small model, one after the other."""
        answer = self.model()
        self._warm_up(answer)
        self._job = lambda: _requests(answer, seconds, keep)

    def go(self, start: float) -> Facts:
        """Do what is prepared; seconds are of the monotonic clock."""
        time.sleep(max(0.0, start - time.monotonic() - _SPIN_S))
        while time.monotonic() < start:
            pass
        started = time.monotonic()
        result = self._job()
        return {"started": started, "ended": time.monotonic(), **result}

    def estimator(self, points: int) -> Callable[[int], float]:
        """A function from a number of rounds, each over that many points, to an estimate of pi."""
        raise NotImplementedError("this engine computes no pi")

    def model(self) -> Callable[[], object]:
        """A function that makes one request to a small model."""
        raise NotImplementedError("this engine has no model")

    def _warm_up(self, once: Callable[[], object]) -> None:
        end = time.monotonic() + _WARM_UP_S[self._device]
        once()
        while time.monotonic() < end:
            once()


def _requests(answer: Callable[[], object], seconds: float, keep: int) -> Facts:
    """Requests for a while. The first ``keep`` are timed one by one; the others only keep the GPU busy."""
    latencies_us: list[float] = []
    requests = 0
    started = now = time.monotonic()
    while now < started + seconds or not requests:
        answer()
        before, now = now, time.monotonic()
        requests += 1
        if requests <= keep:
            latencies_us.append(round((now - before) * 1e6, 1))
    return {"requests": requests, "latenciesUs": latencies_us}


class PythonTenant(Tenant):
    """Without PyTorch and without a GPU: for trying the tool, not for figures."""

    def connect(self) -> None:
        if self._device != "cpu":
            raise RuntimeError("the engine without PyTorch computes on the CPU only")

    def estimator(self, points: int) -> Callable[[int], float]:
        draw = random.Random(1).random  # noqa: S311 - no secret

        def estimate(rounds: int) -> float:
            inside = sum(draw() ** 2 + draw() ** 2 <= 1 for _ in range(points * rounds))
            return 4 * inside / (points * rounds)

        return estimate

    def model(self) -> Callable[[], object]:
        row = [n / _PYTHON_WIDTH for n in range(_PYTHON_WIDTH)]
        return lambda: [sum(a * b for a, b in zip(row, row)) for _ in row]  # noqa: B905 - Python 3.8

    def allocate(self, amount_bytes: int) -> None:
        self._held.append(b"\x01" * amount_bytes)


class CudaTenant(Tenant):
    """CUDA through the driver's own library, in the context that frameworks use, too."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._cuda: Any = ctypes.CDLL("libcuda.so.1") if device == "cuda" else None
        self._gpu = ctypes.c_int()

    def connect(self) -> None:
        """Get a CUDA context on the first device that the environment shows."""
        if self._cuda is not None:
            context = ctypes.c_void_p()
            self._call("cuInit", 0)
            self._call("cuDeviceGet", ctypes.byref(self._gpu), 0)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._gpu)
            self._call("cuCtxSetCurrent", context)

    def estimator(self, points: int) -> Callable[[int], float]:
        """Each round is one kernel."""
        blocks = max(1, min(points // _POINTS_EACH, _MOST_THREADS) // _BLOCK)
        each = max(1, points // (blocks * _BLOCK))
        count = self._function(_COUNT_INSIDE, b"count_inside")
        seed, inside = ctypes.c_uint(0), ctypes.c_uint64()
        total = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(total), ctypes.c_size_t(8))

        def estimate(rounds: int) -> float:
            self._call("cuMemsetD8_v2", total, ctypes.c_ubyte(0), ctypes.c_size_t(8))
            for _ in range(rounds):
                seed.value += 1
                self._launch(count, blocks, _BLOCK, total, seed, ctypes.c_uint(each))
            self._call("cuMemcpyDtoH_v2", ctypes.byref(inside), total, ctypes.c_size_t(8))
            return 4 * inside.value / (rounds * blocks * _BLOCK * each)

        return estimate

    def facts(self) -> Facts:
        """Devices: UUIDs without ``GPU-`` or ``MIG-`` before them; CUDA does not say which of the two."""
        found = super().facts()
        if self._cuda is not None:
            count, processors = ctypes.c_int(), ctypes.c_int()
            self._call("cuDeviceGetCount", ctypes.byref(count))
            self._call("cuDeviceGetAttribute", ctypes.byref(processors), _MULTIPROCESSORS, self._gpu)
            found["devices"] = [self._uuid(number) for number in range(count.value)]
            found["multiprocessors"] = processors.value
        return found

    def allocate(self, amount_bytes: int) -> None:
        self._filled(amount_bytes, 1)

    def managed(self, amount_bytes: int) -> None:
        """Memory that the driver moves between GPU and CPU (UVM), all of it written to by a kernel."""
        where = ctypes.c_uint64()
        attach_global = ctypes.c_uint(1)
        self._call("cuMemAllocManaged", ctypes.byref(where), ctypes.c_size_t(amount_bytes), attach_global)
        self._call("cuMemsetD8_v2", where, ctypes.c_ubyte(1), ctypes.c_size_t(amount_bytes))
        self._call("cuCtxSynchronize")

    def launch(self) -> None:
        self._call("cuMemFree_v2", self._filled(4096, 0))

    def fault(self) -> None:
        self._launch(self._function(_STORE_TO_INVALID_ADDRESS, b"store_to_invalid_address"), 1, 1)
        self._call("cuCtxSynchronize")

    def _function(self, program: bytes, name: bytes) -> ctypes.c_void_p:
        """A kernel, compiled by the driver from its PTX."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), program)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name)
        return function

    def _launch(self, function: ctypes.c_void_p, blocks: int, block: int, *values: Any) -> None:  # noqa: ANN401
        """Start a kernel. values: its parameters, as C values; the driver copies them before this returns."""
        pointers = [ctypes.addressof(value) for value in values]
        parameters = (ctypes.c_void_p * len(pointers))(*pointers) if pointers else None
        self._call("cuLaunchKernel", function, blocks, 1, 1, block, 1, 1, 0, None, parameters, None)

    def _filled(self, amount_bytes: int, value: int) -> ctypes.c_uint64:
        """New memory, all of it written to by a kernel."""
        where = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(amount_bytes))
        self._call("cuMemsetD8_v2", where, ctypes.c_ubyte(value), ctypes.c_size_t(amount_bytes))
        self._call("cuCtxSynchronize")
        return where

    def _uuid(self, ordinal: int) -> str:
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        # The second version is the one that tells MIG devices apart, where the driver has it (11.4).
        name = "cuDeviceGetUuid_v2" if hasattr(self._cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self._call(name, ctypes.byref(raw), device)
        text = bytes(raw).hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def _call(self, function: str, *arguments: Any) -> None:  # noqa: ANN401 - whatever C takes
        code = getattr(self._cuda, function)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(text.value.decode() if text.value else f"CUDA error {code}")


class TorchTenant(CudaTenant):
    """Memory and kernels through PyTorch, on the GPU or on the CPU."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._torch: Any = importlib.import_module("torch")
        if device == "cpu":
            self._torch.set_num_threads(1)  # one tenant, one core: parallel tenants are to share cores

    def connect(self) -> None:
        super().connect()
        self.launch()

    def facts(self) -> Facts:
        torch = self._torch
        versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda or "")}
        return {**super().facts(), **versions}

    def estimator(self, points: int) -> Callable[[int], float]:
        """Each round is seven kernels."""
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

    def model(self) -> Callable[[], object]:
        """The input of a request goes to the device, its output comes back."""
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

    def allocate(self, amount_bytes: int) -> None:
        tensor = self._torch.empty(amount_bytes, dtype=self._torch.uint8, device=self._device)
        tensor.fill_(1)
        if self._device == "cuda":
            self._torch.cuda.synchronize()
        self._held.append(tensor)

    def launch(self) -> None:
        self._torch.zeros(1024, device=self._device).sum().item()


ENGINES: Dict[str, Any] = {"torch": TorchTenant, "cuda": CudaTenant, "python": PythonTenant}  # noqa: UP006


def words(error: BaseException) -> str:
    """An error in one line of 500 characters at most."""
    if isinstance(error, MemoryError):
        return "out of memory"
    return (" ".join(str(error).split()) or type(error).__name__)[:500]


def serve(begin: Callable[[], Tenant], requests: queue.Queue[str], answers: TextIO) -> int:
    """Connect, then answer until the process is ended."""

    def answer(text: str) -> None:
        answers.write(text + "\n")
        answers.flush()

    try:
        tenant = begin()
    except Exception as error:  # noqa: BLE001 - whatever a framework raises is this tenant's answer
        answer(f"error {words(error)}")
        return 1
    answer("ok")
    while True:
        verb, *numbers = requests.get().split()
        try:
            result = getattr(tenant, verb)(*map(json.loads, numbers))
        except Exception as error:  # noqa: BLE001 - the same
            answer(f"error {words(error)}")
        else:
            answer("ok" if result is None else f"ok {json.dumps(result)}")


def main() -> int:
    """Answer until standard input ends."""
    parser = argparse.ArgumentParser(description="One tenant of an experiment; Partage starts it itself.")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="torch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("uid", nargs="?", type=int)
    options = parser.parse_args()
    # This file's neighbours are Partage's: a library must not import one of them instead of its own module.
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry != here]
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, requests), daemon=True).start()

    def begin() -> Tenant:
        tenant: Tenant = ENGINES[options.engine](options.device)
        if options.uid is not None:
            _become(options.uid)
        tenant.connect()
        return tenant

    return serve(begin, requests, answers)


def _become(uid: int) -> None:
    """Run as this user from here on."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def _listen(stdin: TextIO, requests: queue.Queue[str]) -> None:
    for line in stdin:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

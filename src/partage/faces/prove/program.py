"""One tenant under a real driver: a program of its own, told by lines what to do.

It may be run by another Python than Partage's, 3.8 or newer, and imports nothing of Partage. What it sees and
is limited to comes through its environment, as a container gets it. Its first line says how its connection
to the GPU went, then one line answers each request: ``ok``, or the name of CUDA's error.

    allocate BYTES      keep that much and write to all of it
    launch              a kernel that does no harm
    fault               a kernel that writes where nothing is: the end of this context
    devices             UUIDs of the devices that it sees, with commas
    multiprocessors     how many the first device has for this process

It ends with its standard input, whatever it is doing then.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import queue
import sys
import threading
from typing import Any, TextIO

_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, cuda.h
_STORE_AT_NOTHING = b"""
.version 6.0
.target sm_70
.address_size 64
.visible .entry store_at_nothing() {
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""


class Failed(Exception):
    """A call failed. The text is the name of CUDA's error, or a framework's words where it has none."""


class Driver:
    """CUDA through the driver's own library; the context is the one that frameworks use, too."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._device = ctypes.c_int()

    def connect(self) -> None:
        """Get a context on the first device. Raises Failed."""
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, amount_bytes: int) -> str:
        where = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(amount_bytes))
        self._call("cuMemsetD8_v2", where, ctypes.c_ubyte(1), ctypes.c_size_t(amount_bytes))
        self._call("cuCtxSynchronize")
        return "ok"

    def launch(self) -> str:
        where = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(where), ctypes.c_size_t(4096))
        self._call("cuMemsetD8_v2", where, ctypes.c_ubyte(0), ctypes.c_size_t(4096))
        self._call("cuCtxSynchronize")
        self._call("cuMemFree_v2", where)
        return "ok"

    def fault(self) -> str:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), _STORE_AT_NOTHING)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, b"store_at_nothing")
        self._call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        self._call("cuCtxSynchronize")
        return "ok"

    def devices(self) -> str:
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return ",".join(map(self._uuid, range(count.value)))

    def multiprocessors(self) -> str:
        found = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(found), _MULTIPROCESSORS, self._device)
        return str(found.value)

    def _uuid(self, ordinal: int) -> str:
        """Without GPU- or MIG- before it."""
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
            raise Failed(text.value.decode() if text.value else f"CUDA error {code}")


class Torch(Driver):
    """The same, with memory and kernels through PyTorch, as tenants have them."""

    def __init__(self) -> None:
        super().__init__()
        self._torch: Any = importlib.import_module("torch")
        self._held: list[Any] = []

    def allocate(self, amount_bytes: int) -> str:
        try:
            tensor = self._torch.empty(amount_bytes, dtype=self._torch.uint8, device="cuda")
            tensor.fill_(1)
            self._torch.cuda.synchronize()
        except RuntimeError as error:
            raise Failed(words(error)) from error
        self._held.append(tensor)
        return "ok"

    def launch(self) -> str:
        try:
            self._torch.zeros(1024, device="cuda").sum().item()
        except RuntimeError as error:
            raise Failed(words(error)) from error
        return "ok"


def words(error: BaseException) -> str:
    """A framework's error by CUDA's name where it is out of memory, else its own words in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "CUDA_ERROR_OUT_OF_MEMORY" if "out of memory" in text.lower() else text[:300]


def become(uid: int) -> None:
    """Be this user, from here on."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def serve(tenant: Driver, requests: queue.Queue[str], answers: TextIO) -> int:
    """Connect, then answer until the process is ended."""

    def say(text: str) -> None:
        answers.write(text + "\n")
        answers.flush()

    try:
        tenant.connect()
    except Failed as error:
        say(str(error))
        return 1
    say("ok")
    while True:
        request, *arguments = requests.get().split()
        try:
            say(getattr(tenant, request)(*map(int, arguments)))
        except Failed as error:
            say(str(error))


def main() -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description="One tenant of partage prove, which starts it itself.")
    parser.add_argument("--engine", choices=("torch", "cuda"), default="torch")
    parser.add_argument("--uid", type=int)
    options = parser.parse_args()
    # This file's neighbours are Partage's: no library shall import one of them by a name of its own.
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry != here]
    # Whatever libraries print shall not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, requests), daemon=True).start()
    tenant = Torch() if options.engine == "torch" else Driver()
    if options.uid is not None:
        become(options.uid)
    return serve(tenant, requests, answers)


def _listen(stdin: TextIO, requests: queue.Queue[str]) -> None:
    for line in stdin:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

"""A client with real CUDA, through the driver's C library: speaks as ``partage.sim.mps.client`` does."""

import ctypes
import os
import sys

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


def name(cuda, code):
    text = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(text))
    return text.value.decode() if text.value else str(code)


def connect(cuda):
    """cuInit to context; CUDA's code."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    code = cuda.cuInit(0)
    code = code or cuda.cuDeviceGet(ctypes.byref(device), 0)
    return code or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)


def allocate(cuda, amount):
    where = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(where), ctypes.c_size_t(amount))


def launch(cuda):
    where = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(where), ctypes.c_size_t(4096))
    code = code or cuda.cuMemsetD8_v2(where, ctypes.c_ubyte(0), ctypes.c_size_t(4096))
    code = code or cuda.cuCtxSynchronize()
    return code or cuda.cuMemFree_v2(where)


def fault(cuda):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    code = cuda.cuModuleLoadData(ctypes.byref(module), _STORE_AT_NOTHING)
    code = code or cuda.cuModuleGetFunction(ctypes.byref(function), module, b"store_at_nothing")
    code = code or cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    return code or cuda.cuCtxSynchronize()


def main(argv):
    for uid in argv[1:]:
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    cuda = ctypes.CDLL("libcuda.so.1")
    code = connect(cuda)
    say(cuda, code)
    if code:
        return 1
    for line in sys.stdin:
        words = line.split()
        say(
            cuda,
            {"launch": launch, "fault": fault}[words[0]](cuda)
            if len(words) == 1
            else allocate(cuda, int(words[1])),
        )
    return 0


def say(cuda, code):
    print(name(cuda, code) if code else "ok", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))

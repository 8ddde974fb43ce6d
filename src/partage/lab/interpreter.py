"""Which Python runs the tenants: the first that has PyTorch for the device that is asked for.

To find torch takes milliseconds. Only where it is found, it is imported, which takes seconds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from partage.errors import HardwareError, InputError

_IS_THERE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
_SEES_CUDA = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"
_HAS_LIBCUDA = "import ctypes; ctypes.CDLL('libcuda.so.1')"
_FIND_S, _IMPORT_S = 20, 90
RECORDED = "partage bench --read FILE shows a recorded run"


def find_python(named: str | None, device: str, engine: str, otherwise: str = RECORDED) -> str:
    """The path of the interpreter. otherwise: what else can be done, where there is none.

    Raises InputError (it cannot run), HardwareError (none has it).
    """
    if engine != "torch":
        return _with_libcuda(named or sys.executable) if device == "cuda" else named or sys.executable
    if named is not None and shutil.which(named) is None:
        raise InputError(f"{named} cannot be run", "--python names the interpreter that has PyTorch")
    candidates = [named] if named is not None else [sys.executable, shutil.which("python3")]
    reasons: list[str] = []
    for python in dict.fromkeys(path for path in candidates if path):
        reason = _unfit(python, device)
        if not reason:
            return python
        reasons.append(f"{python}: {reason}")
    raise HardwareError(
        f"no Python here has PyTorch{' with CUDA' if device == 'cuda' else ''} ({'; '.join(reasons)})",
        f"--python PATH names one that has; {otherwise}",
    )


def _with_libcuda(python: str) -> str:
    """The interpreter, if it can load the driver's CUDA library. Raises HardwareError."""
    if _exit_code(python, _HAS_LIBCUDA, _FIND_S) == 0:
        return python
    raise HardwareError(
        f"{python} cannot load libcuda.so.1, the driver's CUDA library: no tenant can use a GPU",
        "it comes with the driver's compute packages; containers need NVIDIA_DRIVER_CAPABILITIES=compute",
    )


def _unfit(python: str, device: str) -> str:
    """Why not this one; empty where it fits."""
    if code := _exit_code(python, _IS_THERE, _FIND_S):
        return "no torch" if code == 1 else "it does not run"
    if device == "cpu":
        return ""
    code = _exit_code(python, _SEES_CUDA, _IMPORT_S)
    return {0: "", 3: "its torch sees no GPU"}.get(code, "its torch cannot be imported")


def _exit_code(python: str, program: str, limit_s: float) -> int:
    """Its exit code; -1 where it does not end in time, or not at all."""
    try:
        return subprocess.run(  # noqa: S603 - the operator's own interpreter
            [python, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return -1

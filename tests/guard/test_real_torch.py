"""The guard with a real PyTorch: lazy, in order, and without harm where there is no CUDA.

Runs where an interpreter of this machine has PyTorch; ``make guard-torch`` installs Debian's. Seen with torch
1.13.0a0 of Debian 12, built without CUDA: all that needs no GPU passed. The cap itself takes a GPU.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from partage.units import GIB
from tests.guard.pythons import environment, mounted, run, said


@cache
def _python_with_torch() -> str:
    """Also says it of one that is there and broken: then the tests fail rather than vanish."""
    found = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    candidates = (sys.executable, "/usr/bin/python3")
    return next(
        (one for one in candidates if Path(one).exists() and not run(["-c", found], {}, one).returncode), ""
    )


@cache
def _has_cuda() -> bool:
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return (
        bool(_python_with_torch()) and run(["-c", code], environment(), _python_with_torch()).returncode == 0
    )


pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not _python_with_torch(), reason="no PyTorch here: make guard-torch"),
]


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mounted(tmp_path_factory.mktemp("mount"))


def _program(code: str, *path: Path, **more: str) -> Any:
    ending = "\nimport json, os; print(json.dumps([answer, os.environ.get('PARTAGE_GUARD_APPLIED')]))"
    return said(["-c", code + ending], environment(*path, **more), _python_with_torch())


def test_torch_is_imported_only_by_the_program_and_cuda_is_not_initialised(guard: Path) -> None:
    code = "import sys; before = 'torch' in sys.modules; import torch\n"
    code += "answer = [before, torch.cuda.is_initialized()]"
    assert _program(code, guard) == [[False, False], "torch: waits for CUDA"]


def test_our_wish_is_the_last_in_torchs_own_queue(guard: Path) -> None:
    """After PyTorch's own checks of the device, before anything that the program adds."""
    code = "import torch; answer = [wish.__module__ for wish, _ in torch.cuda._queued_calls]"
    alone, _ = _program(code)
    with_us, _ = _program(code, guard)
    assert with_us == [*alone, "partage_guard.on_torch"]


def test_without_cuda_torch_computes_and_complains_as_without_us(guard: Path) -> None:
    code = (
        "import os, torch\n"
        "x = torch.arange(6.0, requires_grad=True); (x * x).sum().backward()\n"
        "try: said = torch.ones(1, device='cuda').device.type\n"
        "except Exception as error: said = [type(error).__name__, str(error)]\n"
        "if os.fork() == 0: os._exit(int(torch.ones(3).sum()) - 3)\n"
        "answer = [x.grad.tolist(), torch.cuda.is_available(), said, os.wait()[1], torch.cuda.__file__]"
    )
    assert _program(code, guard)[0] == _program(code)[0]


def test_our_wish_raises_nothing_when_torch_runs_it_without_cuda(guard: Path) -> None:
    code = (
        "import torch; wish, _ = torch.cuda._queued_calls[-1]; answer = [wish(), torch.cuda.is_available()]"
    )
    (result, available), applied = _program(code, guard)
    assert result is None
    if not available:
        assert applied.startswith("torch: failed: ")


def test_a_call_of_limit_before_cuda_waits_like_the_share(guard: Path) -> None:
    code = "import torch; from partage_guard import limit; answer = limit(fraction=0.5)"
    assert _program(code, guard) == [{"torch": "waits for CUDA"}, "torch: waits for CUDA"]


_ALLOCATE = """
import torch
def fits(bytes_):
    try: return torch.empty(bytes_, dtype=torch.uint8, device='cuda').numel() == bytes_
    except torch.cuda.OutOfMemoryError: return False
answer = [fits(3 << 30), fits(5 << 30)]
"""


@pytest.mark.gpu
@pytest.mark.parametrize(("word", "fitting"), [("", [True, False]), ("off", [True, True])], ids=["on", "off"])
def test_what_exceeds_the_share_is_out_of_memory_to_torch(
    guard: Path, word: str, fitting: list[bool]
) -> None:
    """A share of 4 GiB: 3 fit, 5 do not, unless the guard is off."""
    if not _has_cuda():
        pytest.skip("no PyTorch here that has a GPU")
    share = {"PARTAGE_MEMORY_BYTES": str(4 * GIB), "PARTAGE_GUARD": word}
    assert _program(_ALLOCATE, guard, **share)[0] == fitting

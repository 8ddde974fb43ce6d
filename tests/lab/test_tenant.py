"""Which Python has what the tenants need."""

import sys

import pytest

from partage.errors import HardwareError
from partage.lab.tenant import find_python


@pytest.fixture
def torch_that(tmp_path, monkeypatch):
    """A Python that has a torch which does this when it is imported, and nothing else."""

    def make(line):
        (tmp_path / "torch.py").write_text(line)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return sys.executable

    return make


SEES = "class cuda:\n    is_available = staticmethod(lambda: {})\n"


def test_a_python_whose_torch_sees_a_gpu_will_do(torch_that):
    python = torch_that(SEES.format(True))
    assert find_python(None, "cuda", "torch") == python


@pytest.mark.parametrize(
    ("line", "words"),
    [(SEES.format(False), "its torch sees no GPU"), ("raise ImportError", "its torch cannot be imported")],
)
def test_a_python_whose_torch_will_not_do_is_named_with_the_reason(torch_that, line, words):
    python = torch_that(line)
    with pytest.raises(HardwareError, match=f"{python}: {words}"):
        find_python(python, "cuda", "torch")


def test_for_the_cpu_torch_is_not_even_imported(torch_that):
    python = torch_that("raise SystemExit(9)")
    assert find_python(python, "cpu", "torch") == python


def test_without_pytorch_any_python_will_do():
    assert find_python(None, "cpu", "python") == sys.executable
    assert find_python("/opt/python", "cpu", "python") == "/opt/python"


@pytest.mark.parametrize("loads", [True, False])
def test_tenants_of_a_gpu_need_the_drivers_cuda_library(loads, tmp_path):
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\ncase $2 in *libcuda.so.1*) exit {int(not loads)};; esac\nexit 9\n")
    python.chmod(0o755)
    if loads:
        assert find_python(str(python), "cuda", "cuda") == str(python)
        return
    with pytest.raises(HardwareError, match=f"{python} cannot load libcuda.so.1"):
        find_python(str(python), "cuda", "cuda")

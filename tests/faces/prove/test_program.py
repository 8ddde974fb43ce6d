"""The tenant's program: alone, with any Python, on a C library that stands in for CUDA's."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from partage.faces.prove.program import words
from partage.faces.prove.real import PROGRAM
from partage.units import GIB

STUB = Path(__file__).with_name("cuda_stub.c")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The stand-in for libcuda.so.1, compiled once; its directory."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    directory = tmp_path_factory.mktemp("cuda")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", directory / "libcuda.so.1", STUB], check=True)
    return directory


def _ended(directory, **environment):
    """Exit code, output and last words of one that ends by itself: its input stays open. Run elsewhere."""
    with subprocess.Popen(
        [sys.executable, "-I", shutil.copy(PROGRAM, directory), "--engine", "cuda"],
        env={**os.environ, "LD_LIBRARY_PATH": str(directory)} | environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        code = program.wait(30)
        assert program.stdout is not None
        assert program.stderr is not None
        return code, program.stdout.read().splitlines(), program.stderr.read()


def _converse(directory, *requests):
    """What it answers to each request, asked one after the other: it ends with its input, at once."""
    with subprocess.Popen(
        [sys.executable, "-I", PROGRAM, "--engine", "cuda"],
        env={**os.environ, "LD_LIBRARY_PATH": str(directory), "STUB_BYTES": str(4 * GIB)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        answers = [program.stdout.readline().strip()]
        for request in requests:
            print(request, file=program.stdin, flush=True)
            answers.append(program.stdout.readline().strip())
        program.stdin.close()
        assert program.wait(10) == 0
    return answers


def test_it_needs_nothing_of_ours_and_no_new_python():
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 8))
    imported = {
        (str(node.module) if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported <= sys.stdlib_module_names


def test_it_allocates_until_cuda_says_no_and_computes_on(library):
    assert _converse(library, f"allocate {3 * GIB}", "launch", f"allocate {2 * GIB}", "launch") == [
        "ok",
        "ok",
        "ok",
        "CUDA_ERROR_OUT_OF_MEMORY",
        "ok",
    ]


def test_it_says_what_it_sees(library):
    uuid = "10111213-1415-1617-1819-1a1b1c1d1e1f"
    assert _converse(library, "devices", "multiprocessors") == ["ok", uuid, "132"]


def test_a_kernel_that_writes_where_nothing_is_ends_its_context(library):
    assert _converse(library, "fault", "launch") == ["ok", *["CUDA_ERROR_ILLEGAL_ADDRESS"] * 2]


def test_without_a_device_its_first_line_is_cudas_error(library):
    code, said, _ = _ended(library, CUDA_VISIBLE_DEVICES="")
    assert (code, said) == (1, ["CUDA_ERROR_NO_DEVICE"])


def test_without_a_driver_its_last_words_name_the_library(tmp_path):
    code, said, last = _ended(tmp_path)
    assert (code, said) == (1, [])
    assert "libcuda.so.1" in last.splitlines()[-1]


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 4.00 GiB"), "CUDA_ERROR_OUT_OF_MEMORY"),
        (RuntimeError("CUDA error: out of memory\nhint"), "CUDA_ERROR_OUT_OF_MEMORY"),
        (RuntimeError("CUDA error: unspecified\n  launch failure"), "CUDA error: unspecified launch failure"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_frameworks_error_is_one_line(error, word):
    assert words(error) == word

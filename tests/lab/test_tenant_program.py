"""The tenant's program: alone, with any Python, asked line by line and ended by its standard input."""

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partage.lab.tenant import PROGRAM, TenantRefused
from partage.lab.tenant_program import words
from partage.units import GIB

ON_CPU = ("--engine", "python", "--device", "cpu")
STUB = Path(__file__).with_name("cuda_stub.c")


def _talk(program, options, *requests, **environment):
    """Its answers, the first one unasked, as another user's isolated Python would run it."""
    with subprocess.Popen(
        [sys.executable, "-I", program, *options],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as tenant:  # fmt: skip
        assert tenant.stdin is not None
        assert tenant.stdout is not None
        answers = [tenant.stdout.readline().strip()]
        for request in requests:
            print(request, file=tenant.stdin, flush=True)
            answers.append(tenant.stdout.readline().strip())
        if answers[0] == "ok":
            tenant.stdin.close()
        assert tenant.wait(10) == (answers[0] != "ok")
    return answers


def _results(tmp_path, *requests):
    """What each of these requests results in, on the CPU without PyTorch, in another directory."""
    answers = _talk(shutil.copy(PROGRAM, tmp_path), ON_CPU, *requests)
    assert all(answer.partition(" ")[0] == "ok" for answer in answers)
    return [json.loads(answer[3:] or "null") for answer in answers[1:]]


def test_it_needs_nothing_of_ours_and_no_new_python():
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 8))
    imported = {
        (str(node.module) if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported <= sys.stdlib_module_names


def test_it_prepares_waits_for_the_start_and_reports_what_it_did(tmp_path):
    prepared, done = _results(tmp_path, "pi 1000 20", "go 0")
    assert prepared is None
    assert done["ended"] > done["started"]
    assert done["value"] == pytest.approx(3.14, abs=0.1)


def test_it_starts_no_earlier_than_told(tmp_path):
    start = time.monotonic() + 0.4
    *_, done = _results(tmp_path, "pi 10 1", f"go {start}")
    assert done["started"] >= start


def test_of_requests_the_first_are_timed_and_all_are_counted(tmp_path):
    *_, done = _results(tmp_path, "inference 0.1 5", "go 0")
    assert len(done["latenciesUs"]) == 5
    assert done["requests"] >= 5
    assert all(value > 0 for value in done["latenciesUs"])


def test_one_process_does_one_job_after_the_other(tmp_path):
    *_, once, allocated, _, again = _results(tmp_path, "pi 10 1", "go 0", "allocate 1000", "pi 10 1", "go 0")
    assert (once["value"] > 0, allocated, again["value"] > 0) == (True, None, True)


def test_it_says_which_python_it_is(tmp_path):
    (facts,) = _results(tmp_path, "facts")
    assert facts["python"].startswith("3.")


def test_what_it_cannot_do_is_said_and_ends_it():
    (answer,) = _talk(PROGRAM, ("--engine", "python", "--device", "cuda"))
    assert answer == "error the engine without PyTorch computes on the CPU only"


# --- CUDA, by a C library that stands in for the driver's ---------------------------------------


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The stand-in for libcuda.so.1, compiled once; its directory."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    directory = tmp_path_factory.mktemp("cuda")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", directory / "libcuda.so.1", STUB], check=True)
    return directory


def _cuda(directory, *requests, **environment):
    environment = {"LD_LIBRARY_PATH": str(directory), "STUB_BYTES": str(4 * GIB), **environment}
    return _talk(PROGRAM, ("--engine", "cuda"), *requests, **environment)


def test_it_allocates_until_cuda_says_no_and_computes_on(library):
    requests = (f"allocate {3 * GIB}", "launch", f"allocate {2 * GIB}", "launch")
    assert _cuda(library, *requests) == ["ok", "ok", "ok", "error CUDA_ERROR_OUT_OF_MEMORY", "ok"]


def test_it_computes_pi_with_a_kernel_of_its_own(library):
    _, _, small, _, saturating = _cuda(library, "pi 65536 20", "go 0", "pi 33554432 1", "go 0")
    for answer in (small, saturating):
        assert json.loads(answer.removeprefix("ok "))["value"] == pytest.approx(3.1416, abs=0.01)


def test_it_says_what_it_sees(library):
    _, answer = _cuda(library, "facts")
    facts = json.loads(answer.removeprefix("ok "))
    assert facts["devices"] == ["10111213-1415-1617-1819-1a1b1c1d1e1f"]
    assert facts["multiprocessors"] == 132


def test_a_kernel_that_writes_to_an_invalid_address_ends_its_context(library):
    assert _cuda(library, "fault", "launch") == ["ok", *["error CUDA_ERROR_ILLEGAL_ADDRESS"] * 2]


def test_without_a_device_its_first_answer_is_cudas_error(library):
    assert _cuda(library, CUDA_VISIBLE_DEVICES="") == ["error CUDA_ERROR_NO_DEVICE"]


def test_without_a_driver_its_first_answer_names_the_library(tmp_path):
    (answer,) = _cuda(tmp_path)
    assert answer.startswith("error ")
    assert "libcuda.so.1" in answer


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("CUDA error: unspecified\n  launch failure"), "CUDA error: unspecified launch failure"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_frameworks_error_is_one_line(error, said):
    assert words(error) == said


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 4.00 GiB"),
        RuntimeError("CUDA error: out of memory\nhint"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA_ERROR_OUT_OF_MEMORY"),
        MemoryError(),
    ],
)
def test_every_way_to_say_out_of_memory_is_understood(error):
    refused = TenantRefused(words(error))
    assert (refused.failure.what, str(refused)) == ("oom", "CUDA_ERROR_OUT_OF_MEMORY")


def test_another_error_is_no_lack_of_memory():
    refused = TenantRefused("CUDA error: device busy")
    assert (refused.failure.what, str(refused)) == ("error", "CUDA error: device busy")

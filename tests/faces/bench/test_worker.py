"""The tenant's program: alone, with any Python, told by lines and ended by its standard input."""

import ast
import json
import shutil
import subprocess
import sys
import time

import pytest

from partage.faces.bench.tenant import WORKER
from partage.faces.bench.worker import failure


def _talk(tmp_path, *orders):
    """All that it says to these orders, as another user's isolated Python would run it elsewhere."""
    elsewhere = shutil.copy(WORKER, tmp_path)
    worker = subprocess.Popen(
        [sys.executable, "-I", elsewhere, "--engine", "python", "--device", "cpu"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdin is not None
    assert worker.stdout is not None
    with worker:
        said = [json.loads(worker.stdout.readline())]
        for order in orders:
            print(json.dumps(order), file=worker.stdin, flush=True)
            said.append(json.loads(worker.stdout.readline()))
        worker.stdin.close()
        assert worker.wait(10) == 0
    return said


def test_it_needs_nothing_of_ours_and_no_new_python():
    tree = ast.parse(WORKER.read_text(), feature_version=(3, 8))
    imported = {
        (str(node.module) if isinstance(node, ast.ImportFrom) else node.names[0].name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported <= sys.stdlib_module_names


def test_it_gets_ready_waits_for_the_start_and_says_what_it_did(tmp_path):
    hello, ready, done = _talk(tmp_path, {"job": "pi", "points": 1000, "rounds": 20}, {"go": 0})
    assert (hello["event"], ready["event"], done["event"]) == ("hello", "ready", "done")
    assert done["ended"] > done["started"]
    assert done["value"] == pytest.approx(3.14, abs=0.1)


def test_it_starts_no_earlier_than_told(tmp_path):
    start = time.monotonic() + 0.4
    *_, done = _talk(tmp_path, {"job": "pi", "points": 10, "rounds": 1}, {"go": start})
    assert done["started"] >= start


def test_of_requests_the_first_are_timed_and_all_are_counted(tmp_path):
    *_, done = _talk(tmp_path, {"job": "inference", "seconds": 0.1, "keep": 5}, {"go": 0})
    assert len(done["latenciesUs"]) == 5
    assert done["requests"] >= 5
    assert all(value > 0 for value in done["latenciesUs"])


def test_one_process_does_one_job_after_the_other(tmp_path):
    job = {"job": "pi", "points": 10, "rounds": 1}
    said = _talk(tmp_path, job, {"go": 0}, job, {"go": 0}, {"job": "memory", "tensors": [1000]}, {"go": 0})
    assert [one["event"] for one in said] == ["hello", *["ready", "done"] * 3]


def test_what_it_cannot_do_is_said_and_ends_it():
    with subprocess.Popen(
        [sys.executable, WORKER, "--engine", "python", "--device", "cuda"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as worker:  # fmt: skip
        assert worker.stdout is not None
        said = json.loads(worker.stdout.readline())
        assert (said["event"], said["what"]) == ("failed", "error")
        assert "CPU only" in said["message"]
        assert worker.wait(10) == 1


@pytest.mark.parametrize(
    "words",
    [
        "CUDA out of memory. Tried to allocate 4.00 GiB",
        "CUDA error: out of memory",
        "[enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_every_way_to_say_out_of_memory_is_understood(words):
    assert failure(RuntimeError(words))["what"] == "oom"
    assert failure(RuntimeError("CUDA error: device busy"))["what"] == "error"
    assert failure(MemoryError())["what"] == "oom"

"""``partage bench``, from the command line to the last process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partage.cli.main import run
from partage.lab.bench.report import BENCH
from tests.edges.hardware.conftest import compiled_stub
from tests.edges.hardware.stub import StubNode
from tests.lab.bench import runs

TRY = ("--engine", "python", "--seconds", "0.02", "--repeats", "2", "--processes", "1,2")
MARK = "PARTAGE_BENCH_TEST"


@pytest.fixture
def recorded(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(BENCH.to_document(runs.full())))
    return str(file)


def test_a_whole_run_is_measured_saved_and_drawn(capsys, tmp_path):
    saved, plot = tmp_path / "run.json", tmp_path / "run.svg"
    code = run(["bench", *TRY, "--memory", "1Mi", "--guard", "--save", str(saved), "--plot", str(plot)])
    said = capsys.readouterr()
    assert code == 0
    assert "says nothing about any GPU" in said.out
    assert "The guard said of itself" in said.out
    assert "pi, small kernels, 2 processes, parallel" in said.err
    document = json.loads(saved.read_text())
    assert (document["versions"]["engine"], document["machine"]["gpu"]) == ("python", "")
    cells = {(one["experiment"], one["mode"], one["processes"]): one for one in document["cells"]}
    modes = [
        ("alone", 1),
        ("one-after-the-other", 2),
        ("parallel", 2),
        ("without-guard", 1),
        ("with-guard", 1),
    ]
    pi = {(experiment, *how) for experiment in ("pi-small", "pi-saturating") for how in modes}
    assert set(cells) == pi | {("inference", "alone", 1), ("inference", "parallel", 2)}
    assert all(len(one["repeats"]) == 2 for one in cells.values())
    assert {one["seen"] for one in document["memory"]} == {"fits"}
    assert {one["promise"] for one in document["memory"]} == {"none"}
    for one in cells.values():
        for repeat in one["repeats"]:
            assert len(repeat["turns"]) == one["processes"]
            assert not any("failure" in turn for turn in repeat["turns"])
    assert "<svg" in plot.read_text()

    assert run(["bench", "--read", str(saved)]) == 0
    assert capsys.readouterr().out == said.out


@pytest.fixture
def stand_in(tmp_path):
    """A "Python with PyTorch" whose tenants compute on the CPU, and only where they were shown one device."""
    python = tmp_path / "python3"
    python.write_text(
        '#!/bin/sh\ntest "$1" = -c && exit 0\n'
        'case "$CUDA_VISIBLE_DEVICES" in GPU-*) ;; *) exit 9;; esac\n'
        f'exec {sys.executable} "$1" --engine python --device cpu\n'
    )
    python.chmod(0o755)
    return str(python)


def test_on_a_machine_with_a_gpu_the_answer_names_it(capsys, short_dir, tmp_path, stand_in):
    node = StubNode(short_dir / "root", compiled_stub(tmp_path)).add_h100s(2)
    fewer = ("--processes", "2", "--repeats", "1", "--seconds", "0.02", "--memory", "3Mi")
    here = ("--gpu", "1", "--python", stand_in, "--run-dir", "/nonexistent", "--driver-root", str(node.root))
    code = run(["bench", *fewer, "--small", "50", "--saturating", "500", *here, "-o", "json"])
    assert code == 0
    document = json.loads(capsys.readouterr().out)
    assert document["machine"]["uuid"] == node.uuid(1)
    assert {one["mode"] for one in document["cells"]} == {"one-after-the-other", "time-slicing"}
    assert all("failure" not in turn for one in document["cells"] for repeat in one["repeats"]
               for turn in repeat["turns"])  # fmt: skip
    assert any("MPS was not measured" in remark for remark in document["remarks"])
    assert [(one["limitBytes"], one["promise"]) for one in document["memory"]] == [(3 << 20, "none")]


def test_a_recorded_run_is_shown_without_a_gpu(capsys, recorded, tmp_path):
    plot = tmp_path / "run.png"
    assert run(["bench", "--read", recorded, "--plot", str(plot)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "MPS / time-sliced" in said.out
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_recorded_run_is_a_document_again(capsys, recorded, output):
    assert run(["bench", "--read", recorded, "-o", output]) == 0
    assert "kind: Bench" in capsys.readouterr().out.replace('"', "")


def test_without_a_gpu_one_sentence_says_so_and_what_to_do(capsys, tmp_path):
    library = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_text("broken")  # also where there is one
    assert run(["bench", "--driver-root", str(tmp_path)]) == 4
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "there is no GPU to measure here" in said.err
    assert "partage bench --read FILE" in said.err
    assert said.out == ""


def test_without_pytorch_the_pythons_that_were_asked_are_named(capsys, tmp_path):
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    assert run(["bench", "--device", "cpu", "--python", str(bare)]) == 4
    said = capsys.readouterr().err
    assert f"{bare}: no torch" in said
    assert "--read FILE" in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--processes", "0"), 2),
        (("--processes", "two"), 2),
        (("--only", "pi,poetry"), 2),
        (("--memory", "plenty"), 2),
        (("--engine", "python", "--device", "cuda"), 2),
        (("--engine", "cuda", "--device", "cpu"), 2),
        (("--device", "cpu", "--python", "/no/such/python"), 2),
        (("--engine", "python", "--plot", "run.gif"), 2),
        (("--engine", "python", "--save", "/no/such/folder/run.json"), 2),
        (("--read", "/no/such/run.json"), 2),
        (("--mps-pipe", "/no/such/folder"), 2),
        (("--machine", "8xh100-sxm5-80gb"), 3),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(capsys, arguments, code):
    assert run(["bench", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert "rounds of" not in said.err


# --- no process is left behind ---------------------------------------------------------------------


@pytest.fixture
def running():
    """A bench in a process of its own, at a moment at which two tenants compute; and who belongs to it."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    options = ("--engine", "python", "--seconds", "300", "--processes", "2", "--only", "inference")
    bench = subprocess.Popen(
        [sys.executable, "-m", "partage", "bench", *options],
        env={**os.environ, MARK: mark}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _until(lambda: len(_marked(mark)) == 3)
        yield bench, mark
    finally:
        for pid in _marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        bench.communicate()


def _marked(mark):
    """Pids of the processes that inherited the mark and live."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def _until(true, limit_s=30):
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


def test_ctrl_c_ends_every_tenant(running):
    bench, mark = running
    bench.send_signal(signal.SIGINT)
    assert bench.wait(30) == 130
    assert _marked(mark) == []
    assert "Traceback" not in bench.stderr.read()


def test_tenants_end_with_a_bench_that_is_killed(running):
    bench, mark = running
    bench.kill()
    bench.wait(30)
    _until(lambda: not _marked(mark))

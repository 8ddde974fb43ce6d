"""``partage prove``, from the command line to the last process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from partage.cli.main import run
from partage.lab.prove.report import PROOF
from tests.lab.prove import reports

MACHINE = ("--machine", "2xh100-sxm5-80gb")


def test_a_simulated_machine_is_proven_and_the_report_written(capsys, tmp_path):
    folder = tmp_path / "new" / "report"
    code = run(["prove", *MACHINE, "--only", "mps-over-limit,mig-memory", "--report", str(folder)])
    said = capsys.readouterr()
    assert code == 0
    assert "2 promises: 1 kept, 0 weaker than promised, 0 broken, 1 not tried" in said.out
    assert "nvidia.com/gpu.shared: GPU 0, one of 4 shares, 19.9 GiB" in said.out
    assert "Promised: MPS in four shares" in said.out
    assert said.err == "GPU 0, nvidia.com/gpu.shared: mps-over-limit\n"
    document = json.loads((folder / "prove.json").read_text())
    assert (document["kind"], document["machine"]) == ("Proof", "2xh100-sxm5-80gb")
    assert document["driver"]["version"]
    assert document["rows"][0]["evidence"] == "simulated"
    assert (folder / "prove.md").read_text().startswith("# What the shares of this node guarantee\n")

    assert run(["prove", "--read", str(folder / "prove.json")]) == 0
    assert capsys.readouterr().out == said.out


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_the_answer_is_a_document_too(capsys, output):
    assert run(["prove", *MACHINE, "--gpu", "1", "--only", "mps-below-limit", "-o", output]) == 0
    said = capsys.readouterr().out.replace('"', "")
    assert "kind: Proof" in said
    assert "gpu: 1" in said


def test_a_report_of_a_broken_promise_ends_with_exit_code_1(capsys, tmp_path):
    path = tmp_path / "prove.json"
    path.write_text(json.dumps(PROOF.to_document(reports.full())))
    assert run(["prove", "--read", str(path)]) == 1
    said = capsys.readouterr().out
    for words in ("broken", "weaker-than-promised", "it got 60 GiB", "Not offered here"):
        assert words in said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--machine", "2xh100-sxm5-80gb", "--gpu", "7"), 2),
        (("--machine", "2xh100-sxm5-80gb", "--only", "poetry"), 2),
        (("--machine", "no-such-gpu"), 2),
        (("--machine", "2xh100-sxm5-80gb", "--policy", "/no/such/file"), 2),
        (("--machine", "2xh100-sxm5-80gb", "--report", "/dev/null/folder"), 2),
        (("--machine", "1xt4", "--policy", "MIG"), 3),
        (("--read", "/no/such/prove.json"), 2),
        (("--engine", "poetry"), 2),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_tried(capsys, tmp_path, arguments, code):
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: partage/v1\ngpus:\n  - select: all\n    mig: {layout: [3g.40gb]}\n")
    assert run(["prove", *(str(policy) if word == "MIG" else word for word in arguments)]) == code
    assert capsys.readouterr().out == ""


def test_without_a_driver_one_sentence_says_so(capsys, tmp_path):
    assert run(["prove", "--driver-root", str(tmp_path), "--pod-resources", "none"]) == 4
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "--machine" in said.err


# --- nobody is left behind ---------------------------------------------------------------------


@pytest.fixture
def running():
    """A proof in a process of its own, while it tries something."""
    prove = subprocess.Popen(
        [sys.executable, "-m", "partage", "prove", "--machine", "8xh100-sxm5-80gb", "--faults"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    found: set[int] = set()
    try:
        assert prove.stderr is not None
        while "mps-over-limit" not in prove.stderr.readline():
            pass
        found |= _descendants(prove.pid)
        yield prove, found
    finally:
        for pid in {prove.pid, *found}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        prove.communicate()


def _descendants(pid):
    """Pids of the processes that a process has begun, and those have begun."""
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found |= {child} | _descendants(child)
    return found


def _lives(pid):
    """One that nobody has buried yet is dead, too."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def _pipes(pids):
    """Pipe directories in the environment of these processes."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                name, _, value = entry.decode().partition("=")
                if name == "CUDA_MPS_PIPE_DIRECTORY":
                    found.add(Path(value))
    return found


def test_ctrl_c_ends_daemon_and_tenants_and_leaves_no_file(running):
    prove, others = running
    pipes = _pipes(others)
    assert others
    assert all(pipe.is_dir() for pipe in pipes)
    assert pipes
    prove.send_signal(signal.SIGINT)
    assert prove.wait(30) == 130
    assert not [pid for pid in others if _lives(pid)]
    assert not [pipe for pipe in pipes if pipe.parents[1].exists()]
    assert "Traceback" not in prove.stderr.read()

"""The table of what was seen, what of it is kept, and children that will not end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.on_gpu.conftest import HOME
from tools.on_gpu.look_steps import metric_value, topology_node
from tools.on_gpu.result import (
    EVIDENCE,
    Finding,
    HardwareEvidence,
    Outcome,
    SeenMachine,
    StepRun,
    Verdict,
    newest,
    save,
)
from tools.on_gpu.rows import ROWS
from tools.on_gpu.runner import RunOptions, is_open
from tools.on_gpu.steps import STEPS
from tools.on_gpu.table import BEGIN, END, state_of, table, untouched_table, write_page

ROW = {row.key: row for row in ROWS}
STEP = {step.name: step for step in STEPS}
OPTIONS = RunOptions(Path("r.json"), Path("s"))


def machine(host: str = "a", driver: str = "550.1", product: str = "H100") -> SeenMachine:
    return SeenMachine(host, f"GPU-{host}", product, driver, "12.4", "Linux", "3.11", root=True)


def run(step: str, number: int, *findings: Finding, outcome: Outcome = Outcome.DONE) -> StepRun:
    return StepRun(step, number, "2026-11-24T00:00:00+00:00", 1.0, outcome, findings=findings)


def evidence(
    *runs: StepRun, machines: tuple[SeenMachine, ...] = (machine(), machine("b"))
) -> HardwareEvidence:
    return HardwareEvidence("2026-11-24", "0.1.0", machines, runs)


def seen(row: str, words: str = "as expected") -> Finding:
    return Finding(row, Verdict.SEEN, words)


def test_the_table_of_the_documents_is_that_of_the_newest_result():
    folder = HOME / "docs/evidence"
    result = newest(folder)
    text = (folder / "hardware.md").read_text().partition(BEGIN)[2].partition(END)[0].strip()
    wanted = untouched_table() if result is None else table(EVIDENCE.read(str(result)), result.name)
    assert text == wanted.strip(), "make on-gpu ON_GPU=--table writes it"


def test_what_one_machine_could_not_and_another_did_is_seen():
    cannot = Finding("guard", Verdict.NOT_HERE, "PyTorch")
    both = evidence(run("guard", 0, cannot), run("guard", 1, seen("guard", "capped")))
    assert state_of(both, ROW["guard"]) == "seen: capped (machine 2)"
    assert state_of(evidence(run("guard", 0, cannot)), ROW["guard"]).startswith(
        "not possible there: takes PyTorch"
    )


def test_a_later_run_replaces_an_earlier_one_and_a_failure_is_not_known():
    again = evidence(run("guard", 0, seen("guard", "once")), run("guard", 0, seen("guard", "twice")))
    assert state_of(again, ROW["guard"]) == "seen: twice (machine 1)"
    failed = evidence(run("guard", 0, outcome=Outcome.TIMED_OUT))
    assert state_of(failed, ROW["guard"]) == "not known: timed-out on machine 1"
    assert (
        state_of(evidence(), ROW["lost"]) == "not looked at yet; needs a machine on which a GPU may be reset"
    )


def test_words_of_a_machine_do_not_break_the_table():
    text = table(evidence(run("guard", 0, seen("guard", "a | b\n<script>"))), "r.json")
    assert "a \\| b &lt;script>" in text


@pytest.mark.parametrize(
    ("step", "other", "findings", "is_left"),
    [
        ("geometry", machine("b"), [seen("geometry")], False),
        ("geometry", machine("b", driver="575.1"), [seen("geometry")], True),
        ("geometry", machine("b", product="A100"), [seen("geometry")], True),
        ("geometry", machine("b"), [Finding("geometry", Verdict.NOT_HERE, "root")], True),
        ("compare", machine("b"), [seen("beside-smi")], True),
    ],
)
def test_what_another_machine_saw_counts_where_it_is_so_on_both(step, other, findings, is_left):
    both = evidence(run(step, 1, *findings), machines=(machine(), other))
    assert is_open(STEP[step], OPTIONS, both, 0) is is_left
    assert not is_open(STEP[step], OPTIONS, both, 1)


def test_a_step_that_was_cut_off_is_done_again_and_one_that_failed_is_not():
    assert is_open(STEP["compare"], OPTIONS, evidence(run("compare", 0, outcome=Outcome.INTERRUPTED)), 0)
    assert not is_open(STEP["compare"], OPTIONS, evidence(run("compare", 0, outcome=Outcome.FAILED)), 0)


def test_a_result_is_read_as_it_was_written(tmp_path: Path):
    whole = evidence(run("guard", 0, seen("guard")))
    save(tmp_path / "hardware-2026-11-24.json", whole)
    assert EVIDENCE.read(str(tmp_path / "hardware-2026-11-24.json")) == whole
    assert newest(tmp_path) == tmp_path / "hardware-2026-11-24.json"


def test_only_the_table_of_a_page_is_written_anew(tmp_path: Path):
    page = tmp_path / "hardware.md"
    page.write_text(f"# Title\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    write_page(page, "new\n")
    assert page.read_text() == f"# Title\n\nbefore\n\n{BEGIN}\n\nnew\n\n{END}\n\nafter\n"


@pytest.mark.parametrize(
    ("text", "index", "node"),
    [
        ("GPU0 CPU Affinity NUMA Affinity GPU NUMA ID GPU0 X 0-63 0 N/A Legend: X = Self", 0, "0"),
        ("GPU0 GPU1 CPU Affinity NUMA Affinity GPU0 X NV18 0-63 0 GPU1 NV18 X 64-127 1 Legend:", 1, "1"),
        ("GPU0 NIC0 CPU Affinity NUMA Affinity GPU NUMA ID GPU0 X PIX 0-31 N/A N/A NIC0 PIX X", 0, "N/A"),
        ("GPU0 CPU Affinity NUMA Affinity GPU0 X 0-63 0", 3, None),
        ("Failed to get topology", 0, None),
    ],
)
def test_the_numa_node_in_the_words_of_nvidia_smi(text: str, index: int, node: str | None):
    assert topology_node(text, index) == node


def test_a_metric_of_one_gpu():
    text = '# HELP a\na{uuid="GPU-1"} 5\na{uuid="GPU-2"} 6.5\n'
    assert (metric_value(text, "a", "GPU-2"), metric_value(text, "b", "GPU-2")) == (6.5, None)


LEAVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):  # away from its session and from its parent, as a daemon goes
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("daemon", os.getpid(), flush=True)
            time.sleep(600)
        os._exit(0)
print("child", os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_child_that_hangs_is_left_at_its_limit_and_its_daemons_with_it(tmp_path: Path):
    """On a busy machine a limit may be over before all three run: then a longer one is tried."""
    program = f"""
import os, sys
from pathlib import Path
from tools.on_gpu import procs
procs.become_reaper()
log = Path({str(tmp_path / "log")!r})
for limit_s in (1.0, 5.0, 25.0):
    end = procs.run((sys.executable, "-c", {LEAVES!r}), {{}}, limit_s, log, lambda: None)
    assert end.code is None, end
    assert end.left == (), end
    assert procs.descendants(os.getpid()) == set()
    started = sorted(line.split()[0] for line in log.read_text().splitlines())
    if started == ["child", "daemon", "daemon"]:
        print("ended")
        break
"""
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=HOME, capture_output=True, text=True, check=False, timeout=100
    )
    assert said.stdout == "ended\n", said.stderr
    pids = [int(line.split()[1]) for line in (tmp_path / "log").read_text().splitlines()]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


STARTS_MORE = """
import os, time
if os.fork() == 0:
    os.setsid()  # out of reach of a signal to the child's group
    for _ in range(400):
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        time.sleep(0.001)
time.sleep(600)
"""


def test_what_a_child_starts_while_it_is_ended_is_ended_too(tmp_path: Path):
    program = f"""
import os, sys
from pathlib import Path
from tools.on_gpu import procs
procs.become_reaper()
for limit_s in (0.15, 0.25, 0.35, 0.45):
    argv = (sys.executable, "-S", "-c", {STARTS_MORE!r})
    end = procs.run(argv, {{}}, limit_s, Path(os.devnull), lambda: None)
    left = [pid for pid in procs.descendants(os.getpid()) if procs.procfs.runs(Path("/proc"), pid)]
    assert (end.code, end.left, left) == (None, (), []), (end, left)
"""
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=HOME, capture_output=True, text=True, check=False, timeout=100
    )
    assert said.returncode == 0, said.stderr

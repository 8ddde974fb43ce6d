"""The tables."""

import io

from rich.console import Console

from partage.lab.bench.model import BenchCell, MemoryTry, Repeat, TenantSample
from partage.lab.bench.report import bench_lines
from partage.lab.place import TenantMode
from partage.units import GIB
from tests.lab.bench import runs


def _said(bench, width=130):
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None)
    for line in bench_lines(bench):
        console.print(line)
    return text.getvalue()


def test_a_run_says_what_it_ran_on_and_how_every_mode_did():
    said = _said(runs.full())
    assert "NVIDIA Invented 24GB, 24 GiB, driver 595.1, CUDA 13.2, default mode" in said
    assert "torch 2.9.0" in said
    (row,) = (line for line in said.splitlines() if line.split()[:2] == ["8", "MPS"] and "2.64-2.88" in line)
    assert row.split() == ["8", "MPS", "2.80", "(2.64-2.88)", "2.80", "2.86", "100%", "3"]


def test_a_cell_that_never_succeeded_keeps_its_row_and_the_reason_stands_below():
    cell = BenchCell(
        runs.SMALL,
        TenantMode.TIME_SLICING,
        2,
        (runs.failed("error", "CUDA-capable device(s) is/are busy", 2),) * 3,
        1000,
        10,
    )
    said = _said(runs.bench(cell))
    assert "0, 3 failed" in said
    assert (
        "! pi, small kernels, 2 processes, time-slicing: error, CUDA-capable device(s) is/are busy (3 times)"
        in said
    )


def test_clients_that_the_daemon_did_not_list_are_warned_of():
    bypassing = BenchCell(runs.SMALL, TenantMode.MPS, 2, (runs.repeat(1.0, 1.0),), 1000, 10, clients_seen=0)
    assert "the MPS daemon listed 0 clients more than before them" in _said(runs.bench(bypassing))
    listed = BenchCell(runs.SMALL, TenantMode.MPS, 2, (runs.repeat(1.0, 1.0),), 1000, 10, clients_seen=2)
    assert "the MPS daemon listed" not in _said(runs.bench(listed))


def test_a_tenant_that_computes_something_else_than_pi_is_warned_of():
    wrong = BenchCell(
        runs.SMALL, TenantMode.MPS, 1, (Repeat(1, (TenantSample(0.0, 1.0, value=2.5),)),), 1000, 1000
    )
    assert "a process computed 2.5 for pi" in _said(runs.bench(wrong))
    assert "for pi" not in _said(runs.full())


def test_memory_says_what_was_promised_and_what_was_seen():
    broken = MemoryTry(TenantMode.MPS, 8 * GIB, "the daemon's limit, read back", "guarded", 3.0, "fits")
    crashed = MemoryTry(
        TenantMode.TIME_SLICING, 8 * GIB, "none", "none", 2.5, "died", "ended by signal SIGKILL"
    )
    said = _said(runs.bench(memory=[broken, crashed]))
    (row,) = (line for line in said.splitlines() if "read back" in line)
    assert row.split()[-3:] == ["3", "oom", "fits"]
    assert "memory, time-slicing, 2.5 thirds: died, ended by signal SIGKILL" in said

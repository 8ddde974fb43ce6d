"""Tenants beside each other: real processes, some of them killed, stopped, or without memory."""

import os
import signal
import stat
import sys
import time
from contextlib import asynccontextmanager

import pytest

from partage.lab.bench.group import tenant_group
from partage.lab.bench.memory import tensor_sizes, try_allocation
from partage.lab.bench.model import BenchCell, Experiment
from partage.lab.bench.report import BENCH
from partage.lab.place import TenantMode
from partage.lab.tenant import TenantFailure, TenantLaunch
from partage.units import MIB
from tests.lab.bench.runs import bench

PI = "pi 1000 200"
LAUNCH = TenantLaunch(sys.executable, "python", "cpu")


def _gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _failure(tenants):
    (only,) = tenants.tenants
    assert isinstance(only, TenantFailure)
    return only


@asynccontextmanager
async def _tenants(count, deadline_s=30.0):
    async with tenant_group(LAUNCH, [dict(os.environ)] * count, deadline_s) as tenants:
        yield tenants


@pytest.fixture
def python_with(tmp_path):
    """A Python behind a shell line that does something first."""

    def make(line):
        script = tmp_path / "python"
        script.write_text(f'#!/bin/sh\n{line}\nexec {sys.executable} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return TenantLaunch(str(script), "python", "cpu")

    return make


async def test_parallel_tenants_start_at_one_moment_and_compute_together():
    async with _tenants(3) as tenants:
        repeat = await tenants.together(PI, 7, 30)
    assert repeat.good
    assert repeat.number == 7
    assert all(sample.started_s >= 0 for sample in repeat.samples), "no tenant before the start"
    assert all(sample.value == pytest.approx(3.14, abs=0.1) for sample in repeat.samples)


async def test_tenants_in_turn_never_compute_at_the_same_time():
    async with _tenants(3) as tenants:
        repeat = await tenants.in_turn(PI, 1, 30)
    first, second, third = repeat.samples
    assert first.ended_s <= second.started_s
    assert second.ended_s <= third.started_s
    assert repeat.overlap == 0


async def test_no_tenant_is_left_behind():
    async with _tenants(2) as tenants:
        pids = [tenant.pid for tenant in tenants.alive]
    assert all(map(_gone, pids))


async def test_no_tenant_is_left_behind_by_an_error_either():
    pids: list[int] = []

    async def err():
        async with _tenants(2) as tenants:
            pids.extend(tenant.pid for tenant in tenants.alive)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await err()
    assert len(pids) == 2
    assert all(map(_gone, pids))


async def test_a_tenant_that_dies_is_a_result_and_the_others_finish():
    async with _tenants(2) as tenants:
        os.kill(tenants.alive[0].pid, signal.SIGKILL)
        repeat = await tenants.together(PI, 1, 30)
    dead, other = repeat.samples
    assert dead.failure.what == "died"
    assert "SIGKILL" in dead.failure.message
    assert other.failure is None
    assert not repeat.good
    assert not tenants.whole


async def test_a_tenant_that_hangs_is_a_result_and_is_ended():
    async with _tenants(2) as tenants:
        stopped = tenants.alive[1].pid
        os.kill(stopped, signal.SIGSTOP)
        begun = time.monotonic()
        repeat = await tenants.together("pi 1000 1", 1, 2.0)
        assert time.monotonic() - begun < 20
        assert _gone(stopped)
    assert repeat.samples[1].failure.what == "hung"
    assert repeat.samples[0].failure is None


async def test_a_tenant_that_never_connects_is_a_result(python_with):
    async with tenant_group(python_with("sleep 100"), [dict(os.environ)], 0.3) as tenants:
        assert _failure(tenants).what == "hung"


async def test_a_tenant_that_cannot_be_run_is_a_result(tmp_path):
    nothing = TenantLaunch(str(tmp_path / "no-python"), "python", "cpu")
    async with tenant_group(nothing, [dict(os.environ)], 5) as tenants:
        assert _failure(tenants).what == "died"
        assert "cannot be run" in _failure(tenants).message


async def test_where_one_tenant_cannot_start_none_has_computed(python_with):
    launch = python_with('test -z "$MAY_NOT" || exit 1')
    async with tenant_group(launch, [dict(os.environ), {**os.environ, "MAY_NOT": "1"}], 20) as tenants:
        repeat = tenants.failures(1)
    assert [sample.failure.what for sample in repeat.samples if sample.failure] == ["error", "died"]
    cell = BenchCell(Experiment.SMALL, TenantMode.MPS, 2, (repeat,), 10, 10)
    assert BENCH.from_document(BENCH.to_document(bench(cell))).cells == (cell,)


async def test_the_last_words_of_a_tenant_that_dies_early_are_reported(python_with):
    launch = python_with("echo a library is missing >&2; exit 3")
    async with tenant_group(launch, [dict(os.environ)], 5) as tenants:
        assert _failure(tenants).message == "ended with exit code 3: a library is missing"


async def test_what_an_image_prints_at_its_start_is_no_answer(python_with):
    launch = python_with("echo welcome; echo 42; echo '[1]'")
    async with tenant_group(launch, [dict(os.environ)], 10) as tenants:
        assert tenants.whole


async def test_a_limit_that_holds_lets_two_and_a_half_thirds_through_and_not_three(python_with):
    # The limit on the address space plays the GPU's; the interpreter itself is 60 MiB of it at most.
    launch, limit = python_with(f"ulimit -v {(300 + 60) * 1024}"), 300 * MIB
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    assert await try_allocation(launch, environment, tensor_sizes(limit, 2.5), 30) is None
    refused = await try_allocation(launch, environment, tensor_sizes(limit * 3 // 2, 3), 30)
    assert refused is not None
    assert refused.what == "oom"


def test_tensors_are_thirds_and_what_is_left():
    assert tensor_sizes(300, 2.5) == (100, 100, 50)
    assert tensor_sizes(300, 3) == (100, 100, 100)

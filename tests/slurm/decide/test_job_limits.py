"""The driver's limits beside the records of jobs: what each has to have, and what is believed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from partage.model.driver_limit import NO_CGROUP, LimitAt, LimitState, SeenLimit
from partage.model.ids import ContainerId, GpuUuid
from partage.model.share import Guarantee
from partage.plan.serve.ledger_entry import HeldLimit
from partage.slurm.decide.job_limits import (
    NOT_BEGUN,
    counted_of_jobs,
    job_limits,
    places_of_waiting,
    wanted_of_jobs,
)
from partage.slurm.decide.job_start import JobRequest, NodeFacts, start_job
from partage.slurm.model import HeldDevices, JobId, JobRecord
from partage.units import GIB
from tests.slurm.decide.jobs import LIMITED, NODE, gpu

GPU = gpu(3)
QUARTER = 20 * GIB
BEGUN = frozenset(map(JobId, range(1, 10)))


def job(number: int, units: int = 1, *, limits: bool = True, sluid: str = "", index: int = 3) -> JobRecord:
    """A job with shards of GPU 3."""
    held = HeldDevices((index,), {index: units} if units else {})
    facts = NodeFacts(constrained=True, held=held, limits=limits)
    request = JobRequest(JobId(number), 1000, (index,), "anna", sluid=sluid)
    return start_job(request, LIMITED, facts, ())


def at(name: str, of: GpuUuid = GPU) -> LimitAt:
    return LimitAt(ContainerId(name), of)


def read(name: str, hard_bytes: int | None) -> dict[LimitAt, SeenLimit]:
    return {at(name): SeenLimit(at(name), LimitState(hard_bytes), f"/sys/fs/cgroup/{name}")}


def said(*jobs: JobRecord, seen: dict[LimitAt, SeenLimit], unknown: bool = False) -> dict[int, Guarantee]:
    rows = job_limits(jobs, BEGUN, seen, (), unknown=unknown)
    return {row.job: row.guarantee for row in rows}


def test_a_job_has_to_have_the_sum_of_its_shares_under_the_name_of_its_cgroup() -> None:
    both = replace(job(1), devices=(*job(1).devices, *job(1, 2).devices))
    assert wanted_of_jobs([both, job(2, sluid="s5K1KKYAYG5D00")], BEGUN) == {
        at("1"): 3 * QUARTER,
        at("s5K1KKYAYG5D00"): QUARTER,
        at("2"): QUARTER,
    }


def test_before_the_plugin_has_set_it_nothing_can_be_lost() -> None:
    assert wanted_of_jobs([job(1), job(2)], {JobId(2)}) == {at("2"): QUARTER}
    (row,) = job_limits([job(1)], (), read("1", QUARTER), (), unknown=False)
    assert (row.limit, row.guarantee) == (HeldLimit(QUARTER, None, reason=NOT_BEGUN), Guarantee.NONE)


def test_whole_gpus_refused_jobs_and_jobs_without_the_plugin_have_none() -> None:
    refused = replace(job(1), refused="no")
    assert wanted_of_jobs([job(1, 0), refused, job(2, limits=False)], BEGUN) == {}
    assert job_limits([refused, job(1, 0)], BEGUN, {}, (), unknown=False) == ()


def test_the_kernel_counts_for_every_job_but_clients_of_mps_and_parts_of_a_gpu() -> None:
    jobs = [job(1), job(2, 0), job(3, limits=False), job(4, 25, index=2), job(5, 0, index=0)]
    gpus = {gpu(number) for number in range(4)}
    assert {place.container for place in counted_of_jobs(jobs, gpus)} == {"1", "2", "3"}
    assert counted_of_jobs(jobs, {gpu(0)}) == frozenset()


@pytest.mark.parametrize(
    ("seen", "limit"),
    [
        (read("1", QUARTER), HeldLimit(QUARTER, QUARTER)),
        (read("1", QUARTER + GIB), HeldLimit(QUARTER, QUARTER + GIB, reason="its cgroup may have 21 GiB")),
        (read("1", None), HeldLimit(QUARTER, None, reason="its cgroup has no limit")),
        ({at("1"): SeenLimit(at("1"), why=NO_CGROUP)}, HeldLimit(QUARTER, None, reason=NO_CGROUP)),
    ],
)
def test_only_what_was_read_is_hard(seen: dict[LimitAt, SeenLimit], limit: HeldLimit) -> None:
    (row,) = job_limits([job(1)], BEGUN, seen, (), unknown=False)
    hard = Guarantee.HARD if limit.in_force else Guarantee.NONE
    assert (row.limit, row.guarantee, row.user, row.gpu) == (limit, hard, "anna", GPU)


def test_a_limit_that_was_set_again_is_late() -> None:
    (row,) = job_limits([job(1)], BEGUN, read("1", QUARTER), {at("1")}, unknown=False)
    assert (row.limit.late, row.guarantee) == (True, Guarantee.HARD)


def test_one_job_without_a_limit_can_use_the_memory_of_all() -> None:
    both = read("1", QUARTER) | read("2", QUARTER)
    hard, none = Guarantee.HARD, Guarantee.NONE
    assert said(job(1), job(2), seen=both) == {1: hard, 2: hard}
    assert said(job(1), job(2), seen=both | read("2", None)) == {1: none, 2: none}
    assert said(job(1), job(3, limits=False), seen=both) == {1: none}
    assert said(job(1), replace(job(3, limits=False), refused="no"), seen=both) == {1: hard}
    assert said(job(1), job(4, 25, index=2), seen=both) == {1: hard}, "another GPU's"
    assert said(job(1), seen=both, unknown=True) == {1: none}, "nobody knows which GPUs the unread job has"


def test_a_job_without_a_task_takes_nothing_from_others() -> None:
    """A user could keep a job without a step for any time."""
    none = {at("2"): SeenLimit(at("2"), why=NO_CGROUP)}
    both = read("1", QUARTER) | none
    assert said(job(1), job(2), seen=both) == {1: Guarantee.HARD, 2: Guarantee.NONE}
    waits = [job(1), job(2)]
    assert places_of_waiting(waits, {JobId(1)}) == {at("2")}
    for seen, guarantee in ((both, Guarantee.HARD), (both | read("2", None), Guarantee.NONE)):
        rows = job_limits(waits, {JobId(1)}, seen, (), unknown=False)
        assert [row.guarantee for row in rows] == [guarantee, Guarantee.NONE], seen
    unread = read("1", QUARTER) | {at("2"): SeenLimit(at("2"), why="the helper does not answer")}
    assert said(job(1), job(2), seen=unread) == {1: Guarantee.NONE, 2: Guarantee.NONE}


def test_no_more_is_said_than_was_promised() -> None:
    """Slurm does not keep jobs from GPUs that are not theirs."""
    request = JobRequest(JobId(1), 1000, (3,))
    facts = NodeFacts(constrained=False, held=HeldDevices((3,), {3: 1}), limits=True)
    assert said(start_job(request, LIMITED, facts, ()), seen=read("1", QUARTER)) == {1: Guarantee.NONE}
    assert NODE.devices[3].limited is False
    none = replace(job(1).devices[0], guard=True, guarantee=Guarantee.NONE)
    beside = job(3, limits=False)
    assert said(replace(job(1), devices=(none,)), beside, seen=read("1", QUARTER)) == {1: Guarantee.NONE}

"""What a job gets when it starts, and when it must not."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.model.mps import DaemonPhase, DaemonState
from partage.model.share import Guarantee
from partage.slurm.decide.job_start import (
    JobRequest,
    NodeFacts,
    daemons_of,
    has_to_be_asked,
    idle_daemons,
    mps_of,
    parse_indexes,
    read_request,
    start_job,
    with_other_users,
)
from partage.slurm.model import HeldDevices, JobId, JobRecord
from partage.slurm.text.answers import has_gpus_on, held_on, parse_job_names
from partage.slurm.text.limits import limits_text
from partage.units import GIB, MIB
from tests.slurm.decide.jobs import ALL, LIMITED, MIG, NODE, SIZE, gpu

CGROUPS = NodeFacts(constrained=True)


def job(number, *indexes, percent=None, uid=1000):
    return JobRequest(JobId(number), uid, indexes, "alice", percent)


def started(number, *indexes, percent=None, uid=1000, facts=None, others=()):
    """facts: without them Slurm says the same GPUs as slurmd, whole."""
    if facts is None:
        facts = CGROUPS if percent is not None else replace(CGROUPS, held=HeldDevices(indexes))
    return start_job(job(number, *indexes, percent=percent, uid=uid), NODE, facts, others)


WHOLE = NodeFacts(constrained=True, held=HeldDevices((2,)))


def shards(count):
    return NodeFacts(constrained=True, held=HeldDevices((3,), {3: count} if count else {}))


# --- the variables of slurmd -----------------------------------------------------------------


def test_the_variables_of_a_prolog():
    assert read_request(ALL) == JobRequest(JobId(41), 1000, (0,), "alice")
    assert read_request({**ALL, "SLURM_JOB_GPUS": ""}) is None
    assert read_request({}) is None
    mps = {**ALL, "SLURM_JOB_GPUS": "2", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    assert read_request(mps) == JobRequest(JobId(41), 1000, (2,), "alice", 25)
    assert parse_indexes("X", "0-2,5,1") == (0, 1, 2, 5)


def test_since_26_05_a_job_has_another_name_and_its_cgroup_has_that():
    request = read_request({**ALL, "SLURM_JOB_SLUID": "s5K1KKYAYG5D00"})
    assert request is not None
    record = start_job(request, NODE, NodeFacts(held=HeldDevices((0,))), ())
    assert (record.job, record.cgroups) == (41, ("s5K1KKYAYG5D00", "41"))
    for other in ("", "s5K1KKYAYG5D0", "../../5K1KKYAYG5D0", "s5K1KKYAYG5DIL"):
        request = read_request({**ALL, "SLURM_JOB_SLUID": other})
        assert request is not None
        assert start_job(request, NODE, NodeFacts(held=HeldDevices((0,))), ()).cgroups == ("41",)


def test_a_component_of_a_heterogeneous_job_knows_its_leader():
    """Its tasks are told the leader's number."""
    request = read_request({**ALL, "SLURM_HET_JOB_ID": "40"})
    assert request is not None
    assert (request.job, request.leader) == (41, 40)
    record = start_job(request, NODE, NodeFacts(held=HeldDevices((0,))), ())
    assert (record.job, record.leader) == (41, 40)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_ID", ""), ("SLURM_JOB_ID", "41\n"), ("SLURM_JOB_ID", "../x"), ("SLURM_JOB_ID", "-1"),
        ("SLURM_JOB_ID", "٤١"), ("SLURM_JOB_UID", "root"), ("SLURM_JOB_GPUS", "GPU-1"),
        ("SLURM_JOB_GPUS", "0,"), ("SLURM_JOB_GPUS", "0;1"), ("SLURM_JOB_GPUS", "0," * 5000),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "x"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "-1"),
        ("SLURM_HET_JOB_ID", "4+1"),
    ],
)  # fmt: skip
def test_what_slurmd_does_not_say_is_an_error(name, value):
    with pytest.raises(ValueError, match=name):
        read_request({**ALL, name: value})


@pytest.mark.parametrize("user", ["", "a b", "a\nexport X=1", "-rf", "ü", "x" * 65, "../alice", "a/b"])
def test_a_strange_name_of_a_user_is_left_out(user):
    request = read_request({**ALL, "SLURM_JOB_USER": user})
    assert request is not None
    assert request.user == ""


@given(st.dictionaries(st.sampled_from([*ALL, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]), st.text(max_size=12)))
def test_any_variables_are_a_job_or_an_error(variables):
    try:
        request = read_request({**ALL, **variables})
    except ValueError:
        return
    if request is not None:
        assert set(request.user) <= set(string.ascii_letters + string.digits + "_.@-")
        assert request.job >= 0
        assert request.indexes


# --- what it gets -----------------------------------------------------------------------------


def test_a_mig_device_and_a_whole_gpu():
    record = started(1, 0, 1)
    assert [one.uuid for one in record.devices] == [MIG, gpu(0)]
    assert [one.memory_bytes for one in record.devices] == [10 * GIB, SIZE]
    assert {one.guarantee for one in record.devices} == {Guarantee.HARD}
    assert record.gres == "gpu:h100_1g.10gb:1,gpu:h100:1"
    assert record.refused == ""
    assert daemons_of(record, NODE) == ()


def test_without_cgroups_nothing_is_hard():
    (device,) = started(1, 1, facts=NodeFacts(held=HeldDevices((1,)))).devices
    assert device.guarantee is Guarantee.ADVISORY


def test_a_share_of_mps():
    record = started(1, 2, percent=30)
    (device,) = record.devices
    assert device.memory_bytes == SIZE * 30 // 100 // MIB * MIB
    assert (device.units, device.units_of, device.guarantee) == (30, 100, Guarantee.ADVISORY)
    (spec,) = daemons_of(record, NODE)
    assert (spec.device, spec.memory_bytes, spec.threads_percent) == (gpu(2), None, None)


@pytest.mark.parametrize(
    ("facts", "units", "guarantee"),
    [
        (shards(2), 2, Guarantee.NONE),
        (NodeFacts(True, "/run/guard", HeldDevices((3,), {3: 2})), 2, Guarantee.ADVISORY),
        (shards(0), 0, Guarantee.HARD),  # the whole of a GPU that is meant for shares
        (shards(9), 4, Guarantee.NONE),
    ],
)
def test_shards(facts, units, guarantee):
    (device,) = started(1, 3, facts=facts).devices
    assert (device.units, device.guarantee) == (units, guarantee)
    assert device.memory_bytes == (SIZE * units // 4 if units else SIZE)
    assert device.guard == bool(facts.guard_dir)
    assert has_to_be_asked(job(1, 3), NODE)


def limited(*, constrained=True, limits=True, others=(), count=2):
    facts = NodeFacts(constrained, limits=limits, held=HeldDevices((3,), {3: count} if count else {}))
    return start_job(job(1, 3), LIMITED, facts, others)


def test_a_share_with_a_limit_of_the_drivers():
    record = limited()
    (device,) = record.devices
    assert (device.limited, device.guarantee) == (True, Guarantee.HARD)
    assert limits_text(record) == f"1 job\n{gpu(3)}={SIZE // 2}\n"
    nested = replace(record, devices=(replace(device, limits_nest=True),))
    assert limits_text(nested) == f"1 job task\n{gpu(3)}={SIZE // 2}\n"
    assert limits_text(replace(record, refused="it must not run")) == ""


@pytest.mark.parametrize(
    ("record", "is_limited", "guarantee"),
    [
        (limited(limits=False), False, Guarantee.NONE),  # slurmd does not load the plugin
        (limited(constrained=False), True, Guarantee.NONE),  # jobs without GPUs can use it
        (limited(count=0), False, Guarantee.HARD),  # all of the GPU
        (limited(others=[replace(limited(limits=False, count=1), job=JobId(2))]), True, Guarantee.NONE),
        (limited(others=[replace(limited(count=1), job=JobId(2))]), True, Guarantee.HARD),
    ],
)
def test_what_a_limit_guarantees(record, is_limited, guarantee):
    (device,) = record.devices
    assert (device.limited, device.guarantee) == (is_limited, guarantee)
    assert bool(limits_text(record)) == is_limited


TWO = replace(NODE, devices=(*NODE.devices[:3], replace(NODE.devices[2], index=3, uuid=gpu(3), gpu=gpu(3))))


@pytest.mark.parametrize(
    ("percent", "indexes", "held", "units"),
    [
        (150, (2, 3), {2: 100, 3: 50}, [100, 50]),
        (100, (2, 3), {2: 50, 3: 50}, [50, 50]),
        (200, (2, 3), {2: 100, 3: 100}, [100, 100]),  # --exclusive, on a node without other GPUs
        (0, (0, 1, 2, 3), {2: 100, 3: 100}, [100, 100]),  # --exclusive, on one with others
    ],
)
def test_mps_of_several_gpus_is_what_slurm_says(percent, indexes, held, units):
    """slurmd says the sum, or nothing useful (24.11.5)."""
    request = job(1, *indexes, percent=percent)
    assert has_to_be_asked(request, TWO)
    record = start_job(request, TWO, NodeFacts(True, held=HeldDevices((2, 3), held)), ())
    assert [(one.units, one.gres) for one in record.devices] == [(one, "mps") for one in units]
    assert record.refused == ""
    half = job(2, 2, percent=50)
    beside = start_job(half, TWO, CGROUPS, [record]).refused
    assert bool(beside) == (units[0] > 50)


@pytest.mark.parametrize("request_", [job(1, 3), job(1, 1), job(1, 2, percent=150), job(1, 2, 3, percent=80)])
@pytest.mark.parametrize("silent", ["", "scontrol show: no answer within 5 s"])
def test_what_slurm_has_not_said_is_not_guessed(request_, silent):
    """A job of three shards that counts as one is given a GPU that is full."""
    record = start_job(request_, NODE, replace(CGROUPS, silent=silent), ())
    assert record.devices == ()
    assert record.refused == silent or (not silent and "does not say" in record.refused)
    assert daemons_of(record, NODE) == ()


def test_a_job_with_devices_of_two_types_has_all_of_them():
    """slurmd names those of the last type to the prolog; slurmctld knows them all."""
    record = started(1, 1, facts=NodeFacts(True, held=HeldDevices((0, 1))))
    assert record.gres == "gpu:h100_1g.10gb:1,gpu:h100:1"


def test_slurm_is_asked_only_where_its_answer_can_matter():
    assert has_to_be_asked(job(1, 1), NODE)
    assert not has_to_be_asked(job(1, 2, percent=25), NODE)
    assert not has_to_be_asked(job(1, 0, 1, 2), replace(NODE, devices=NODE.devices[:3]))
    assert not has_to_be_asked(job(1, 0), replace(NODE, devices=(NODE.devices[1], NODE.devices[1])))


@pytest.mark.parametrize(
    ("request_", "units"),
    [(job(1, 4), {}), (job(1, 1, percent=25), {1: 25}), (job(1, 3, percent=25), {3: 4}), (job(1, 1), {1: 1})],
)
def test_devices_that_slurmd_does_not_know(request_, units):
    with pytest.raises(ValueError, match=r"devices\.json"):
        start_job(request_, NODE, replace(CGROUPS, held=HeldDevices(request_.indexes, units)), ())


# --- what cannot be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (started(1, 1), {"indexes": (1,)}, "GPU 0 is not free: job 1 has all of it"),
        (started(1, 2, percent=25), {"indexes": (2,)}, "GPU 2 is not free: job 1 has mps:25 of it"),
        (started(1, 2), {"indexes": (2,), "percent": 25}, "GPU 2 is not free: job 1 has all of it"),
        (started(1, 2, percent=60), {"indexes": (2,), "percent": 50}, "GPU 2 has 40 of 100 mps left, not 50"),
        (
            started(1, 3, facts=shards(3)), {"indexes": (3,), "facts": shards(2)},
            "GPU 3 has 1 of 4 shard left, not 2",
        ),
    ],
)  # fmt: skip
def test_what_is_given_away_twice_is_refused(first, second, said):
    more = {name: value for name, value in second.items() if name != "indexes"}
    start = started(2, *second["indexes"], others=[first], **more)
    assert start.refused == f"{said}. Slurm 22.05.8 gave it away twice"
    assert daemons_of(start, NODE) == ()


def test_what_fits_is_not_refused():
    others = [
        started(1, 2, percent=60),
        started(3, 0, 1),
        started(4, 3, facts=shards(3)),
    ]
    assert started(2, 2, percent=40, others=others).refused == ""
    assert started(2, 3, facts=shards(1), others=others).refused == ""
    refused = started(5, 1, others=others)
    assert refused.refused
    assert started(6, 2, percent=40, others=[*others, refused]).refused == ""  # it does not run
    assert started(1, 2, percent=100, others=others).refused == ""  # its own record of before


@given(st.data())
def test_what_runs_beside_each_other_never_exceeds_a_gpu(data):
    """However Slurm gives GPUs away."""
    living: list[JobRecord] = []
    for number in range(1, data.draw(st.integers(1, 12)) + 1):
        index = data.draw(st.integers(0, 3))
        percent = data.draw(st.none() | st.integers(1, 100)) if index == 2 else None
        units = {3: count} if index == 3 and (count := data.draw(st.integers(0, 4))) else {}
        facts = None if percent else NodeFacts(True, held=HeldDevices((index,), units))
        living.append(started(number, index, percent=percent, facts=facts, others=living))
    running = [one for one in living if not one.refused]
    for device in NODE.devices:
        held = [mine for one in running for mine in one.devices if mine.uuid == device.uuid]
        assert len(held) <= 1 or all(one.units for one in held)
        assert sum(one.units for one in held) <= device.units


# --- MPS --------------------------------------------------------------------------------------


def _daemon(multi_user):
    return DaemonState(gpu(2), gpu(2), DaemonPhase.SERVING, multi_user=multi_user)


def test_a_second_user():
    first, mine = started(1, 2, percent=25, uid=1001), started(2, 2, percent=25)
    assert with_other_users(mine, _daemon(True), [first]) == mine
    assert with_other_users(mine, _daemon(False), [started(1, 2, percent=25)]) == mine
    refused = with_other_users(mine, _daemon(False), [first]).refused
    assert refused == (
        "GPU 2 is shared by MPS, its driver serves one user at a time, and job 1 is another user's"
    )
    assert with_other_users(mine, _daemon(False), [started(1, 1, uid=1001)]) == mine
    assert with_other_users(mine, _daemon(False), [replace(first, decided=False)]) == mine


def test_a_daemon_ends_with_its_last_job():
    first, second = started(1, 2, percent=25), started(2, 2, percent=25)
    (mine,) = mps_of(first)
    assert idle_daemons([mine.uuid], [second]) == ()
    assert idle_daemons([mine.uuid], [replace(second, refused="why"), started(3, 2, facts=WHOLE)]) == (
        gpu(2),
    )
    assert mps_of(started(3, 1)) == ()


# --- what scontrol says -------------------------------------------------------------------------

OLD = "JobId=7 JOB_GRES=shard:2 Nodes=g1 CPU_IDs=0 Mem=0 GRES=shard:2(IDX:2) TresPerNode=gres:shard:2"
NEW = "JobId=7 JOB_GRES=shard:2 Nodes=g1 CPU_IDs=0 Mem=0 GRES=shard:2(0/0,0/0,2/4,0/4) Network="


@pytest.mark.parametrize(
    ("text", "node", "held"),
    [
        (OLD, "g1", {2: 2}), (NEW, "g1", {2: 2}), (NEW, "g2", None), ("", "g1", None),
        (f"JobName=Nodes=g1 CPU_IDs=0 Mem=0 GRES=shard:1(IDX:2) {OLD}", "g1", None),
        (f"JobName=Nodes=g[1-2] CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) {OLD}", "g1", None),
        (f"JobName=Nodes=g[2-99] CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) {OLD}", "g1", {2: 2}),
        (NEW.replace("shard:2(", "shard:h100_shared:2("), "g1", {2: 2}),
        (NEW.replace("Nodes=g1", "Nodes=g[1-3]"), "g2", {2: 2}),
        ("Nodes=g1 CPU_IDs=1 Mem=0 GRES=gpu:h100:1(IDX:0),gpu:h100_shared:0(IDX:) X", "g1", {}),
        ("Nodes=g1 CPU_IDs=1 Mem=0 GRES= X", "g1", {}),
        (OLD.replace("IDX:2", "IDX:2-3"), "g1", None),
        (OLD.replace("Nodes=g1", "Nodes=g[1"), "g1", None),
    ],
)  # fmt: skip
def test_shards_as_scontrol_prints_them(text, node, held):
    """Nothing where a name of a job has made the text unclear."""
    found = held_on(text, node)
    assert (None if found is None else found.units) == held


@pytest.mark.parametrize(
    ("gres", "held"),
    [
        ("mps:150(0/0,100/100,50/100)", HeldDevices((1, 2), {1: 100, 2: 50})),
        ("mps:h100:25(IDX:3)", HeldDevices((3,), {3: 25})),
        ("mps:150(IDX:0-1)", None),
        ("mps:200(-/0,100/100)", HeldDevices((1,), {1: 100})),
    ],
)
def test_mps_as_scontrol_prints_it(gres, held):
    assert held_on(f"JobId=7 Nodes=g1 CPU_IDs=0 Mem=0 GRES={gres} X", "g1") == held


def test_gpus_as_scontrol_prints_them():
    text = "Nodes=g1 CPU_IDs=0 Mem=0 GRES=gpu:h100:3(IDX:0-1,4),gpu:h100_shared:1(IDX:3),mps:0(IDX:N/A) X"
    assert held_on(text, "g1") == HeldDevices((0, 1, 3, 4))


@given(st.text(max_size=80))
def test_any_text_of_scontrol(text):
    held_on(f"Nodes=g1 CPU_IDs=0 Mem=0 GRES={text}", "g1")
    has_gpus_on(f"Nodes=g1 CPU_IDs=0 Mem=0 GRES={text}", "g1")
    parse_job_names(text)


def test_a_job_with_gpus_of_a_node_in_one_of_its_components():
    one = "JobId=7 HetJobId=7 JobName=x Nodes=g1 CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1"
    two = "JobId=8 HetJobId=7 JobName=x Nodes=g2 CPU_IDs=0 Mem=0 GRES=gpu:h100:2(IDX:0-1) MinCPUsNode=1"
    assert [has_gpus_on(f"{one}\n{two}\n", node) for node in ("g1", "g2", "g3")] == [False, True, False]
    assert not has_gpus_on("JobId=7 Nodes=g1 CPU_IDs=0 Mem=0 GRES=gpu:h100:0(IDX:) X", "g1")


def test_how_a_command_names_a_job():
    """By its own number alone it names all of an array, or a component, which is refused."""
    said = "7|7\n8|9_0\n9|9_2\n20|20+0\n21|20+1\n"
    assert parse_job_names(said) == {7: "7", 8: "9_0", 9: "9_2", 20: "20", 21: "20"}
    assert parse_job_names("") == {}
    for text in ("7", "squeue: error", "7|x", "7|7_[1-3]"):
        assert parse_job_names(text) is None

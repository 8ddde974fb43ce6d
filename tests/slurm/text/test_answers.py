"""What Slurm's programs print: text and JSON as 22.05.8 and 24.11.5 gave them."""

import json

import pytest

from partage.codec.values import CodecError
from partage.slurm.model import SlurmVersion
from partage.slurm.text.answers import parse_job_lines, parse_jobs, parse_node, parse_nodes, parse_settings

NODE = """\
NodeName=g1 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=3 CPUEfctv=16 CPUTot=16 CPULoad=1.31
   AvailableFeatures=h100
   Gres=gpu:h100_1g.10gb:2,gpu:h100:3
   NodeAddr=127.0.0.1 NodeHostName=vm Port=23155 Version=22.05.8
   OS=Linux 6.18.44 #1 SMP State=FAKE
   State=MIXED+DRAIN+INVALID_REG ThreadsPerCore=1 TmpDisk=0 Owner=N/A MCS_label=N/A
   BootTime=2026-11-22T15:41:00 SlurmdStartTime=2026-11-22T19:17:09
   Reason=partage agent: a b, State=c [x] [root@2026-11-22T19:17:11]
"""


def test_a_node():
    node = parse_node(NODE)
    assert node.name == "g1"
    assert node.flags == {"MIXED", "DRAIN", "INVALID_REG"}
    assert (node.drained, node.invalid, node.away) == (True, True, False)
    assert node.reason == "partage agent: a b, State=c [x]"
    assert node.reason_by == "root@2026-11-22T19:17:11"
    assert (node.gres, node.version) == ("gpu:h100_1g.10gb:2,gpu:h100:3", SlurmVersion(22, 5, 8))
    assert node.started_s == 1795375029
    assert node.features == ("h100",)
    assert parse_node(NODE.replace("AvailableFeatures=h100", "AvailableFeatures=(null)")).features == ()


@pytest.mark.parametrize(
    ("state", "flags", "away"),
    [
        ("IDLE", {"IDLE"}, False),
        ("IDLE*", {"IDLE", "NOT_RESPONDING"}, True),
        ("IDLE+NOT_RESPONDING", {"IDLE", "NOT_RESPONDING"}, True),
        ("DOWN*+DRAIN", {"DOWN", "DRAIN", "NOT_RESPONDING"}, True),
        ("IDLE*+DRAIN", {"IDLE", "DRAIN", "NOT_RESPONDING"}, True),
        ("MIXED+PLANNED", {"MIXED", "PLANNED"}, False),
        ("UNKNOWN+DRAIN", {"UNKNOWN", "DRAIN"}, True),
        ("UNKNOWN+DRAIN+INVALID_REG", {"UNKNOWN", "DRAIN", "INVALID_REG"}, False),
        ("DOWN+DRAIN", {"DOWN", "DRAIN"}, True),
        ("DOWN+DRAIN+INVALID_REG", {"DOWN", "DRAIN", "INVALID_REG"}, False),
    ],
)
def test_states(state, flags, away):
    """22.05.8, 24.11.5 and 26.05.5 show the same: after the start of slurmctld ``UNKNOWN`` until slurmd has
    registered; a slurmd that registers with too little memory changes only the flag."""
    node = parse_node(f"NodeName=n\n   Gres=(null)\n   State={state} Weight=1\n   SlurmdStartTime=None\n")
    assert node.flags == flags
    assert (node.away, node.gres, node.started_s) == (away, "", None)


def test_all_nodes():
    assert list(parse_nodes(f"{NODE}\n{NODE.replace('g1', 'g2')}\n")) == ["g1", "g2"]


@pytest.mark.parametrize("text", ["", "Node no not found\n", "{}"])
def test_what_is_no_node(text):
    with pytest.raises(CodecError):
        parse_node(text)


def test_settings():
    said = "Configuration data as of now\nGresTypes               = gpu,mps\n"
    said += "HASH_VAL = Different Ours=0x1 Slurmctld=0x2\n"
    found = parse_settings(said + "SLURM_CONF = /etc/slurm/slurm.conf\nSLURM_VERSION = 24.11.5\n")
    assert (found.version, found.gres_types) == (SlurmVersion(24, 11, 5), ("gpu", "mps"))
    assert (found.conf, found.differs) == ("/etc/slurm/slurm.conf", True)
    with pytest.raises(CodecError):
        parse_settings("GresTypes = gpu\n")


def _jobs(*rows):
    return parse_jobs(json.dumps({"jobs": rows}), "g2")


OLD = {
    "job_id": 7, "job_state": "RUNNING", "user_id": 1000, "user_name": "anna", "nodes": "g[1-2]",
    "name": "x\n   JobState=COMPLETED",
    "gres_detail": ["gpu:h100:1(IDX:0)", "gpu:h100_1g.10gb:2(IDX:1-2,5),gpu:h100:0(IDX:)"],
}  # fmt: skip


def test_a_job_of_several_nodes_holds_what_it_has_on_this_one():
    (job,) = _jobs(OLD)
    assert (job.job, job.uid, job.user, job.gpus, job.gres) == (
        7,
        1000,
        "anna",
        (1, 2, 5),
        "gpu:h100_1g.10gb:2",
    )
    assert job.holds_gpus
    assert job.cgroups == ("7",)
    (newer,) = _jobs({**OLD, "step_id": {"sluid": "s5K1KKYAYG5D00", "job_id": {"number": 7}}})
    assert (newer.job, newer.cgroups) == (7, ("s5K1KKYAYG5D00", "7")), "as 26.05.5 says it"
    assert job.name == "x\n   JobState=COMPLETED", "in JSON a name is one value, whatever is in it"


@pytest.mark.parametrize(
    ("detail", "gpus", "gres", "holds"),
    [
        (["mps:25(IDX:2)"], (2,), "mps:25", True),
        (["mps:50(0/100,50/100)"], (1,), "mps:50", True),
        (["shard:h100:4(4/4,0/4)"], (0,), "shard:h100:4", True),
        (["gpu:2(CNT:2)"], (), "gpu:2", True),
        ([], (), "", False),
        (["tmpdisk:5(CNT:5)"], (), "", False),
        (None, None, "", True),
    ],
)
def test_what_jobs_hold(detail, gpus, gres, holds):
    (job,) = _jobs({**OLD, "nodes": "g2", "job_state": ["RUNNING"], "gres_detail": detail})
    assert (job.gpus, job.gres, job.holds_gpus) == (gpus, gres, holds)


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        ("COMPLETING", True),
        (["COMPLETED", "COMPLETING"], True),
        (["SUSPENDED"], True),
        ("COMPLETED", False),
        (["PENDING"], False),
        ("CANCELLED", False),
    ],
)
def test_jobs_that_have_ended_hold_nothing(state, counts):
    assert bool(_jobs({**OLD, "job_state": state})) is counts


def test_jobs_of_other_nodes_do_not_count():
    assert _jobs({**OLD, "nodes": "g[3-4]"}) == ()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"jobs": 1}', "squeue: error"])
def test_no_json(content):
    with pytest.raises(CodecError):
        parse_jobs(content, "g1")


def test_without_json_every_job_may_hold_gpus():
    found = parse_job_lines("8|RUNNING|1000|anna\n7|COMPLETING|0|root\n6|PENDING|0|root\nnonsense\n")
    assert [(one.job, one.holds_gpus) for one in found] == [(7, True), (8, True)]

"""Jobs of Slurm: what a real 22.05.8 and 24.11.5 said of a node with two GPUs under MPS and a whole one.

The recordings are of jobs submitted in this order: mps:60 and gpu:h100:1 (both run), mps:60, mps:60,
gpu:h100:1, one that its user holds, one that begins later, one that depends on the first. On 22.05.8 the
third one runs, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.codec.values import CodecError
from partage.explain.decide.amounts import fewest
from partage.explain.decide.job import WORDS, JobVerdict, SlurmNow, explain_job, said_by_slurm
from partage.slurm.decide.node_view import live_view
from partage.slurm.model import HeldGres, JobId, LiveNode, QueuedJob
from partage.slurm.text.answers import parse_nodes, parse_queue, parse_settings

RECORDED = Path(__file__).parent / "recorded"


def recorded(version: str) -> SlurmNow:
    queue, nodes, config = (
        (RECORDED / f"{name}-{version}.{end}").read_text()
        for name, end in (("squeue", "json"), ("nodes", "txt"), ("config", "txt"))
    )
    return SlurmNow(parse_settings(config), parse_nodes(nodes), parse_queue(queue))


OLD, NEW = recorded("22.05.8"), recorded("24.11.5")


def verdict(now: SlurmNow, place: int) -> JobVerdict:
    return explain_job(now.queue[place], now)


@pytest.mark.parametrize("now", [OLD, NEW], ids=["22.05.8", "24.11.5"])
def test_what_the_queue_says(now: SlurmNow) -> None:
    first, whole, *_, later, after = now.queue
    assert (first.asks, whole.asks) == ("mps:60", "gpu:h100:1")
    assert first.holds == {"g1": (HeldGres("mps", 60, "mps:60", (1,)),)}
    assert whole.holds == {"g1": (HeldGres("gpu", 1, "gpu:h100:1", (0,)),)}
    assert (first.reason, first.waits, first.user) == ("", False, "root")
    assert (later.reason, later.begins_s is not None) == ("BeginTime", True)
    assert after.dependency == f"afterok:{first.job}(unfulfilled)"
    assert live_view(now.nodes["g1"]).shares == {"mps": (0, 100, 100)}


def test_who_has_to_end_for_shares() -> None:
    found = verdict(OLD, 3)
    (node,) = found.nodes
    assert (found.standing, node.jobs) == ("waits", (OLD.queue[0].job,))
    assert found.why == "g1: 60 of mps of one GPU are asked for, and at most 40 are free on one"
    assert found.todo == f"wait until job {OLD.queue[0].job} has ended, or end it (scancel)"
    assert [gpu.why for gpu in node.gpus] == [
        "it is gpu:h100, without mps",
        f"40 of 100 mps is free; held by job {OLD.queue[0].job} (root, mps:60)",
        f"40 of 100 mps is free; held by job {OLD.queue[2].job} (root, mps:60)",
    ]


def test_who_has_to_end_for_a_whole_gpu() -> None:
    found = verdict(OLD, 4)
    assert f"before it in partition all: {OLD.queue[3].job}" in found.why
    (node,) = found.nodes
    assert node.why == "1 x gpu:h100 is asked for, and 0 is free"
    assert node.jobs == (OLD.queue[1].job,)


def test_free_gpus_that_slurm_does_not_use() -> None:
    """24.11.5 used one GPU for mps at a time, because the whole GPU had no line of mps with all_sharing."""
    found = verdict(NEW, 2)
    assert "GPUs that it asks for are free on g1" in found.why
    assert "Slurm uses one GPU of the node at a time for mps" in found.why
    assert "Flags=all_sharing, or a line of mps with Count=0 for the GPUs without mps" in found.todo


@pytest.mark.parametrize(
    ("place", "why", "todo"),
    [
        (5, "its user holds it back", "scontrol release"),
        (6, "it may not begin before", "starttime=now"),
        (7, "another job has to end first: afterok:", "dependency="),
    ],
)
def test_words_of_slurm(place: int, why: str, todo: str) -> None:
    for now in (OLD, NEW):
        found = verdict(now, place)
        assert found.why.startswith(why)
        assert todo in found.todo
        assert "{" not in found.todo


def test_a_request_that_waits_for_ever_and_those_behind_it() -> None:
    never = QueuedJob(JobId(1), "PENDING", "Resources", "ann", "all", asks="mps:150")
    behind = QueuedJob(JobId(2), "PENDING", "Priority", "bob", "all", asks="mps:10")
    elsewhere = replace(behind, partition="other")
    now = replace(OLD, queue=(never, behind, elsewhere))
    found = explain_job(never, now)
    assert found.standing == "never"
    assert "waits for ever" in found.why
    assert "ask for mps:100 at most" in found.todo
    found = explain_job(behind, now)
    assert "job 1 of ann is before it in partition all, and waits for ever" in found.why
    assert "scancel 1" in found.todo
    assert "waits for ever" not in explain_job(elsewhere, now).why


@pytest.mark.parametrize(
    ("flags", "why", "todo"),
    [
        ({"IDLE", "DRAIN"}, "it is drained and takes no new jobs: a fan", "state=resume"),
        ({"DOWN"}, "its slurmd does not answer", "repair the node"),
        ({"IDLE", "INVALID_REG"}, "less than slurm.conf says", "slurm check --live"),
    ],
)
def test_nodes_that_take_no_jobs(flags: set[str], why: str, todo: str) -> None:
    node = LiveNode("g1", frozenset(flags), "a fan", gres="gpu:h100:2")
    job = QueuedJob(JobId(1), "PENDING", "Resources", asks="gpu:h100:2")
    found = explain_job(job, replace(OLD, nodes={"g1": node}, queue=(job,)))
    assert why in found.why
    assert todo in found.todo


def test_the_node_where_fewest_jobs_have_to_end_is_named_first() -> None:
    job = QueuedJob(JobId(9), "PENDING", "Resources", asks="gpu:2")
    nodes = {name: LiveNode(name, frozenset({"MIXED"}), gres="gpu:2") for name in ("g1", "g2")}

    def holder(number: int, node: str, *indexes: int) -> QueuedJob:
        held = HeldGres("gpu", len(indexes), f"gpu:{len(indexes)}", indexes)
        return QueuedJob(JobId(number), "RUNNING", nodes=(node,), holds={node: (held,)})

    queue = (holder(1, "g1", 0), holder(2, "g1", 1), holder(3, "g2", 0, 1), job)
    found = explain_job(job, replace(OLD, nodes=nodes, queue=queue))
    assert [(node.name, node.jobs) for node in found.nodes] == [("g2", (3,)), ("g1", (2, 1))]


def test_every_word_has_a_next_step() -> None:
    for reason in (*WORDS, "AssocGrpGRES", "QOSMaxGRESPerUser", "SomethingNew"):
        word = said_by_slurm(reason)
        assert word is not None
        assert word.why
        assert word.todo
    assert "limit" in str(said_by_slurm("QOSMaxGRESPerUser"))
    assert said_by_slurm("Resources") is None


def test_answers_that_are_none() -> None:
    for text in ("", "{}", "[]", '{"jobs": 1}'):
        with pytest.raises(CodecError):
            parse_queue(text)
    assert parse_queue('{"jobs": [1, {"job_id": 2, "job_state": "COMPLETED"}]}') == ()


@pytest.mark.parametrize(
    ("counts", "missing", "expected"),
    [
        ({"a": 1, "b": 3}, 2, ("b",)),
        ({"a": 1, "b": 2, "c": 2}, 4, ("c", "b")),
        ({"a": 1}, 2, None),
        ({}, 0, ()),
    ],
)
def test_fewest(counts: Mapping[str, int], missing: int, expected: tuple[str, ...] | None) -> None:
    assert fewest(counts, missing) == expected

"""``partage simulate --trace --placement``: how much of a cluster pods get, by the way to choose nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from partage.cli.main import run
from partage.plan.placement.mix import WHOLE_MILLI, PodType
from partage.plan.placement.room import Room
from partage.whatif.decide.placements import PlacementPolicy, arrivals, place_all

THIRDS = [PodType(4000, 1024, 1, 340)] * 6 + [PodType(8000, 1024, 1, WHOLE_MILLI)] * 3 + [PodType(2000, 1024)]
BIG = [PodType(32_000, 1024, 4, WHOLE_MILLI)]


def node(gpus: int, model: str = "a", cpu: int = 64_000) -> Room:
    return Room(model, cpu, 10**6, [WHOLE_MILLI] * gpus, cpu, 10**6)


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_what_is_given_is_what_was_asked_until_the_cluster_is_full(policy: PlacementPolicy) -> None:
    rooms = [node(4) for _ in range(12)]
    seen: list[tuple[int, int]] = []
    placed = place_all(
        policy,
        THIRDS + BIG,
        rooms,
        load=140,
        seed=1,
        on_progress=lambda done, count: seen.append((done, count)),
    )
    allocation = placed.allocation
    assert allocation[20] == pytest.approx(20, abs=0.5)
    assert all(given <= min(100, load + 0.5) for load, given in allocation.items())
    assert list(allocation.values()) == sorted(allocation.values())
    assert list(allocation) == list(range(max(allocation) + 1))
    assert max(allocation) in range(136, 141)
    assert seen[-1] == (placed.pods, placed.pods)
    assert 0 < placed.placed < placed.pods
    assert all(room.left == [WHOLE_MILLI] * 4 for room in rooms)
    assert place_all(policy, THIRDS + BIG, rooms, load=140, seed=1) == placed


def test_the_extender_leaves_more_room_than_kube_scheduler_alone() -> None:
    """Pods of four GPUs need nodes that are free: kube-scheduler spreads small pods over all of them."""
    rooms = [node(4) for _ in range(60)]
    given = {
        policy: place_all(policy, THIRDS + BIG * 2, rooms, load=100, seed=3).allocation[100]
        for policy in PlacementPolicy
    }
    assert given[PlacementPolicy.SSP] > given[PlacementPolicy.STOCK] + 3
    assert given[PlacementPolicy.SSP_EXACT] >= given[PlacementPolicy.FGD] - 0.1


def test_today_begins_with_the_pods_where_they_are() -> None:
    """Two nodes of two GPUs, and on each of them one GPU is taken by halves: the pod of two fits nowhere."""
    pods = [PodType(1000, 1, 1, 500)] * 2 + [
        PodType(1000, 1, 1, WHOLE_MILLI),
        PodType(1000, 1, 2, WHOLE_MILLI),
    ]
    rooms = [node(2) for _ in range(2)]
    today = place_all(PlacementPolicy.TODAY, pods, rooms, load=100, seed=0, today={0: 0, 1: 1})
    assert next(iter(today.allocation.items())) == (25, 25)
    assert (today.allocation[100], today.placed, today.pods, today.elsewhere) == (50, 3, 4, 0)
    best = place_all(PlacementPolicy.SSP_EXACT, pods, rooms, load=100, seed=0)
    assert best.allocation[100] == 100
    # Nothing of the node is given twice: who finds no room there comes later.
    full = place_all(PlacementPolicy.TODAY, pods, rooms, load=100, seed=0, today=dict.fromkeys(range(4), 0))
    assert (full.elsewhere, full.placed) == (1, 4)


def test_pods_get_only_models_that_they_may_have() -> None:
    named = PodType(4000, 1024, 1, WHOLE_MILLI, frozenset({"b"}))
    placed = place_all(PlacementPolicy.SSP, [named], [node(1, "a"), node(1, "b")], load=100, seed=0)
    assert (placed.pods, placed.placed) == (2, 1)
    assert (placed.allocation[49], placed.allocation[50], placed.allocation[100]) == (0, 50, 50)


def test_the_same_seed_gives_the_same_order_on_each_machine() -> None:
    pods = [PodType(0, 0, 1, 100 * size) for size in range(1, 11)]
    order, nodes = arrivals(pods, 4, 9000, 7)
    # Of Python's own generator, which is the same in each version.
    assert order == [8, 3, 1, 4, 7, 0, 9, 6, 2, 5, 8, 3, 0, 1, 6, 6, 1]
    assert nodes == [3, 1, 2, 0]
    fewer, _ = arrivals(pods, 4, 1000, 7)
    assert sum(pods[number].demand for number in fewer) <= 1000


PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec",
    "a,4000,1024,1,500,",
    "b,8000,1024,1,1000,T4",
    "c,1000,1024,0,0,",
)
NODES = ("sn,cpu_milli,memory_mib,gpu,model", "n1,64000,262144,2,T4", "n2,64000,262144,4,G2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pods.csv").write_text("\n".join(PODS) + "\n")
    (tmp_path / "nodes.csv").write_text("\n".join(NODES) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(*more: str) -> int:
    return run(["simulate", "--trace", "pods.csv", *more])


def answer(capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    assert ask("--nodes", "nodes.csv", "--placement", "ssp", *more, "-o", "json") == 0
    return json.loads(capsys.readouterr().out)


def test_policies_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--placement", "stock", "--load", "80", "--plot", "curve.svg")
    assert (found["kind"], found["load"], found["fleet"]) == ("Placements", 80, {"nodes": 2, "gpus": 6})
    ssp, stock = found["placements"]
    assert (ssp["placement"], stock["placement"]) == ("ssp", "stock")
    # Of the two whole pods on a T4 one finds a half pod there.
    assert (found["pods"], ssp["placed"]) == (7, 6)
    assert (ssp["allocation"]["8"], ssp["allocation"]["60"], ssp["allocation"]["67"]) == (8.33, 50, 50)
    assert "<svg" in (folder / "curve.svg").read_text()


def test_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--nodes", "nodes.csv", "--placement", "bestfit") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "pods like those of pods.csv on 2 nodes with 6 GPUs" in text
    assert "GPUs that pods asked for bestfit" in text


@pytest.mark.parametrize(
    ("file", "lines", "said"),
    [
        ("nodes.csv", ("sn,gpu,model", "n1,2,T4"), "no cpu_milli or no memory_mib of n1"),
        ("pods.csv", (PODS[0], PODS[3]), "no pod asks for a GPU"),
        (
            "pods.csv",
            ("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_memory_mib", "m,1,1,1,0,4096"),
            "--placement plays thousandths of GPUs",
        ),
    ],
)
def test_what_cannot_be_placed_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, lines: tuple[str, ...], said: str
) -> None:
    (folder / file).write_text("\n".join(lines) + "\n")
    assert ask("--nodes", "nodes.csv", "--placement", "ssp") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert said in error
    assert file in error


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (PODS, "says of no pod that runs on which node it is"),
        (
            (f"{PODS[0]},node", *(f"{line},n9" for line in PODS[1:])),
            "nodes.csv does not name, a on n9 for one",
        ),
    ],
)
def test_today_needs_the_node_of_pods(
    folder: Path, capsys: pytest.CaptureFixture[str], lines: tuple[str, ...], said: str
) -> None:
    (folder / "pods.csv").write_text("\n".join(lines) + "\n")
    assert ask("--nodes", "nodes.csv", "--placement", "today") == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "more",
    [
        ("--placement", "ssp"),
        ("--placement", "best", "--nodes", "nodes.csv"),
        ("--placement", "ssp", "--nodes", "nodes.csv", "--policy", "x.yaml"),
    ],
)
def test_options_that_do_not_go_together(folder: Path, more: tuple[str, ...]) -> None:
    assert ask(*more) == 2

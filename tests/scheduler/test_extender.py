"""The protocol of extenders, and what the extender knows of a cluster, told of objects in any order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from partage.plan.placement.room import NO
from partage.scheduler.decide.node_scores import ExtenderPolicy
from partage.units import GIB
from tests.scheduler.feeding import Fed
from tests.scheduler.objects import DRIVER, MEMORY, claim, device, node, pod, slices

N = [f"n{number}" for number in range(4)]


def fed(**more: Any) -> Fed:
    """Four nodes of two GPUs; on n1 half of a GPU is taken, on n3 everything."""
    found = Fed(more.pop("policy", ExtenderPolicy.SSP))
    taken = [
        claim("half", 1, MEMORY // 2, given={"n1": ["gpu-0"]}, consumed={"memory": MEMORY // 2}),
        claim("all", 2, MEMORY, given={"n3": ["gpu-0", "gpu-1"]}, consumed={"memory": MEMORY}),
    ]
    here = [pod("a", 4000, claims=["half"], on="n1"), pod("b", 4000, claims=["all"], on="n3")]
    found.start(
        nodes=[node(name) for name in N],
        slices=[slices(name, [device(0), device(1)]) for name in N],
        claims=[*taken, *more.pop("claims", ())],
        pods=[*here, *more.pop("pods", ())],
        **more,
    )
    return found


HALF = claim("mine", 1, MEMORY // 2)
WAITS = pod("w", 4000, claims=["mine"])


def test_the_node_with_the_hole_of_the_right_size_is_best() -> None:
    one = fed(claims=[HALF], pods=[WAITS])
    assert one.extender.waits_for == ()
    ranks = one.ranks(WAITS, N)
    assert ranks["n1"] == 10
    assert ranks["n0"] == ranks["n2"] < 10
    assert ranks["n3"] == 0
    assert one.scores(WAITS, N)[3] == NO


@pytest.mark.parametrize(("policy", "best"), [("bestfit", {"n1"}), ("spread", {"n0", "n2"})])
def test_other_policies(policy: str, best: set[str]) -> None:
    ranks = fed(policy=ExtenderPolicy(policy), claims=[HALF], pods=[WAITS]).ranks(WAITS, N)
    assert {name for name, rank in ranks.items() if rank == 10} == best


ODD = 'od","d\\'
NODE_LIST = {"items": [{"metadata": {"name": name, "labels": None}, "status": {"images": []}} for name in N]}


@pytest.mark.parametrize(
    ("body", "hosts"),
    [
        ({"Pod": WAITS, "Nodes": None, "NodeNames": N}, N),
        ({"Pod": WAITS, "Nodes": NODE_LIST, "NodeNames": None}, N),
        ({"Pod": WAITS, "Nodes": NODE_LIST}, N),
        ({"Pod": WAITS, "Nodes": NODE_LIST, "NodeNames": ["n2"]}, ["n2"]),
        ({"Pod": WAITS, "NodeNames": []}, []),
        ({"Pod": WAITS, "Nodes": {"items": None}}, []),
        ({"Pod": WAITS, "NodeNames": ["n1", "n1", "n0"]}, ["n1", "n0"]),
        ({"Pod": WAITS, "NodeNames": ["n1", "unheard", ODD, "n0"]}, ["n1", "unheard", ODD, "n0"]),
        ({"Pod": WAITS, "NodeNames": [f"x{number}" for number in range(5000)]}, None),
        ({"Pod": {"metadata": {}}, "NodeNames": N}, N),
        ({"Pod": {"metadata": {"name": None}}, "NodeNames": N}, 400),
        ({"Pod": pod("p", claims=["unheard"]), "NodeNames": N}, N),
        ({"Pod": pod("p", nvidia_com__gpu="1e99"), "NodeNames": N}, N),
        ({"Pod": None, "NodeNames": N}, 400),
        ({"NodeNames": N}, 400),
        ({"Pod": WAITS, "Nodes": None, "NodeNames": None}, 400),
        ({"Pod": WAITS, "NodeNames": "n1"}, 400),
        ({"Pod": WAITS, "NodeNames": ["n1"] * 20_001}, 400),
        ({"pod": WAITS, "nodenames": N}, 400),
        (None, 400),
        ([], 400),
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_kube_scheduler_or_anybody_says(body: Any, hosts: Any) -> None:
    status, answer = fed(claims=[HALF]).post(body)
    if hosts == 400:
        assert status == 400
        assert list(answer) == ["error"]
        return
    assert status == 200
    names = body["NodeNames"] if hosts is None else hosts
    assert [row["Host"] for row in answer] == names
    assert all(set(row) == {"Host", "Score"} and row["Score"] in range(11) for row in answer)


def test_a_claim_that_is_not_known_makes_all_nodes_equal_until_it_is() -> None:
    one = fed(pods=[WAITS])
    assert set(one.ranks(WAITS, N).values()) == {0}
    one.put("claims", HALF)
    assert one.ranks(WAITS, N)["n1"] == 10


def test_what_ends_is_given_back_in_any_order() -> None:
    one = fed(claims=[HALF], pods=[WAITS])
    one.remove("claims", "team/half")
    one.remove("pods", "team/a")
    assert len({*one.scores(WAITS, ["n0", "n1", "n2"])}) == 1
    one.remove("nodes", "n1")
    assert one.scores(WAITS, ["n1"]) == [NO]
    one.put("slices", slices("n9", [device(0)]))
    assert one.scores(WAITS, ["n9"]) == [NO]
    one.put("nodes", node("n9"))
    assert one.scores(WAITS, ["n9"])[0] > NO


def test_a_device_that_is_closed_counts_as_full_and_a_newer_generation_replaces() -> None:
    one = fed(claims=[claim("mine", 2, MEMORY)])
    assert one.scores(WAITS, ["n0"])[0] > NO
    taint: dict[str, Any] = {"taints": [{"key": f"{DRIVER}/cordoned", "effect": "NoSchedule"}]}
    one.put("slices", slices("n0", [device(0), device(1, **taint)], generation=2))
    assert one.scores(WAITS, ["n0"]) == [NO]
    one.put("slices", slices("n0", [device(0), device(1)], generation=3))
    assert one.scores(WAITS, ["n0"])[0] > NO


def test_amounts_are_shares_of_each_models_memory() -> None:
    """10 GiB fit eight times on one model, and twice on the other."""
    one = Fed()
    small = [device(0, "S", memory=20 * GIB)]
    one.start(
        nodes=[node("big"), node("small")],
        slices=[slices("big", [device(0, "B", memory=80 * GIB)]), slices("small", small)],
        claims=[
            claim("mine", 1, 15 * GIB),
            claim("x", given={"small": ["gpu-0"]}, consumed={"memory": 10 * GIB}),
        ],
        pods=[WAITS],
    )
    scores = one.scores(WAITS, ["big", "small"])
    assert scores[0] > NO
    assert scores[1] == NO
    one.put("claims", claim("mine", 1, 10 * GIB))
    assert min(one.scores(WAITS, ["big", "small"])) > NO


def test_shares_whole_gpus_and_units_of_the_device_plugin() -> None:
    one = Fed()
    one.start(
        nodes=[node("s"), node("w"), node("p", nvidia_com__gpu="2"), node("m", nvidia_com__mem="160")],
        slices=[slices("s", [device(0, mode="replicas")]), slices("w", [device(0, mode="whole")])],
        claims=[
            claim("share", device_class="share.partage.dev"),
            claim("whole"),
            claim("a", given={"s": ["gpu-0"]}, consumed={"shares": 3}),
        ],
    )
    all_ = ["s", "w", "p", "m"]

    def fitting(asks: dict[str, Any]) -> set[str]:
        scores = one.scores(asks, all_)
        return {name for name, score in zip(all_, scores, strict=True) if score > NO}

    # Where a pod can have no kind of a node at all, kube-scheduler does not ask; its CPUs are scored.
    assert fitting(pod("x", claims=["share"])) >= {"s"}
    one.put("claims", claim("b", given={"s": ["gpu-0"]}, consumed={"shares": 1}))
    assert "s" not in fitting(pod("x", claims=["share"]))
    assert "w" in fitting(pod("x", claims=["whole"]))
    one.put("claims", claim("c", given={"w": ["gpu-0"]}))
    assert "w" not in fitting(pod("x", claims=["whole"]))
    two, big = pod("x", nvidia_com__gpu="2"), pod("y", nvidia_com__mem="100")
    assert "p" in fitting(two)
    one.put("pods", pod("r", nvidia_com__gpu="1", on="p"))
    assert "p" not in fitting(two)
    assert "m" in fitting(big)
    one.put("pods", pod("r2", nvidia_com__mem="100", on="m"))
    assert "m" not in fitting(big)


def test_pods_of_daemonsets_are_no_part_of_the_mix() -> None:
    one = Fed()
    one.start(
        nodes=[node(name) for name in N],
        slices=[slices(name, [device(0, "AB"[number % 2])]) for number, name in enumerate(N)],
        claims=[claim("named", 1, MEMORY, products=["A"])],
        pods=[pod("w", 4000, claims=["named"]), *(pod(f"d{n}", 100, owner="DaemonSet") for n in range(50))],
    )
    # Beside the one pod, 2, 4 and 8 GPUs have a floor.
    assert (one.extender.mix.pods, one.extender.mix.types) == (1, 4)


def test_before_any_pod_is_known_the_fullest_node_is_best() -> None:
    """By tables of no pods, all that is left of a GPU is of no use: these nodes would be alike."""
    one = Fed()
    quarters = {"n0": (1, 1), "n1": (3, 1)}  # of each GPU, taken
    taken = [
        claim(
            f"{on}-{gpu}",
            memory=count * MEMORY // 4,
            given={on: [f"gpu-{gpu}"]},
            consumed={"memory": count * MEMORY // 4},
        )
        for on, counts in quarters.items()
        for gpu, count in enumerate(counts)
    ]
    one.start(
        nodes=[node(name) for name in quarters],
        slices=[slices(name, [device(0), device(1)]) for name in quarters],
        claims=[HALF, *taken],
        pods=[pod(f"d{name}", 4000, on=name, owner="DaemonSet") for name in quarters],
    )
    assert (one.extender.mix.version, one.extender.mix.pods) == (1, 0)
    ranks = one.ranks(WAITS, list(quarters))
    assert ranks["n1"] == 10 > ranks["n0"]
    before = one.scores(WAITS, list(quarters))
    # Once some are known they count.
    one.put("pods", *(pod(f"first{number}", 4000, claims=["mine"]) for number in range(10)))
    one.extender.turn()
    assert (one.extender.mix.version, one.extender.mix.pods) == (2, 10)
    assert one.scores(WAITS, list(quarters)) != before


def test_tables_are_made_again_when_the_mix_moved_and_only_then() -> None:
    one = fed(claims=[HALF], pods=[WAITS])
    assert one.extender.mix.version == 1
    one.now_s += 61
    one.extender.turn()
    assert one.extender.mix.version == 1
    one.put("pods", *(pod(f"more{number}", 8000, claims=["mine"]) for number in range(5)))
    one.extender.turn()
    assert one.extender.mix.version == 1
    one.now_s += 61
    one.extender.turn()
    assert (one.extender.mix.version, one.extender.mix.pods) == (2, 8)
    # Twice as many: those before were too few to know the mix.
    one.put("pods", *(pod(f"many{number}", 2000, claims=["mine"]) for number in range(20)))
    one.extender.turn()
    assert (one.extender.mix.version, one.extender.mix.pods) == (3, 28)
    # A model that is new cannot be scored by old tables.
    one.put("nodes", node("n7"))
    one.put("slices", slices("n7", [device(0, "new")]))
    assert one.scores(WAITS, ["n7"]) == [NO]
    one.extender.turn()
    assert one.extender.mix.version == 4
    assert one.scores(WAITS, ["n7"])[0] > NO


def test_devices_under_nvidias_names_and_without_those_on_demand() -> None:
    """No attribute says how such a device is shared; capacities do."""
    one = Fed(driver="gpu.nvidia.com")
    text = json.dumps(slices("n0", [device(0), device(1, mode="replicas"), device(2, mode="whole")]))
    named = json.loads(text.replace(DRIVER, "gpu.nvidia.com"))
    demand = {**device(3, mode="whole"), "consumesCounters": [{"counterSet": "a", "counters": {}}]}
    for found in (*named["spec"]["devices"], demand):
        found["attributes"].pop("mode")
    named["spec"]["devices"].append(demand)
    one.start(nodes=[node("n0")], slices=[named])
    models = [room.kind.model for room in one.extender._board.rooms_of("n0") if room.kind]
    assert models == [f"A/memory-{MEMORY}", "A/shares-4", "A/whole"]
    assert [len(room.room.left) for room in one.extender._board.rooms_of("n0")] == [1, 1, 1]


def test_until_all_is_listed_all_nodes_are_equal() -> None:
    one = Fed()
    assert one.post({"Pod": WAITS, "NodeNames": N})[1] == [{"Host": name, "Score": 0} for name in N]
    assert "nodes: the API server has not answered yet" in one.extender.waits_for


def test_hostile_objects_end_nothing() -> None:
    one = fed(claims=[HALF], pods=[WAITS])
    bad = slices("n0", [{**device(0), "capacity": {"memory": {"value": "0"}}}, {**device(1), "capacity": {}}])
    one.put("slices", bad)
    one.put("slices", {"metadata": {"name": "all-nodes"}, "spec": {"driver": DRIVER, "allNodes": True}})
    one.put(
        "claims", {"metadata": {"name": "z", "namespace": "team"}, "spec": {"devices": {"requests": [7]}}}
    )
    odd = claim("y", given={"n1": ["gpu-0"]}, consumed={"memory": 1})
    odd["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] = {"memory": "much"}
    one.put("claims", odd)
    assert one.ranks(WAITS, N)["n1"] == 10
    assert json.dumps(one.post({"Pod": pod("p", claims=["z"]), "NodeNames": N})[1])


def test_metrics_have_the_histogram_and_the_mix() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    from partage.serve_http.metrics.exposition import write

    one = fed(claims=[HALF], pods=[WAITS])
    one.ranks(WAITS, N)
    one.post(b"{")
    text = write(one.extender.families(), openmetrics=False).decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert found["partage_extender_seconds"].type == "histogram"
    samples = {(s.name, *s.labels.values()): s.value for f in found.values() for s in f.samples}
    assert samples["partage_extender_seconds_count",] == 2
    assert samples["partage_extender_seconds_bucket", "+Inf"] == 2
    assert samples["partage_extender_requests_total", "scored"] == 1
    assert samples["partage_extender_requests_total", "refused"] == 1
    assert samples["partage_extender_mix_version",] == 1
    assert samples["partage_extender_mix_age_seconds",] == 0
    assert samples["partage_extender_following",] == 1

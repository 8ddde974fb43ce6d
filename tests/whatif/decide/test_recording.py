"""A cluster as a trace and a fleet: what is in them, what is left out, and that the readers read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.translate import need_of
from partage.kubernetes.decide.node_rules import LabelRule, NodeRules, Toleration
from partage.model.pod import ScheduledPod
from partage.units import GIB, MIB
from partage.whatif.decide.gpu_amounts import GpuNode
from partage.whatif.decide.recording import ClusterRecording, PodRecord, TraceLine, recording_of
from partage.whatif.fleet import read_fleet
from partage.whatif.pod_trace import read_pod_trace
from partage.whatif.verb_record import nodes_csv, pods_csv
from tests.admission.pods import container, pod

A100, L4 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-L4"
PRODUCT = "nvidia.com/gpu.product"
ONE_GPU = (("nvidia.com/gpu", 1),)


def node(name: str, model: str = A100, gpus: int = 4, gib: int = 80, **more: Any) -> GpuNode:
    labels = {PRODUCT: model, "zone": name[-1], **more.pop("labels", {})}
    units = {"nvidia.com/gpu": gpus}
    return GpuNode(name, model, gpus, 64_000, 200_000, gib * GIB, units, labels=labels, **more)


NODES = (node("big-a"), node("big-b"), node("small-c", L4, 1, 24))


def a_pod(name: str, on: str = "", devices: tuple[tuple[str, int], ...] = ONE_GPU, **more: Any) -> PodRecord:
    owner = more.pop("owner", "ReplicaSet")
    made = ScheduledPod(
        cpu_milli=4000, memory_mib=1024, namespace="team", name=name, uid=f"uid-{name}", node=on,
        devices=devices, owner=owner,
    )  # fmt: skip
    return PodRecord(made, **more)


def recorded(*pods: PodRecord, nodes: tuple[GpuNode, ...] = NODES, **more: Any) -> ClusterRecording:
    return recording_of(pods, nodes, {}, **more)


def line(*pods: PodRecord, **more: Any) -> TraceLine:
    (found,) = recorded(*pods, **more).lines
    return found


def test_names_are_numbers_in_the_order_of_creation_unless_they_are_kept() -> None:
    pods = a_pod("late", "small-c", created_s=90.0, bound_s=95.4), a_pod("early", created_s=30.0)
    found = recorded(*pods)
    assert [(one.name, one.node, one.created_s, one.bound_s) for one in found.lines] == [
        ("pod-1", "", 0, None),
        ("pod-2", "node-3", 60, 65),
    ]
    assert [one.name for one in found.nodes] == ["node-1", "node-2", "node-3"]
    written = pods_csv(found.lines) + nodes_csv(found.nodes)
    assert not any(word in written for word in ("team", "late", "early", "big", "small"))
    kept = recorded(*pods, keep_names=True)
    assert [(one.name, one.node) for one in kept.lines] == [("team/early", ""), ("team/late", "small-c")]
    assert [one.name for one in kept.nodes] == ["big-a", "big-b", "small-c"]


def test_what_belongs_to_a_node_is_taken_from_it() -> None:
    found = recorded(
        a_pod("exporter", "big-a", (), owner="DaemonSet"),
        a_pod("static", "big-a", (), owner="Node"),
        a_pod("gone", "big-a", (), owner="DaemonSet", ended=True),
        a_pod("web", "big-b", ()),
    )
    assert [(one.cpu_milli, one.memory_mib) for one in found.nodes[:2]] == [
        (56_000, 197_952),
        (64_000, 200_000),
    ]
    assert [(one.node, one.asks.gpus, one.asks.models) for one in found.lines] == [("node-2", 0, frozenset())]
    assert not found.left_out


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (a_pod("p", "elsewhere"), "on a node that is not recorded"),
        (a_pod("p", "", ()), "waiting and asking for no GPU, with no node to be recorded on"),
        (a_pod("p", wrong="gpu-memory is 0"), "with words that cannot be meant: gpu-memory is 0"),
        (a_pod("p", waits_for_claims=True), "waiting for a ResourceClaim that is not there yet"),
        (a_pod("p", rules=NodeRules((("zone", "x"),))), "allowed on none of the nodes"),
        (
            a_pod("p", devices=(("nvidia.com/gpu.shared", 1),)),
            "asking for nvidia.com/gpu.shared, which no allowed node lists",
        ),
    ],
)
def test_what_is_left_out_and_why(record: PodRecord, why: str) -> None:
    found = recorded(record, a_pod("other", "big-a"))
    assert (len(found.lines), found.left_out) == (1, {why: 1})


TAINT = ("nvidia.com/gpu", "", "NoSchedule")


@pytest.mark.parametrize(
    ("rules", "models", "by_labels"),
    [
        (NodeRules(), (), 0),
        (NodeRules(((PRODUCT, L4),)), (L4,), 0),
        (NodeRules(affinity=((LabelRule(PRODUCT, "In", (A100, "H100")),),)), (A100,), 0),
        (NodeRules(affinity=((LabelRule("zone", "In", ("a",)),), (LabelRule("zone", "In", ("c",)),))), (), 1),
        (NodeRules((("zone", "b"),)), (A100,), 1),
    ],
)
def test_models_that_a_pod_may_have(rules: NodeRules, models: tuple[str, ...], by_labels: int) -> None:
    found = recorded(a_pod("p", rules=rules))
    assert found.lines[0].asks.models == {*models}
    assert sum("choosing nodes by more" in note for note in found.notes) == by_labels


def test_a_taint_keeps_a_model_from_who_does_not_tolerate_it() -> None:
    nodes = node("big-a", taints=(TAINT,)), node("small-c", L4, 1, 24)
    assert line(a_pod("p"), nodes=nodes).asks.models == {L4}
    tolerant = NodeRules(tolerations=(Toleration("nvidia.com/gpu", "Exists"),))
    assert line(a_pod("p", rules=tolerant), nodes=nodes).asks.models == frozenset()


def of_hami(memory_mib: int, **annotations: str) -> Any:
    asked = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory_mib}
    document = pod(container(asked), annotations=dict(annotations))
    return need_of(document, DialectSettings())


def test_an_amount_of_memory_is_a_part_of_the_gpus_where_it_is() -> None:
    here = recorded(a_pod("p", "small-c", (), need=of_hami(6 * 1024)))
    assert (here.lines[0].asks.milli, here.lines[0].asks.models) == (250, frozenset({L4}))
    assert sum("another part of other GPUs" in note for note in here.notes) == 1
    # One that waits is counted by the first node that would do.
    large = line(a_pod("p", need=of_hami(40 * 1024)))
    assert (large.asks.milli, large.asks.models) == (500, frozenset({A100}))
    alike = line(a_pod("p", need=of_hami(40 * 1024)), nodes=NODES[:2])
    assert (alike.asks.milli, alike.asks.models) == (500, frozenset())
    only = line(a_pod("p", need=of_hami(1024, **{"nvidia.com/use-gputype": "L4"})))
    assert (only.asks.milli, only.asks.models) == (41, frozenset({L4}))


def test_a_pod_that_has_ended_has_its_times_in_order() -> None:
    """Times of the API server are whole seconds, and an evicted pod has none of its containers."""
    early = a_pod("early", created_s=100.0)
    odd = a_pod("odd", "big-a", created_s=105.0, bound_s=104.0, ended_s=103.0, ended=True)
    never = a_pod("never", created_s=106.0, ended=True)
    ends = [(one.created_s, one.bound_s, one.ended_s) for one in recorded(early, odd, never).lines]
    assert ends == [(0, None, None), (5, 5, 5), (6, None, 6)]


models = st.sampled_from([A100, L4])
pods_of_any_kind = st.lists(
    st.builds(
        lambda number, where, count, times, owner, rules, ended: a_pod(
            f"p{number}",
            where,
            (("nvidia.com/gpu", count),) if count else (),
            owner=owner,
            rules=rules,
            created_s=times[0],
            bound_s=times[1],
            ended_s=times[2],
            ended=ended,
        ),
        st.integers(0, 99),
        st.sampled_from(["", "big-a", "small-c", "elsewhere"]),
        st.integers(0, 8),
        st.tuples(st.floats(0, 1e9), st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 1e9)),
        st.sampled_from(["", "Job", "DaemonSet"]),
        st.builds(lambda model: NodeRules(((PRODUCT, model),)), models) | st.just(NodeRules()),
        st.booleans(),
    ),
    max_size=12,
)


@given(pods_of_any_kind, st.booleans())
def test_the_readers_read_what_was_recorded(tmp_path_factory: Any, pods: list[PodRecord], keep: bool) -> None:
    found = recorded(*pods, keep_names=keep)
    folder: Path = tmp_path_factory.mktemp("recording")
    (folder / "NODES.csv").write_text(nodes_csv(found.nodes))
    rows = read_fleet(folder / "NODES.csv")
    assert [(row.name, row.gpus, row.model, row.cpu_milli, row.memory_bytes) for row in rows] == [
        (one.name, one.gpus, one.model, one.cpu_milli, one.memory_mib * MIB) for one in found.nodes
    ]
    own = [one for one in pods if one.pod.owner == "DaemonSet"]
    assert len(found.lines) + sum(found.left_out.values()) == len(pods) - len(own)
    if not found.lines:
        return
    (folder / "PODS.csv").write_text(pods_csv(found.lines))
    read = read_pod_trace(folder / "PODS.csv")
    for one, trace in zip(found.lines, read, strict=True):
        wants = trace.wants
        assert (trace.name, trace.node, trace.created_s) == (one.name, one.node, one.created_s)
        assert (wants.cpu_milli, wants.memory_bytes, wants.gpus) == (
            one.asks.cpu_milli,
            one.asks.memory_mib * MIB,
            one.asks.gpus,
        )
        assert (wants.gpu_milli, wants.models) == (
            one.asks.milli,
            frozenset(model.lower() for model in one.asks.models),
        )
        assert (trace.lasts_s is None) == (one.ended_s is None)
    by_number = [replace(one, name="") for one in recorded(*reversed(pods), keep_names=keep).lines]
    assert sorted(map(repr, by_number)) == sorted(repr(replace(one, name="")) for one in found.lines)

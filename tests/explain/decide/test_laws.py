"""What ``explain`` says of a node is what the kubelet does, and what it advises is enough."""

from __future__ import annotations

from functools import partial

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.explain.decide.apply import applied
from partage.explain.decide.explain import explain_pod, first_finding
from partage.explain.decide.never import Trials
from partage.explain.decide.now import after
from partage.explain.decide.pod_and_node import PodNeeds
from partage.model.pod import Container, ContainerKind
from partage.model.policy import Policy
from partage.model.share import resources_of
from tests.examples import examples
from tests.explain.decide.worlds import MACHINE, World, a_pod, accepts, carried_out, policy_of, possible

ENTRIES = (
    "exclusive: {}",
    "time-slicing: {replicas: 2}",
    "time-slicing: {replicas: 3}",
    "mps: {replicas: 2}",
    "mps: {replicas: 4}",
    "mps: {unit: 8Gi}",
    "time-slicing: {unit: 10Gi}",
)
OPTIONS = (
    "",
    "resources: {fail-requests-greater-than-one: false}",
    "resources: {fail-requests-greater-than-one: false, allocation: packed}",
)
NAMES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "aliyun.com/gpu-mem", "nvidia.com/mig-1g.10gb")


@st.composite
def policies(draw, options: str) -> Policy:
    entries = [draw(st.sampled_from(ENTRIES)) for _ in range(3)]
    rows = "\n".join(f"  - {{select: {{index: [{n}]}}, {entry}}}" for n, entry in enumerate(entries))
    found = policy_of(f"gpus:\n{rows}\n{options}")
    assume(possible(found, MACHINE))
    return found


@st.composite
def worlds(draw) -> World:
    """A node of three GPUs, with up to six pods, and things that are wrong with some GPUs."""
    options = draw(st.sampled_from(OPTIONS))
    some = st.frozensets(st.integers(0, 2), max_size=2)
    policy, before = draw(policies(options)), World(draw(policies(options)))
    changing = draw(st.just(frozenset()) | some)
    world = World(
        policy=policy,
        cordoned=draw(some),
        ill=draw(st.just(frozenset()) | some),
        old={index: before.offer[before.gpu(index)] for index in changing},
    )
    held = {}
    for name, resource in resources_of(world.offer).items():
        ids = [share for row in resource.offerings for share in row.share_ids]
        part = draw(st.sampled_from((0.0, 0.5, 1.0)))
        for share in ids:
            if draw(st.floats(0, 1)) < part:
                held[name, share] = draw(st.sampled_from(("b/one", "b/two", "c/three", "c/four")))
    return replace(world, held=held)


@st.composite
def pods(draw) -> PodNeeds:
    containers = []
    for number in range(draw(st.integers(1, 3))):
        wanted = draw(st.sampled_from(NAMES[:3]) | st.sampled_from(NAMES))
        requests = {wanted: draw(st.integers(1, 3) | st.integers(1, 7))}
        kinds: list[ContainerKind] = ["main", "main", "main", "main", "init", "sidecar"]
        kind = draw(st.sampled_from(kinds if number == 0 else kinds[:1]))
        containers.append(Container(f"c{number}", requests, kind))
    if all(one.kind != "main" for one in containers):
        containers.append(Container("main"))
    return a_pod(*containers)


def _by_luck(world: World, pod: PodNeeds) -> bool:
    """Main containers get again what an init container had, in any order; where MPS shares are among others,
    it is luck whether they go together."""
    again = {name for one in pod.containers if one.kind == "init" for name in one.requests}
    rows = [row for name, one in resources_of(world.offer).items() if name in again for row in one.offerings]
    return len({(row.shared, row.device) for row in rows if not row.by_memory}) > 1


@given(worlds(), pods(), st.integers(0, 3))
@settings(max_examples=examples(250), deadline=None)
def test_what_explain_says_is_what_the_kubelet_does(world: World, pod: PodNeeds, seed: int) -> None:
    assume(not _by_luck(world, pod))
    verdict = explain_pod(pod, world.view(), geometry_of)
    assert verdict.fits == accepts(world, pod, seed), verdict
    for change in verdict.changes:
        world, pod = carried_out(change, world, pod)
    if verdict.enough:
        assert accepts(world, pod, seed), verdict


@given(worlds(), pods())
@settings(max_examples=examples(100), deadline=None)
def test_every_other_way_takes_the_first_reason_away(world: World, pod: PodNeeds) -> None:
    node, trials, apply = world.view(), Trials(), partial(applied, geometry_of=geometry_of)
    verdict = explain_pod(pod, node, geometry_of, trials)
    for way in verdict.others:
        found = first_finding(*after(way, pod, node, apply), trials, apply, geometry_of)
        assert found is None or found.reason != verdict.reason, way


@given(worlds(), pods())
@settings(max_examples=examples(100), deadline=None)
def test_what_is_advised_for_a_gpu_changes_what_is_said_of_it(world: World, pod: PodNeeds) -> None:
    node = world.view()
    for gpu in explain_pod(pod, node, geometry_of).gpus:
        if gpu.change is None:
            continue
        there, afterwards = applied(gpu.change, pod, node, geometry_of)
        now = next(one for one in explain_pod(there, afterwards, geometry_of).gpus if one.uuid == gpu.uuid)
        assert now.reason != gpu.reason

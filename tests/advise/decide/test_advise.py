"""The decision on tables and on a grid of situations: no contradiction, and what is advised holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.advise.decide.advise import Alternative, ModelAdvice, advise
from partage.advise.decide.candidate import Candidate, TenantShare, WayRefusal
from partage.advise.decide.judge import judge
from partage.advise.decide.situation import Asked, GpuFacts, Isolation, Preference, Scheduler, Way, Workload
from partage.advise.gpu import gpu_facts
from partage.edges.files.catalogue import geometry_of, load_catalogue
from partage.edges.files.policy import parse_policy
from partage.errors import InputError, Unsatisfiable
from partage.model.ids import ResourceName
from partage.model.share import resources_of
from partage.plan.offer.desired import resolve
from partage.plan.offer.guarantees import promised
from partage.units import GIB
from tests.examples import examples

H100, A30, A100, L4, L40S, RTX, P100 = (
    "h100-sxm5-80gb",
    "a30-24gb",
    "a100-40gb",
    "l4",
    "l40s",
    "rtx-4090",
    "p100-pcie-16gb",
)
MODELS = tuple(model.id for model in load_catalogue().simulated_models())


def asked(isolation: str = "none", tenants: int = 4, workload: str = "inference", **more: Any) -> Asked:
    return Asked(
        isolation=Isolation(isolation),
        tenants=tenants,
        workload=Workload(workload),
        **more,
    )


VIRTUAL: dict[str, Any] = {"virtualised": True, "licensed": True}


@pytest.mark.parametrize(
    ("gpu", "question", "way"),
    [
        # A MIG-capable GPU whose tenants need hardware isolation: MIG.
        (H100, asked("hardware", 7), "mig"),
        (A30, asked("hardware", 4), "mig"),
        (A100, asked("hardware", 3, "notebooks"), "mig"),
        (H100, asked("hardware", 2, "training", **VIRTUAL), "mig"),
        # Else virtualised and licensed: vGPU.
        (L4, asked("hardware", 3, **VIRTUAL), "vgpu"),
        (H100, asked("none", 4, **VIRTUAL), "vgpu"),
        (H100, asked("hardware", 8, **VIRTUAL), "vgpu"),
        (L4, asked("none", 1, "rendering", **VIRTUAL), "vgpu"),
        # Else work together: MPS.
        (H100, asked("none", 8, "mpi"), "mps"),
        (RTX, asked("none", 2, "inference"), "mps"),
        (L4, asked("none", 4, virtualised=True), "mps"),
        (A100, asked("none", 4, licensed=True), "mps"),
        # Else time-slicing.
        (RTX, asked("none", 10, "notebooks"), "time-slicing"),
        (H100, asked("none", 4, "rendering"), "time-slicing"),
        (L4, asked("none", 2, "training"), "time-slicing"),
        (L4, asked("none", 4, "inference", bursty=True), "time-slicing"),
        # A limit of memory: time-slicing has none.
        (RTX, asked("memory", 4, "notebooks"), "mps"),
        (H100, asked("memory", 8, "training"), "mps"),
        # One tenant: all of the GPU.
        (H100, asked("none", 1, "training"), "exclusive"),
        (RTX, asked("hardware", 1, "training"), "exclusive"),
        # More clients than this driver's MPS has.
        (A100, asked("none", 60, "mpi"), "time-slicing"),
        (A100, asked("none", 60, "mpi", driver="590.48.01"), "mps"),
    ],
)
def test_the_decision(gpu: str, question: Asked, way: str) -> None:
    found = advise(question, gpu_facts(gpu, question.driver))
    assert found.strategy == way
    decided = [one.leads_to for one in found.path if one.decides]
    assert decided == [way], "the path ends with what is advised"


@pytest.mark.parametrize(
    ("gpu", "question", "reason"),
    [
        (RTX, asked("hardware", 2), "has no MIG"),
        (H100, asked("hardware", 8), "at most 7 MIG devices"),
        (A30, asked("hardware", 5), "at most 4 MIG devices"),
        (H100, asked("hardware", 7, memory=(20 * GIB,)), "a tenant needs 20 GiB"),
        (L4, asked("memory", 49), "at most 48 are possible"),
        (P100, asked("memory", 4), "'none', and 'guarded' is needed"),
        (L4, asked("none", 4, memory=(8 * GIB,)), "a share has 5.6 GiB"),
        (L4, asked("none", 1, memory=(80 * GIB,)), "a tenant needs 80 GiB"),
        ("rtx-pro-5000-blackwell-48gb", asked("hardware", 2), "no placements are published"),
        (H100, asked("hardware", 2, driver="470.57.02"), "a driver of branch 525 or newer"),
    ],
)
def test_what_cannot_be_had_says_why(gpu: str, question: Asked, reason: str) -> None:
    with pytest.raises(Unsatisfiable) as refused:
        advise(question, gpu_facts(gpu, question.driver))
    assert reason in str(refused.value)
    assert len(refused.value.problems) == 1 + len(Way), "a sentence, and each strategy with its reason"
    assert refused.value.problems[0].hint


@pytest.mark.parametrize(
    ("tenants", "profile", "shares"),
    [(1, "7g.80gb", 1), (2, "3g.40gb", 2), (3, "2g.20gb", 3), (4, "1g.20gb", 4), (5, "1g.10gb", 7)],
)
def test_mig_devices_are_the_largest_of_which_there_are_enough(
    tenants: int, profile: str, shares: int
) -> None:
    found = advise(asked("hardware", tenants), gpu_facts(H100, None))
    (share,) = [one.share for one in strategies(found) if one.strategy is Way.MIG]
    assert share is not None
    assert (share.profile, share.shares) == (profile, shares)


def test_rendering_gets_mig_devices_with_graphics_where_they_exist() -> None:
    found = advise(asked("hardware", 4, "rendering"), gpu_facts("rtx-pro-6000-blackwell-server", None))
    assert str(found.share.resource) == "nvidia.com/mig-1g.24gb.gfx"
    plain = advise(asked("hardware", 4, "rendering"), gpu_facts(A30, None))
    assert any("no graphics" in one for one in plain.reasons_against)


def test_where_the_time_of_an_answer_counts_mig_is_the_first_alternative() -> None:
    found = advise(asked("none", 4, "notebooks", prefer=Preference.LATENCY), gpu_facts(H100, None))
    possible = [one.strategy for one in found.alternatives if one.possible]
    assert [found.strategy, *possible] == [Way.TIME_SLICING, Way.MIG, Way.MPS]
    assert found.policy["gpus"][0]["time-slicing"] == {
        "replicas": 4,
        "interval": "short",
    }


def test_what_was_not_said_is_assumed_and_said() -> None:
    found = advise(Asked(gpu=(L4,)), gpu_facts(L4, None))
    assert (found.situation.tenants, found.strategy) == (4, Way.MPS)
    assert "The tenants run inference." in found.assumptions
    said = advise(
        asked(memory=(GIB,), scheduler=Scheduler.SLURM, bursty=False, driver="580", virtualised=False),
        gpu_facts(L4, "580"),
    )
    assert len(said.assumptions) == 1, "only what no option says"


def sizes(*gib: int) -> tuple[int, ...]:
    return tuple(one * GIB for one in gib)


@pytest.mark.parametrize(
    ("gpu", "question", "entry"),
    [
        # Amounts: under a newer driver the daemon holds each; before it a tenant can drop its limit.
        (
            L40S,
            asked("memory", 2, memory=sizes(30, 8), driver="615.10"),
            {"mps": {"unit": "1Gi", "protocol": 3}},
        ),
        (L40S, asked("none", 2, memory=sizes(30, 8)), {"mps": {"unit": "1Gi"}}),
        (L40S, asked("none", 2, "notebooks", memory=sizes(30, 8)), {"time-slicing": {"unit": "1Gi"}}),
        # Equal shares are enough for the largest, and the daemon of every driver holds them.
        (L40S, asked("memory", 3, memory=sizes(8, 4, 2)), {"mps": {"replicas": 3}}),
        (L40S, asked("none", 2, memory=sizes(8, 4), scheduler=Scheduler.SLURM), {"mps": {"replicas": 2}}),
        # The smallest MIG device for each.
        (
            A100,
            asked("hardware", 3, memory=sizes(4, 18, 8)),
            {"mig": {"layout": ["4g.20gb", "2g.10gb", "1g.5gb"]}},
        ),
        # As much compute as there is room for, the largest tenant first.
        (
            A100,
            asked("hardware", 3, memory=sizes(9, 19, 9)),
            {"mig": {"layout": ["4g.20gb", "2g.10gb", "1g.10gb"]}},
        ),
        # As many as there are amounts.
        (H100, Asked(memory=sizes(4, 4, 4), workload=Workload.MPI), {"mps": {"replicas": 3}}),
    ],
)
def test_tenants_of_different_sizes(gpu: str, question: Asked, entry: dict[str, Any]) -> None:
    found = advise(question, gpu_facts(gpu, question.driver))
    check(found, gpu_facts(gpu, question.driver))
    said = found.policy["gpus"][0]
    assert {key: said[key] for key in said if key != "select"} == entry


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (asked("none", 2, memory=sizes(30, 20)), "44 GiB to share out, and the tenants need 50 GiB"),
        (asked("memory", 2, memory=sizes(30, 8)), "a driver of branch 615 or newer"),
        (asked("none", 2, memory=sizes(30, 8), scheduler=Scheduler.SLURM), "--gres=mps:COUNT"),
        (asked("none", 2, memory=sizes(30, 8), **VIRTUAL), "the vGPUs of one GPU have one size"),
        (asked("hardware", 2, memory=sizes(30, 8)), "has no MIG"),
    ],
)
def test_why_tenants_of_different_sizes_do_not_fit(question: Asked, reason: str) -> None:
    facts = gpu_facts(L40S, None)
    try:
        said = " ".join(f"{one.refusal} {one.hint}" for one in advise(question, facts).alternatives)
    except Unsatisfiable as error:
        said = " ".join(f"{one.message} {one.hint}" for one in error.problems)
    assert reason in said


def test_there_is_one_amount_for_all_or_one_for_each() -> None:
    with pytest.raises(InputError, match="2 amounts of memory for 3 tenants"):
        advise(asked("none", 3, memory=sizes(4, 8)), gpu_facts(L4, None))


def test_of_a_model_without_published_facts_nothing_is_said() -> None:
    """Its shares would have no memory, and its age would be wrong."""
    with pytest.raises(Unsatisfiable, match="thor-igpu"):
        gpu_facts("thor-igpu", None)


@pytest.mark.parametrize("gpu", MODELS)
def test_where_no_driver_is_said_mig_is_not_refused_for_an_old_one(gpu: str) -> None:
    facts = gpu_facts(gpu, None)
    if facts.geometry is not None:
        assert advise(asked("hardware", 2), facts).strategy is Way.MIG


def test_a_gpu_whose_placements_are_not_known_can_do_mig_all_the_same() -> None:
    found = advise(asked("hardware", 2, **VIRTUAL), gpu_facts("rtx-pro-5000-blackwell-48gb", None))
    (question,) = [one for one in found.path if one.leads_to is Way.MIG]
    assert question.answer
    assert "no placements are published" in (question.but or "")


def test_before_volta_mps_is_not_said_to_limit_anybody() -> None:
    best = advise(asked("none", 4, "mpi"), gpu_facts(P100, None))
    assert (best.strategy, best.share.threads_percent) == (Way.MPS, None)
    assert not any("% of the SMs" in one for one in best.reasons)
    assert any("limits neither memory nor SMs" in one for one in best.reasons_against)


def test_every_refusal_that_can_be_helped_says_how() -> None:
    found = advise(asked("none", 60, virtualised=True), gpu_facts(A100, None))
    hints = {one.strategy: one.hint for one in found.alternatives}
    assert "newer driver" in (hints[Way.MPS] or "")
    assert hints[Way.VGPU] == "--licensed", "only what is missing"


@pytest.mark.parametrize("gpu", MODELS)
def test_every_model_of_the_catalogue_can_be_asked_about(gpu: str) -> None:
    facts = gpu_facts(gpu, None)
    for tenants in (1, 2):
        check(advise(asked("none", tenants), facts), facts)


def strategies(found: ModelAdvice) -> tuple[ModelAdvice | Alternative, ...]:
    """What is advised, then the others."""
    return (found, *found.alternatives)


def check(found: ModelAdvice, facts: GpuFacts) -> None:
    """What is advised is a policy that the reader takes and that holds on this model as it was said."""
    for one in strategies(found):
        judged = judge(one.strategy, found.situation, facts)
        if one.policy is None or one.share is None:
            assert isinstance(judged, WayRefusal)
            continue
        assert isinstance(judged, Candidate)
        loaded = parse_policy(yaml.safe_dump(one.policy), "")
        assert loaded.policy.entries == (judged.entry,)
        assert loaded.warnings == ()
        state = resolve(loaded.policy, facts.inventory, geometry_of)
        assert not state.warnings
        offered = resources_of(state.offer)
        if one.share.asks:
            check_asks(one.share, found.situation.sizes, {name: of.count for name, of in offered.items()})
            continue
        assert list(offered) == [one.share.resource]
        restricted = replace(facts.inventory, restricted_mps=True)
        weaker = promised(state.offer, state.watch_of, restricted, state.settings)
        rows = resources_of(weaker)[one.share.resource].offerings
        assert one.share.guarantee.strength >= found.situation.isolation.least.strength
        assert all(row.guarantee is one.share.guarantee for row in rows)
        if one.strategy is not Way.VGPU:
            assert offered[one.share.resource].count == one.share.shares >= found.situation.tenants
            assert min(row.memory_bytes for row in rows) == one.share.memory_bytes
        if found.situation.memory_bytes is not None:
            assert one.share.memory_bytes >= found.situation.memory_bytes


def check_asks(share: TenantShare, sizes: Sequence[int], offered: Mapping[ResourceName, int]) -> None:
    """Each tenant has what it needs, and all of them together ask for no more than is there."""
    assert [ask.needs_bytes for ask in share.asks] == list(sizes)
    assert all(ask.memory_bytes >= ask.needs_bytes for ask in share.asks)
    asked = Counter[ResourceName]()
    for ask in share.asks:
        asked[ask.resource] += ask.count
    assert all(count <= offered[name] for name, count in asked.items())


AMOUNTS = st.integers(1, 100).map(lambda gib: gib * GIB)
ASKED = st.builds(
    Asked,
    tenants=st.one_of(st.none(), st.integers(1, 70)),
    workload=st.one_of(st.none(), st.sampled_from(Workload)),
    virtualised=st.sampled_from((None, True, False)),
    licensed=st.sampled_from((None, True, False)),
    scheduler=st.one_of(st.none(), st.sampled_from(Scheduler)),
    memory=st.one_of(st.just(()), AMOUNTS.map(lambda one: (one,)), st.lists(AMOUNTS, max_size=6).map(tuple)),
    prefer=st.one_of(st.none(), st.sampled_from(Preference)),
    bursty=st.sampled_from((None, True, False)),
    driver=st.sampled_from((None, "450.80.02", "535.161.07", "595.58.03")),
)


@settings(max_examples=examples(500), deadline=None)
@given(question=ASKED, gpu=st.sampled_from(MODELS))
def test_more_isolation_never_yields_less_and_nothing_contradicts(question: Asked, gpu: str) -> None:
    if len(question.memory) > 1:
        question = replace(question, tenants=None)
    facts = gpu_facts(gpu, question.driver)
    strength, possible = -1, True
    for isolation in (Isolation.NONE, Isolation.MEMORY, Isolation.HARDWARE):
        try:
            found = advise(replace(question, isolation=isolation), facts)
        except Unsatisfiable:
            possible = possible and question.tenants is None  # fewer are assumed for hardware isolation
            continue
        assert possible, "what can be had with more isolation can be had with less"
        check(found, facts)
        assert found.share.guarantee.strength >= strength, "more isolation asked yields less"
        strength = found.share.guarantee.strength
        ways = [one.strategy for one in strategies(found)]
        assert sorted(ways) == sorted(Way), "each strategy is advised, ranked or refused, once"
        assert found.reasons
        decided = [one for one in found.path if one.decides]
        assert [one.leads_to for one in decided] in ([found.strategy], []), (
            "the path leads to another strategy"
        )
        assert all(not one.decides for one in found.path[:-1]), "the path goes on after its end"
        for one in found.path:
            refused = {other.strategy: other.refusal for other in found.alternatives}
            assert one.but is None or (one.leads_to is not None and refused[one.leads_to] == one.but)

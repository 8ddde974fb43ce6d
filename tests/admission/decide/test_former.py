"""A translated pod, read back in its own system's words."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.admission.decide.former import as_before, former_pod
from partage.admission.decide.need import AmountWord
from partage.admission.decide.pod import patched
from partage.units import GIB, MIB
from tests.admission.pods import TERMS, container, pod, translated

PODS = [
    pod(container({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30})),
    pod(
        container({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}),
        container({"nvidia.com/gpu": 1}, name="side"),
        initContainers=[container({"nvidia.com/gpu": 1}, name="warm")],
        annotations={"nvidia.com/use-gputype": "H100"},
        schedulerName="hami-scheduler",
    ),
    pod(container({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "cpu": "1"})),
    pod(container(), annotations={"gpu-fraction": "0.5"}),
    pod(container({"aliyun.com/gpu-mem": 4}), labels={"aliyun.com/gpu-count": "2"}),
    pod(container({"nvidia.com/gpu-10gb": 1})),
    pod(
        container({"nvidia.com/gpu": 1}),
        nodeSelector={"cloud.google.com/gke-gpu-sharing-strategy": "mps", "pool": "a"},
    ),
    pod(container({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1}), resourceClaims=[{"name": "own"}]),
]


@pytest.mark.parametrize("document", PODS)
def test_what_is_read_back_is_what_was_translated(document):
    outcome = translated(document)
    after = patched(document, outcome.patch)
    before = translated(as_before(after))
    assert before.claims == outcome.claims
    found = former_pod(after, TERMS)
    assert found is not None
    assert found.system == outcome.system
    assert {*found.claims} == {claim.name for claim in outcome.claims}
    assert found.scheduler == document["spec"].get("schedulerName", "")


def test_a_pod_of_nobody_was_nothing_before():
    assert former_pod(pod(container({"nvidia.com/gpu": 1})), TERMS) is None


@pytest.mark.parametrize(
    "note",
    ["HAMi: main nvidia.com/gpumem=x", "HAMi: ", "KAI: by annotation", "X: ; ;=; main =", "HAMi: main"],
)
def test_words_that_are_no_longer_those_of_the_claims_are_only_repeated(note):
    document = pod(container({}), annotations={"partage.dev/translated": note})
    document["spec"]["resourceClaims"] = [{"name": "partage-gpu"}]
    document["spec"]["containers"][0]["resources"]["claims"] = [{"name": "partage-gpu"}]
    found = former_pod(document, TERMS)
    assert found is not None
    assert found.claims == {}
    assert f"{found.system}: {found.asked}" == note


NOTES = {"annotations": {"partage.dev/translated": "HAMi: a nvidia.com/gpumem=1"}}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": None, "spec": None},
        {"metadata": NOTES, "spec": {"containers": [None, {}]}},
        {
            "metadata": {"annotations": {"partage.dev/translated": 3}},
            "spec": {"containers": {"resources": []}},
        },
        {
            "metadata": NOTES,
            "spec": {
                "containers": [{"name": ["a"], "resources": {"limits": [], "claims": {}}}],
                "nodeSelector": [],
            },
        },
    ],
)
def test_a_pod_of_any_shape_is_read(document):
    former_pod(document, TERMS)


WORDS = [
    AmountWord("memory", "m: {}", "1", Decimal(MIB)),
    AmountWord("memory", "p: {}", "1", Decimal("0.01"), of_gpu=True),
    AmountWord("memory", "f: {}", "1", Decimal(1), of_gpu=True, step=Decimal("0.01")),
    AmountWord("memory", "g: {}", "2", Decimal(GIB) / 2, step=Decimal(2)),
    AmountWord("cores", "c: {}", "5", Decimal(1), step=Decimal(5)),
]


@given(st.sampled_from(WORDS), st.integers(0, 200 * GIB), st.integers(1, 200 * GIB))
def test_the_largest_number_asks_for_no_more_and_the_next_one_for_more(word, amount, total):
    number = word.at_most(Decimal(amount), Decimal(total))
    assert number % word.step == 0
    assert word.amount(number, Decimal(total)) <= amount
    assert word.amount(number + word.step, Decimal(total)) > amount

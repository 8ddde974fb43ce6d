"""``partage explain`` for pods that were written for other systems: in their own words."""

import json

import pytest
import yaml

from partage.admission.decide.pod import patched
from partage.cli.main import run
from tests.admission.pods import container, pod, translated
from tests.claims.offers import amounts
from tests.explain.test_explain import texts
from tests.explain.test_explain_claims import ClaimApi, a_claim, a_slice, given_to, of_cluster, request
from tests.explain.test_explain_cluster import a_node

POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [0, 1]}, via: claims, mps: {unit: 1Gi}}
  - {select: rest, via: claims, exclusive: {}}
"""
HAMI, VOLCANO = "nvidia.com/gpumem", "volcano.sh/vgpu-memory"


def answered(capsys, tmp_path, policy, *documents):
    """Exit code and rows of pods."""
    (tmp_path / "policy.yaml").write_text(policy)
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump_all(documents))
    where = ["--machine", "4xh100-sxm5-80gb", "--policy", str(tmp_path / "policy.yaml"), "-o", "json"]
    code = run(["explain", str(tmp_path / "theirs.yaml"), *where])
    return code, json.loads(capsys.readouterr().out)["pods"]


@pytest.mark.parametrize(
    ("document", "change"),
    [
        (
            pod(container({"nvidia.com/gpu": 1, HAMI: 90000})),
            "ask for nvidia.com/gpumem: 80896 in place of 90000 in main (memory 79Gi of the claim)",
        ),
        (
            pod(container({"volcano.sh/vgpu-number": 1, VOLCANO: 90000}, name="worker")),
            "ask for volcano.sh/vgpu-memory: 80896 in place of 90000 in worker (memory 79Gi of the claim)",
        ),
        (
            pod(container(), annotations={"gpu-memory": "90000"}),
            "ask for annotation gpu-memory: '80896' in place of 90000 in main (memory 79Gi of the claim)",
        ),
        (
            pod(container({"aliyun.com/gpu-mem": 161}), labels={"aliyun.com/gpu-count": "2"}),
            None,
        ),
        (
            pod(container({"aliyun.com/gpu-mem": 100})),
            "ask for aliyun.com/gpu-mem: 79 in place of 100 in main (memory 79Gi of the claim)",
        ),
        (
            pod(container({"nvidia.com/gpu-100gb": 1})),
            "ask for nvidia.com/gpu-79gb: 1 in place of nvidia.com/gpu-100gb in main "
            "(memory 79Gi of the claim)",
        ),
        (
            pod(container({"nvidia.com/gpu": 1, HAMI: 4000}), annotations={"nvidia.com/use-gputype": "A100"}),
            "change the pod's annotation nvidia.com/use-gputype, or take it out",
        ),
    ],
)  # fmt: skip
def test_the_smallest_change_is_said_in_the_words_of_the_other_system(capsys, tmp_path, document, change):
    code, (row,) = answered(capsys, tmp_path, POLICY, document)
    assert code == 1
    if change is None:
        assert row["former"] is None, "an odd number for two GPUs is refused"
        assert "cannot be divided evenly between 2 GPUs" in row["standing"]
        return
    (node,) = row["nodes"]
    assert texts(node["changes"]) == [change]
    assert node["enough"] is True
    assert row["former"]["rewritten"] is False


def test_what_it_was_what_it_became_and_what_is_guaranteed(capsys, tmp_path):
    cores = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 30}
    code, (row,) = answered(capsys, tmp_path, POLICY, pod(container(cores), schedulerName="hami-scheduler"))
    assert code == 0
    assert row["former"] == {
        "system": "HAMi",
        "asked": "main nvidia.com/gpu=1 nvidia.com/gpucores=30 nvidia.com/gpumem-percentage=50",
        "becomes": ["memory 39Gi, cores 30 of gpu.partage.dev (main)"],
        "guarantee": "main: memory as PARTAGE_GUARANTEE in the container says, "
        "cores 30: a ceiling under MPS, none under time slicing",
        "rewritten": False,
        "scheduler": "hami-scheduler",
        "warnings": [],
        "homes": [],
    }  # fmt: skip
    (given,) = row["nodes"][0]["gives"]
    assert given["gpu"] == 0
    assert given["text"].endswith("memory 39Gi, cores 30")
    assert given["guarantee"] == "advisory"


def test_where_nothing_like_it_is_given_the_policy_line_is_named(capsys, tmp_path):
    exclusive = "version: partage/v1\ngpus: [{select: all, exclusive: {}}]\n"
    document = pod(container({"nvidia.com/gpu": 1, HAMI: 4000}))
    code, (row,) = answered(capsys, tmp_path, exclusive, document)
    assert code == 1
    assert row["former"]["homes"] == ["in the policy: {select: rest, via: claims, mps: {unit: 1Gi}}"]


def test_a_pod_that_the_webhook_refuses_is_answered_with_its_sentence(capsys, tmp_path):
    marks = {"hami.io/gpu-scheduler-policy": "mutex"}
    document = pod(container({"nvidia.com/gpu": 1, HAMI: 4000}), annotations=marks)
    code, (row,) = answered(capsys, tmp_path, POLICY, document)
    assert code == 1
    assert row["nodes"] == []
    assert "mutex chooses between the GPUs of a node" in row["standing"]


def test_the_table_says_it_all(capsys, tmp_path):
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(pod(container({"nvidia.com/gpu": 1, HAMI: 90000}))))
    where = ["--machine", "4xh100-sxm5-80gb", "--policy", str(tmp_path / "policy.yaml")]
    run(["explain", str(tmp_path / "theirs.yaml"), *where])
    out = " ".join(capsys.readouterr().out.split())
    assert "It was written for HAMi: main nvidia.com/gpu=1 nvidia.com/gpumem=90000." in out
    assert "partage admission makes of it a claim for memory 90000Mi of gpu.partage.dev (main)." in out
    assert "Smallest change: ask for nvidia.com/gpumem: 80896 in place of 90000 in main" in out


# --- a cluster ---------------------------------------------------------------------------------------


def let_in(document):
    """The pod as the webhook lets it in, and the claim that is made for it."""
    named = {**document, "metadata": {**document["metadata"], "name": "new", "namespace": "a"}}
    outcome = translated(named)
    (made,) = outcome.claims
    after = patched(named, outcome.patch)
    statuses = [{"name": made.name, "resourceClaimName": "new-partage-gpu-x7k2"}]
    after["status"] = {"phase": "Pending", "resourceClaimStatuses": statuses}
    return after, a_claim(name="new-partage-gpu-x7k2", spec=made.form.spec)


async def test_a_pod_that_was_let_in_is_explained_in_its_own_words(capsys, tmp_path):
    asking = pod(container({"nvidia.com/gpu": 1, HAMI: 40000}), schedulerName="hami-scheduler")
    waits, claim = let_in(asking)
    part = given_to(a_claim(request(memory="59Gi"), name="part"), "n1", "holder", memory="59Gi", cores="0")
    api = ClaimApi([a_node("n1", {})], [waits], slices=[a_slice("n1", amounts(0))], claims=[part, claim])
    code, row = await of_cluster(capsys, tmp_path, api, "pod", "a/new")
    assert code == 1
    former = row["former"]
    assert former["system"] == "HAMi"
    assert former["asked"] == "main nvidia.com/gpu=1 nvidia.com/gpumem=40000"
    assert former["becomes"] == ["memory 40000Mi of gpu.partage.dev (main)"]
    assert former["rewritten"] is True
    assert former["scheduler"] == "hami-scheduler"
    (node,) = row["nodes"]
    assert texts(node["changes"]) == ["wait until pod a/holder has ended, or end it"]
    assert [texts(way) for way in node["others"]] == [
        ["ask for nvidia.com/gpumem: 20480 in place of 40000 in main (memory 20Gi of the claim)"]
    ]


async def test_scenario_22_a_pod_that_no_webhook_has_seen_is_told_so(capsys, tmp_path):
    waits = pod(container({"nvidia.com/gpu": 1, HAMI: 40000}))
    waits["metadata"].update(name="new", namespace="a")
    waits["status"] = {"phase": "Pending"}
    api = ClaimApi([a_node("n1", {})], [waits], slices=[a_slice("n1", amounts(0))])
    code, row = await of_cluster(capsys, tmp_path, api, "pod", "a/new")
    assert code == 1
    assert row["standing"].startswith("It is written for HAMi, and was not rewritten when it was made")
    assert "a claim for memory 40000Mi of gpu.partage.dev" in row["standing"]


@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": 1, HAMI: 90000}, {"nvidia.com/gpu-90gb": 1}])
async def test_a_manifest_is_tried_on_a_cluster_as_the_webhook_would_have_it(capsys, tmp_path, limits):
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(yaml.safe_dump(pod(container(limits))))
    api = ClaimApi([a_node("n1", {})], slices=[a_slice("n1", amounts(0))])
    code, row = await of_cluster(capsys, tmp_path, api, str(theirs))
    assert code == 1
    (node,) = row["nodes"]
    assert "in place of" in texts(node["changes"])[0]
    assert node["enough"]

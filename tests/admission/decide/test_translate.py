"""What is changed in a pod, and the laws of it."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.admission.decide.pod import PatchStep, patched
from partage.admission.decide.template import ClaimableSize, ClaimableSizes
from partage.admission.decide.translate import AdmissionTerms, RefusedPod, TranslatedPod, translate
from partage.claims.manifests import ClaimObjectReader
from partage.claims.model.names import CORES, MEMORY
from partage.units import GIB, MIB
from tests.admission.pods import TERMS, container, pod, refused, translated

GPU, MEM, PERCENT = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
CORES_NAME = "nvidia.com/gpucores"


def changed(document, terms=TERMS):
    return patched(document, translated(document, terms).patch)


def ways(document, terms=TERMS):
    """What the pod's only claim can be, as the reader of claims has it."""
    (claim,) = translated(document, terms).claims
    reader = ClaimObjectReader(claim.form.manifest())
    (request,) = reader.spec().requests
    assert reader.problems == []
    return request.ways


def test_old_resources_go_and_everything_else_stays():
    document = pod(
        container({GPU: 1, MEM: 3000, "cpu": 2}, env=[{"name": "A", "value": "1"}]),
        annotations={"nvidia.com/use-gputype": "A100"},
        schedulerName="hami-scheduler",
        runtimeClassName="nvidia",
    )
    document["spec"]["containers"][0]["resources"]["requests"] = {GPU: 1, MEM: 3000, "cpu": 1}
    after = changed(document)
    (main,) = after["spec"]["containers"]
    claim = after["spec"]["resourceClaims"][0]["name"]
    assert main["resources"] == {"limits": {"cpu": 2}, "requests": {"cpu": 1}, "claims": [{"name": claim}]}
    assert main["env"] == [{"name": "A", "value": "1"}]
    assert after["spec"]["runtimeClassName"] == "nvidia"
    assert after["spec"]["schedulerName"] == "default-scheduler"
    notes = after["metadata"]["annotations"]
    assert notes["nvidia.com/use-gputype"] == "A100"
    assert notes["partage.dev/translated"] == "HAMi: main nvidia.com/gpu=1 nvidia.com/gpumem=3000"
    assert notes["partage.dev/former-scheduler"] == "hami-scheduler"
    assert notes["partage.dev/guarantee"] == "main: memory as PARTAGE_GUARANTEE in the container says"
    assert document["spec"]["schedulerName"] == "hami-scheduler"  # the pod itself is not touched


def test_what_becomes_empty_goes_with_it():
    document = pod(
        container({GPU: 1, MEM: 3000}),
        container({GPU: 0}, "none"),
        container({GPU: 0, "cpu": 1}, "some"),
        nodeSelector={},
    )
    document["spec"]["containers"][0]["resources"]["requests"] = {GPU: 1, MEM: 3000}
    main, none, some = changed(document)["spec"]["containers"]
    assert main["resources"] == {"claims": [{"name": "partage-gpu"}]}
    assert "resources" not in none
    assert some["resources"] == {"limits": {"cpu": 1}}


@pytest.mark.parametrize(("more", "left"), [({}, None), ({"pool": "a"}, {"pool": "a"})])
def test_a_node_selector_of_gke_goes_and_no_other(more, left):
    sharing = {"cloud.google.com/gke-gpu-sharing-strategy": "mps"}
    after = changed(pod(container({GPU: 1}), nodeSelector={**sharing, **more}))
    assert after["spec"].get("nodeSelector") == left


def test_a_cores_limit_has_the_guarantee_that_it_really_has():
    after = changed(pod(container({GPU: 1, MEM: 3000, CORES_NAME: 30})))
    assert (
        "cores 30: a ceiling under MPS, none under time slicing"
        in after["metadata"]["annotations"]["partage.dev/guarantee"]
    )


def test_containers_of_one_need_have_claims_of_their_own_from_one_template():
    limits = {GPU: 1, MEM: 3000}
    after = changed(pod(container(limits, "a"), container(limits, "b"), container(None, "c")))
    first, second = after["spec"]["resourceClaims"]
    assert first["resourceClaimTemplateName"] == second["resourceClaimTemplateName"]
    assert [row.get("resources", {}).get("claims") for row in after["spec"]["containers"]] == [
        [{"name": first["name"]}],
        [{"name": second["name"]}],
        None,
    ]


def test_claims_that_the_pod_had_stay_beside_the_new_ones():
    document = pod(container(), annotations={"gpu-fraction": "0.5"})
    document["spec"]["resourceClaims"] = [{"name": "partage-gpu", "resourceClaimName": "x"}]
    document["spec"]["containers"][0]["resources"] = {"claims": [{"name": "partage-gpu"}]}
    after = changed(document)
    assert [row["name"] for row in after["spec"]["resourceClaims"]] == ["partage-gpu", "partage-gpu-2"]
    assert after["spec"]["containers"][0]["resources"]["claims"] == [
        {"name": "partage-gpu"},
        {"name": "partage-gpu-2"},
    ]


def users(document):
    return [[user.name for user in claim.containers] for claim in translated(document).claims]


def test_an_init_container_uses_the_claim_of_one_that_begins_after_it_and_a_sidecar_has_its_own():
    small, large = {GPU: 1, MEM: 1000}, {GPU: 1, MEM: 3000}
    inits = [
        container(small, "first"),
        container(small, "side", restartPolicy="Always"),
        container(large, "second"),
    ]
    document = pod(container(large, "main"), initContainers=inits)
    # "first" could not have the claim of "side": both may be there at once
    assert users(document) == [["side"], ["main", "second"], ["first"]]
    (warning,) = translated(document).warnings
    assert "init container first" in warning
    alike = pod(container({"cpu": 1}, "main"), initContainers=[container(small, "a"), container(small, "b")])
    assert users(alike) == [["a", "b"]]


def test_parts_are_one_alternative_for_each_size_smallest_first_and_never_too_large_together():
    document = pod(container({GPU: 2, PERCENT: 50, CORES_NAME: 30}))
    found = ways(document)
    assert [(way.amounts[MEMORY], way.amounts[CORES], way.count) for way in found] == [
        (19 * GIB, 30, 2),
        (39 * GIB, 30, 2),
    ]
    assert "compareTo(quantity('39Gi')) == 0" in found[0].selectors[0]
    (claim,) = translated(document).claims
    assert claim.form.spec["devices"]["constraints"] == [
        {"requests": ["gpu"], "distinctAttribute": "gpu.partage.dev/uuid"}
    ]
    (tiny,) = ways(pod(container({PERCENT: 1})), one_size(GIB, GIB))
    assert tiny.amounts[MEMORY] == GIB  # one step at least


def one_size(memory_bytes, step_bytes):
    return AdmissionTerms(sizes=ClaimableSizes((ClaimableSize(memory_bytes, step_bytes),)))


def test_parts_of_nothing_of_unknown_and_of_too_many_sizes():
    document = pod(container({PERCENT: 50}))
    unknown = translate(document, AdmissionTerms())
    assert isinstance(unknown, RefusedPod)
    assert unknown.unknown
    assert "mps: {unit: 1Gi}" in refused(document, AdmissionTerms(sizes=ClaimableSizes()))
    nine = AdmissionTerms(sizes=ClaimableSizes(tuple(ClaimableSize(n * GIB, GIB) for n in range(1, 10))))
    assert "there are 9: 1 GiB, 2 GiB" in refused(document, nine)
    # the same memory in steps of two sizes is one size
    steps = AdmissionTerms(
        sizes=ClaimableSizes((ClaimableSize(8 * GIB, GIB), ClaimableSize(8 * GIB, 2 * GIB)))
    )
    (way,) = ways(pod(container({PERCENT: 40})), steps)
    assert way.amounts[MEMORY] == 2 * GIB


def test_a_mig_device_is_the_smallest_that_is_enough():
    marks = {"nvidia.com/vgpu-mode": "mig"}
    found = ways(pod(container({GPU: 2, MEM: 8000}), annotations=marks))
    assert ["'10Gi'" in found[0].selectors[0], "'40Gi'" in found[1].selectors[0], len(found)] == [
        True,
        True,
        2,
    ]
    (only,) = ways(pod(container({GPU: 1, MEM: 20000}), annotations=marks))
    assert "compareTo(quantity('20000Mi')) >= 0" in only.selectors[0]
    assert "size of a MIG device" in refused(pod(container({PERCENT: 50}), annotations=marks))
    rows = translated(pod(container({GPU: 2, MEM: 8000}), annotations=marks)).claims[0].form.spec["devices"]
    assert rows["constraints"][0]["distinctAttribute"] == "gpu.partage.dev/parentUUID"


def test_an_amount_is_no_whole_gpu_of_another_policy():
    (way,) = ways(pod(container({GPU: 1, MEM: 3000})))
    assert way.selectors == ("device.attributes['gpu.partage.dev'].mode == 'amounts'",)


def test_selectors_of_gke_go_and_are_remembered():
    key = "cloud.google.com/gke-gpu-sharing-strategy"
    after = changed(pod(container({GPU: 1}), nodeSelector={key: "mps", "zone": "a"}))
    assert after["spec"]["nodeSelector"] == {"zone": "a"}
    assert after["metadata"]["annotations"]["partage.dev/former-node-selector"] == f"{key}=mps"


@pytest.mark.parametrize(
    ("more", "owner", "why"),
    [
        ({"nodeName": "n1"}, None, "names its node"),
        ({"annotations": {"scheduling.k8s.io/group-name": "g"}}, None, "belongs to the group g"),
        ({"annotations": {"pod-group-name": "g"}}, None, "belongs to the group g"),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, None, "belongs to the group g"),
        ({}, {"kai.scheduler/batch-min-member": "2"}, "start together"),
    ],
)
def test_what_no_claim_can_be(more, owner, why):
    found = translate(pod(container({GPU: 1, MEM: 1}), **more), TERMS, owner)
    assert isinstance(found, RefusedPod)
    assert why in found.sentence


@pytest.mark.parametrize("system", ["kai-scheduler", "volcano"])
def test_who_starts_pods_together_may_keep_them(system):
    """As the hint of the refusal says."""
    marks = {"pod-group-name": "g", "scheduling.k8s.io/group-name": "g"}
    document = pod(container({GPU: 1, MEM: 1}), annotations=marks, schedulerName=system)
    owner = {"kai.scheduler/batch-min-member": "2"}
    assert isinstance(translate(document, TERMS, owner), RefusedPod)
    there = replace(TERMS, schedulers=frozenset({system}))
    found = translate(document, there, owner)
    assert isinstance(found, TranslatedPod)
    assert any(f"the scheduler {system} is kept" in text for text in found.warnings)
    assert isinstance(translate(document, replace(TERMS, schedulers=frozenset({"other"}))), RefusedPod)


@pytest.mark.parametrize(
    "more",
    [
        {"labels": {"kai.scheduler/queue": "q"}},
        {"annotations": {"scheduling.volcano.sh/queue-name": "q"}},
        {"schedulerName": "other"},
    ],
)
def test_what_is_kept_and_said(more):
    document = pod(container({GPU: 1, MEM: 1}), **more)
    assert len(translated(document).warnings) == 1
    assert changed(document)["spec"].get("schedulerName") == more.get("schedulerName")


@pytest.mark.parametrize(
    ("scheduler", "limits"),
    [
        ("kai-scheduler", {GPU: 1}),
        ("volcano", {"nvidia.com/mig-1g.5gb": 1}),
        ("hami-scheduler", {GPU: 2}),
        ("nos-scheduler", {GPU: 1, "nvidia.com/mig-1g.10gb": 1}),
    ],
)
def test_whole_gpus_stay_and_a_scheduler_that_is_not_there_is_none(scheduler, limits):
    """Such a pod would stay Pending."""
    document = pod(container(limits), schedulerName=scheduler)
    after = changed(document)
    assert after["spec"] == document["spec"] | {"schedulerName": "default-scheduler"}
    assert after["metadata"]["annotations"] == {"partage.dev/former-scheduler": scheduler}
    assert translate(document, replace(TERMS, schedulers=frozenset({scheduler}))) is None
    assert translate(pod(container({"cpu": 1}), schedulerName=scheduler), TERMS) is None
    assert translate(pod(container(limits), schedulerName=scheduler, nodeName="n"), TERMS) is None
    group = {"scheduling.k8s.io/group-name": "g"}
    assert "the group g" in refused(pod(container(limits), schedulerName=scheduler, annotations=group))


def test_several_gpus_of_one_container_are_not_shared_through_mps():
    """The node would refuse the claim: through MPS, a container uses one GPU."""
    for count in (1, 2):
        for limits in ({GPU: count, MEM: 1}, {GPU: count, PERCENT: 50}, {GPU: count, CORES_NAME: 100}):
            (claim,) = translated(pod(container(limits))).claims
            assert ("strategy == 'mps'" in str(claim.form.spec)) == (count > 1)


def test_two_systems_at_once_are_a_contradiction():
    both = container({GPU: 1, MEM: 1, "volcano.sh/vgpu-number": 1})
    assert "HAMi and Volcano at once" in refused(pod(both))


def test_who_wants_to_be_left_alone_is():
    assert (
        translate(pod(container({GPU: 1, MEM: 1}), labels={"partage.dev/admission": "ignore"}), TERMS) is None
    )


@pytest.mark.parametrize(
    "spec", [None, [], {"containers": 5}, {"containers": [None, 5]}, {"containers": [{"resources": []}]}]
)
def test_what_is_no_pod_is_left_to_the_api_server(spec):
    assert translate({"kind": "Pod", "metadata": 5, "spec": spec}, TERMS) is None


def test_a_patch_changes_lists_and_mappings():
    steps = (
        PatchStep("add", "/a/b~1c", 1),
        PatchStep("add", "/list/-", 3),
        PatchStep("replace", "/list/0", 9),
        PatchStep("remove", "/list/1"),
        PatchStep("remove", "/gone"),
        PatchStep("replace", "/x~0", 2),
    )
    before = {"a": {}, "list": [1, 2], "gone": 0, "x~": 1}
    assert patched(before, steps) == {"a": {"b/c": 1}, "list": [9, 3], "x~": 2}
    assert before["list"] == [1, 2]
    with pytest.raises(LookupError):
        patched({}, [PatchStep("remove", "/a")])


# --- laws --------------------------------------------------------------------------------------

counts, mibs = st.integers(1, 32), st.integers(1, 10**6)


@st.composite
def amounts(draw):
    """A pod of any system that names an amount, with how many GPUs and how many bytes of each."""
    count, mib = draw(counts), draw(mibs)
    match draw(st.sampled_from(("hami", "volcano", "kai", "ack"))):
        case "hami":
            return pod(container({GPU: count, MEM: mib})), count, mib * MIB
        case "volcano":
            return (
                pod(container({"volcano.sh/vgpu-number": count, "volcano.sh/vgpu-memory": mib})),
                count,
                mib * MIB,
            )
        case "kai":
            marks = {"gpu-memory": str(mib), "gpu-fraction-num-devices": str(count)}
            return pod(container(), annotations=marks), count, mib * MIB
    gib = 1 + mib % 1000
    labels = {"aliyun.com/gpu-count": str(count)}
    return pod(container({"aliyun.com/gpu-mem": gib * count}), labels=labels), count, gib * GIB


@given(amounts())
def test_number_and_memory_of_the_pod_are_those_of_the_claim(asked):
    document, count, memory_bytes = asked
    (way,) = ways(document)
    assert (way.count, way.amounts) == (count, {MEMORY: Decimal(memory_bytes)})


@given(st.integers(1, 99), st.integers(2, 200), st.integers(1, 4))
def test_a_part_is_less_than_one_step_below_what_was_asked(percent, gib, step_gib):
    size = gib * step_gib * GIB
    (way,) = ways(pod(container({PERCENT: percent})), one_size(size, step_gib * GIB))
    short = size * percent / 100 - float(way.amounts[MEMORY])
    assert short < step_gib * GIB
    assert short >= 0 or way.amounts[MEMORY] == step_gib * GIB


any_limits = st.dictionaries(
    st.sampled_from(
        (
            GPU,
            MEM,
            PERCENT,
            CORES_NAME,
            "nvidia.com/priority",
            "nvidia.com/gpu-4gb",
            "aliyun.com/gpu-mem",
            "cpu",
        )
    ),
    st.integers(0, 130) | st.sampled_from(("1", "1k", "x", "0.5")),
    max_size=4,
)
any_marks = st.dictionaries(
    st.sampled_from(
        (
            "gpu-fraction",
            "gpu-memory",
            "nvidia.com/use-gputype",
            "hami.io/gpu-scheduler-policy",
            "nvidia.com/vgpu-mode",
        )
    ),
    st.sampled_from(("0.5", "2000", "A100", "binpack", "mig", "spread")),
    max_size=2,
)


@given(st.lists(any_limits, min_size=1, max_size=3), st.lists(any_limits, max_size=2), any_marks)
def test_translating_twice_changes_nothing(mains, inits, marks):
    document = pod(
        *(container(limits, f"c{n}") for n, limits in enumerate(mains)),
        initContainers=[container(limits, f"i{n}") for n, limits in enumerate(inits)],
        annotations=marks,
    )
    found = translate(document, TERMS)
    if isinstance(found, TranslatedPod):
        after = patched(document, found.patch)
        assert translate(after, TERMS) is None
        asked = {claim["name"] for claim in after["spec"].get("resourceClaims", [])}
        used = {
            claim["name"]
            for group in ("containers", "initContainers")
            for row in after["spec"][group]
            for claim in row.get("resources", {}).get("claims", [])
        }
        assert asked == used
        for claim in found.claims:
            reader = ClaimObjectReader(claim.form.manifest())
            reader.spec()
            assert reader.problems == []

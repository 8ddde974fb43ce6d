"""HAMi's rules, each once."""

import pytest

from partage.admission.decide.settings import DialectSettings, with_hami_config
from partage.admission.decide.translate import AdmissionTerms, translate
from tests.admission.pods import SIZES, TERMS, container, needs, pod, refused, translated

GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
PERCENT, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"


@pytest.mark.parametrize(
    ("limits", "need"),
    [
        ({GPU: 1, MEM: 3000, CORES: 30}, "1 x 3000Mi, 30 %"),
        ({GPU: "2", MEM: "3k"}, "2 x 3000Mi"),
        ({MEM: 3000}, "1 x 3000Mi"),  # defaultGPUNum
        ({CORES: 30}, "1 x whole"),  # no memory named: all of it, so cores are of a GPU of its own
        ({GPU: 2, PERCENT: 50, CORES: 30}, "2 x 0.5, 30 %"),
        ({GPU: 1, MEM: 1000, PERCENT: 50}, "1 x 1000Mi"),  # memory wins
        ({GPU: 1, MEM: 0, PERCENT: 50}, "1 x 0.5"),  # 0 is no amount
        ({GPU: 1, MEM: 1000, PERCENT: 0}, "1 x 1000Mi"),
        ({GPU: 1, PERCENT: 100}, "1 x whole"),
        ({GPU: 1, PERCENT: 100, CORES: 50}, "1 x whole"),
        ({GPU: 1, PERCENT: 0}, "1 x whole"),
        ({GPU: 1, MEM: 3000, CORES: 100}, "1 x whole"),  # exclusive
        ({GPU: 1, MEM: 3000, CORES: 130}, "1 x whole"),  # cut to 100
        ({GPU: 1, MEM: 3000, PRIORITY: 1}, "1 x 3000Mi"),
        ({GPU: 3, PRIORITY: 0}, "3 x whole"),  # neither memory nor cores: exclusive
    ],
)
def test_what_a_container_asks_for(limits, need):
    assert needs(pod(container(limits))) == {"main": need}


@pytest.mark.parametrize("limits", [{GPU: 1}, {GPU: 4, "cpu": 1}, {"cpu": 1}, None])
def test_a_number_of_gpus_alone_is_nobodys_dialect(limits):
    assert translate(pod(container(limits)), TERMS) is None
    assert translate(pod(container(limits), schedulerName="another"), TERMS) is None


def test_a_request_stands_for_a_limit_that_is_missing():
    asking = {"name": "main", "image": "x", "resources": {"requests": {GPU: 1, MEM: 3000}}}
    assert needs(pod(asking)) == {"main": "1 x 3000Mi"}


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({GPU: 1, PERCENT: 101}, "asks for 101 of nvidia.com/gpumem-percentage, which is 0 to 100"),
        ({GPU: 1, MEM: 2**31}, "no whole number up to 10^9"),
        ({GPU: 1, MEM: "1.5"}, "no whole number"),
        ({GPU: 1, MEM: "x"}, "no whole number"),
        ({GPU: "-1", MEM: 1}, "no whole number"),
        ({GPU: 33, MEM: 1}, "a claim has 1 to 32 of them"),
    ],
)
def test_amounts_out_of_range(limits, why):
    assert why in refused(pod(container(limits)))


def test_every_container_with_gpus_is_of_it_and_the_others_are_left_alone():
    document = pod(
        container({GPU: 1, MEM: 3000}, "a"),
        container(None, "b"),
        container({GPU: 2}, "c"),
        container({GPU: 0}, "d"),
    )
    assert needs(document) == {"a": "1 x 3000Mi", "c": "2 x whole"}


@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_a_privileged_container_is_refused_as_it_is_by_hami(group):
    sly = container(None, "sly", securityContext={"privileged": True})
    document = pod(container({GPU: 1, MEM: 3000}))
    document["spec"][group] = [*document["spec"].get(group, []), sly]
    assert "sly is privileged" in refused(document)


@pytest.mark.parametrize(
    ("key", "value", "expression"),
    [
        ("use-gputype", "A100, v100", ".contains('a100') || device."),
        ("nouse-gputype", "1080", "!(has(device.attributes['gpu.partage.dev'].productName) && "),
        ("use-gpuuuid", "GPU-AB", ".lowerAscii() in ['gpu-ab']"),
        ("nouse-gpuuuid", "GPU-AB,GPU-CD", "!(has(device.attributes['gpu.partage.dev'].uuid) && "),
    ],
)
def test_types_and_uuids_become_expressions(key, value, expression):
    document = pod(container({GPU: 2}), annotations={f"nvidia.com/{key}": value})
    (claim,) = translated(document).claims
    (asked,) = claim.form.spec["devices"]["requests"]
    assert any(expression in row["cel"]["expression"] for row in asked["exactly"]["selectors"])
    assert asked["exactly"]["count"] == 2
    # What is done with .?name.orValue('') is too complex for the API server: tests/e2e/test_other_systems.py.
    assert not any("orValue" in row["cel"]["expression"] for row in asked["exactly"]["selectors"])


def test_an_empty_rule_is_no_rule():
    assert translate(pod(container({GPU: 1}), annotations={"nvidia.com/use-gputype": " "}), TERMS) is None
    document = pod(container({GPU: 1, MEM: 1}), annotations={"nvidia.com/use-gputype": ", "})
    assert "productName" not in str(translated(document).claims[0].form.spec)


def test_a_rule_cannot_write_an_expression_of_its_own():
    document = pod(container({GPU: 1}), annotations={"nvidia.com/use-gputype": "a') || true || ('"})
    assert "neither a GPU model nor a UUID" in refused(document)


@pytest.mark.parametrize("policy", ["topology-aware", "mutex", "binpack, mutex"])
def test_policies_between_the_gpus_of_a_node_are_refused(policy):
    document = pod(container({GPU: 1, MEM: 1}), annotations={"hami.io/gpu-scheduler-policy": policy})
    assert "which the scheduler does with claims" in refused(document)


@pytest.mark.parametrize(
    ("key", "value", "warned"),
    [
        ("hami.io/gpu-scheduler-policy", "binpack", 0),
        ("hami.io/gpu-scheduler-policy", "spread,numa", 2),
        ("hami.io/node-scheduler-policy", "binpack", 1),
        ("nvidia.com/numa-bind", "true", 1),
        ("nvidia.com/numa-bind", "false", 0),
        ("nvidia.com/vgpu-mode", "mps", 1),
        ("nvidia.com/vgpu-mode", "mig", 0),
    ],
)
def test_what_has_no_effect_is_said(key, value, warned):
    found = translated(pod(container({GPU: 1, MEM: 3000}), annotations={key: value}))
    assert len(found.warnings) == warned
    assert all("no effect" in text or "as the policy says" in text for text in found.warnings)


def test_a_library_inside_the_container_is_refused():
    document = pod(container({GPU: 1, MEM: 1}), annotations={"nvidia.com/vgpu-mode": "hami-core"})
    assert "library inside the container" in refused(document)
    document["metadata"]["annotations"]["nvidia.com/vgpu-mode"] = "hami-core,mig"
    assert "mig.partage.dev" in translated(document).claims[0].form.words


def test_who_opts_out_of_hami_is_left_alone():
    assert translate(pod(container({GPU: 1, MEM: 1}), labels={"hami.io/webhook": "ignore"}), TERMS) is None


def terms(**nvidia):
    return AdmissionTerms(with_hami_config(DialectSettings(), {"nvidia": nvidia}), SIZES)


def test_names_and_defaults_are_those_of_hamis_configuration():
    renamed = terms(
        resourceCountName="corp/gpu", resourceMemoryName="corp/mem", memoryFactor=2, defaultGPUNum=2
    )
    assert needs(pod(container({"corp/gpu": 1, "corp/mem": 100})), renamed) == {"main": "1 x 200Mi"}
    assert needs(pod(container({"corp/mem": 100})), renamed) == {"main": "2 x 200Mi"}
    assert translate(pod(container({GPU: 1, MEM: 100})), renamed) is None
    defaults = terms(defaultMemory=500, defaultCores=20)
    assert needs(pod(container({GPU: 1, PERCENT: 0})), defaults) == {"main": "1 x 500Mi, 20 %"}
    assert "3000000000 MiB" in refused(pod(container({MEM: 10**9})), terms(memoryFactor=3))


def test_memory_that_is_given_out_twice_is_refused():
    assert "deviceMemoryScaling of 1.5" in refused(
        pod(container({GPU: 1, MEM: 1})), terms(deviceMemoryScaling=1.5)
    )
    assert needs(pod(container({GPU: 1, MEM: 1})), terms(deviceMemoryScaling=1)) == {"main": "1 x 1Mi"}


def test_a_name_that_a_device_plugin_lists_is_left_to_it():
    listed = AdmissionTerms(sizes=SIZES, listed=frozenset({MEM, GPU}))
    assert translate(pod(container({GPU: 1, MEM: 1})), listed) is None
    assert needs(pod(container({GPU: 1, PERCENT: 50})), listed) == {"main": "1 x 0.5"}

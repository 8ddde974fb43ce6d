"""The rules of Volcano, KAI, ACK, nos and GKE, each once."""

import pytest

from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.translate import AdmissionTerms, translate
from partage.units import MIB
from tests.admission.pods import SIZES, TERMS, container, needs, pod, refused, translated

V = "volcano.sh/"
GPU, GPU_MEM = "nvidia.com/gpu", "aliyun.com/gpu-mem"
ACK_CORES, ACK_COUNT = "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count"


@pytest.mark.parametrize(
    ("limits", "need"),
    [
        ({"vgpu-number": 1, "vgpu-memory": 1024}, "1 x 1024Mi"),
        ({"vgpu-number": 2, "vgpu-memory": 2000, "vgpu-cores": 20}, "2 x 2000Mi, 20 %"),
        ({"vgpu-memory": 1024}, "1 x 1024Mi"),
        ({"vgpu-number": 1, "vgpu-memory-percentage": 25}, "1 x 0.25"),
        ({"vgpu-number": 1, "vgpu-memory": 10, "vgpu-memory-percentage": 25}, "1 x 10Mi"),
        ({"vgpu-number": 2}, "2 x whole"),
        ({"vgpu-number": 1, "vgpu-memory": 10, "vgpu-cores": 100}, "1 x whole"),
        ({"gpu-memory": 1024}, "1 x 1024Mi"),
        ({"gpu-number": 2}, "2 x whole"),
    ],
)
def test_volcano(limits, need):
    assert needs(pod(container({V + key: amount for key, amount in limits.items()}))) == {"main": need}


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"vgpu-memory-percentage": 25}, "without volcano.sh/vgpu-number"),
        ({"vgpu-number": 1, "vgpu-memory-percentage": 101}, "which is 1 to 100"),
        ({"vgpu-number": 1, "vgpu-memory": 1, "vgpu-cores": 101}, "which is 1 to 100"),
        ({"vgpu-number": 0, "vgpu-memory": 1}, "a claim has 1 to 32"),
        ({"gpu-number": 1, "gpu-memory": 1}, "at once"),
        ({"gpu-memory": 0}, "asks for 0"),
    ],
)
def test_volcano_refused(limits, why):
    assert why in refused(pod(container({V + key: amount for key, amount in limits.items()})))


def test_volcanos_annotations_and_those_that_it_has_of_hami():
    asking = container({V + "vgpu-number": 1, V + "vgpu-memory": 1024})
    marks = {
        "nvidia.com/use-gputype": "A100",
        V + "vgpu-nouse-gpuuuid": "GPU-ab",
        V + "vgpu-podgroup-policy": "spread",
    }
    found = translated(pod(asking, annotations=marks))
    assert found.system == "Volcano"
    assert len(found.warnings) == 1
    text = str(found.claims[0].form.spec)
    assert "contains('a100')" in text
    assert "in ['gpu-ab']" in text
    assert "library" in refused(pod(asking, annotations={V + "vgpu-mode": "hami-core"}))
    init = pod(container(), initContainers=[asking])
    assert "ordinary containers only" in refused(init)


@pytest.mark.parametrize(
    ("marks", "need"),
    [
        ({"gpu-fraction": "0.5"}, "1 x 0.5"),
        ({"gpu-fraction": ".25", "gpu-fraction-num-devices": "2"}, "2 x 0.25"),
        ({"gpu-memory": "2000"}, "1 x 2000Mi"),
        ({"gpu-memory": "2000", "gpu-fraction-num-devices": "3"}, "3 x 2000Mi"),
    ],
)
def test_kai(marks, need):
    assert needs(pod(container(), container(name="b"), annotations=marks)) == {"main": need}
    named = {**marks, "gpu-fraction-container-name": "b"}
    assert needs(pod(container(), container(name="b"), annotations=named)) == {"b": need}
    init = pod(container(), initContainers=[container(name="b")], annotations=named)
    assert needs(init) == {"b": need}


@pytest.mark.parametrize(
    ("marks", "why"),
    [
        ({"gpu-fraction": "1"}, "not a number between 0 and 1"),
        ({"gpu-fraction": "0"}, "not a number between 0 and 1"),
        ({"gpu-fraction": "half"}, "not a number between 0 and 1"),
        ({"gpu-fraction": "NaN"}, "not a number between 0 and 1"),
        ({"gpu-memory": "0"}, "gpu-memory is 0"),
        ({"gpu-memory": "2Gi"}, "no whole number"),
        ({"gpu-memory": "9999999999"}, "the most that can be named"),
        ({"gpu-fraction": "0.5", "gpu-memory": "1"}, "side by side"),
        ({"gpu-fraction-num-devices": "2"}, "stands without"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}, "1 to 32"),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "z"}, "no container 'z'"),
    ],
)
def test_kai_refused(marks, why):
    assert why in refused(pod(container(), annotations=marks))


def test_a_fraction_beside_whole_gpus_is_a_contradiction():
    assert "and for nvidia.com/gpu" in refused(pod(container({GPU: 1}), annotations={"gpu-fraction": "0.5"}))


@pytest.mark.parametrize(
    ("limits", "labels", "need"),
    [
        ({GPU_MEM: 3}, {}, "1 x 3072Mi"),
        ({GPU_MEM: 3, ACK_CORES: 25}, {}, "1 x 3072Mi, 25 %"),
        ({GPU_MEM: 6}, {ACK_COUNT: "2"}, "2 x 3072Mi"),
    ],
)
def test_ack(limits, labels, need):
    assert needs(pod(container(limits), labels=labels)) == {"main": need}


@pytest.mark.parametrize(
    ("limits", "labels", "why"),
    [
        (
            {GPU_MEM: 5},
            {ACK_COUNT: "2"},
            "divided evenly between 2 GPUs (label aliyun.com/gpu-count) | ask for 4 or 6",
        ),
        ({GPU_MEM: 4}, {ACK_COUNT: "x"}, "no number of GPUs"),
        ({GPU_MEM: "5.5"}, {}, "no whole number"),
        ({GPU_MEM: 4, ACK_CORES: 7}, {}, "in steps of 5"),
        ({GPU_MEM: 4, ACK_CORES: 105}, {}, "in steps of 5"),
        ({ACK_CORES: 5}, {}, "asks for no aliyun.com/gpu-mem"),
        ({GPU_MEM: 4, "aliyun.com/gpu-core.tflops": 5}, {}, "no driver can hold"),
        ({ACK_COUNT: 1}, {}, "is no request"),
    ],
)
def test_ack_refused(limits, labels, why):
    assert why in refused(pod(container(limits), labels=labels))


def test_memory_in_mib_and_memory_of_partages_own_plugin():
    mib = AdmissionTerms(DialectSettings(gpu_mem_bytes=MIB), SIZES)
    assert needs(pod(container({GPU_MEM: 16276})), mib) == {"main": "1 x 16276Mi"}
    listed = AdmissionTerms(sizes=SIZES, listed=frozenset({GPU_MEM}))
    assert translate(pod(container({GPU_MEM: 4})), listed) is None
    several = pod(container({GPU_MEM: 4}), labels={ACK_COUNT: "2"})
    assert needs(several, listed) == {"main": "2 x 2048Mi"}  # no plugin gives memory of two GPUs


def test_nos():
    assert needs(pod(container({"nvidia.com/gpu-10gb": 1}))) == {"main": "1 x 10240Mi"}
    assert "nos gives a container one" in refused(pod(container({"nvidia.com/gpu-10gb": 2})))
    assert "nos gives a container one" in refused(
        pod(container({"nvidia.com/gpu-1gb": 1, "nvidia.com/gpu-2gb": 1}))
    )
    listed = AdmissionTerms(sizes=SIZES, listed=frozenset({"nvidia.com/gpu-10gb"}))
    assert translate(pod(container({"nvidia.com/gpu-10gb": 1})), listed) is None


def gke(gpus=1, **selector):
    named = {f"cloud.google.com/gke-{key.replace('_', '-')}": value for key, value in selector.items()}
    return pod(container({GPU: gpus}), nodeSelector={**named, "zone": "a"})


def test_gke():
    shared = gke(gpu_sharing_strategy="time-sharing", max_shared_clients_per_gpu="4")
    assert needs(shared) == {"main": "1 x 1 of 4"}
    assert needs(gke(gpu_sharing_strategy="mps")) == {"main": "1 x 1 of None"}
    assert needs(gke(2, gpu_sharing_strategy="mps", max_shared_clients_per_gpu="4")) == {"main": "1 x 2 of 4"}
    assert translate(gke(accelerator="nvidia-l4"), TERMS) is None
    listed = AdmissionTerms(sizes=SIZES, listed=frozenset({GPU}))
    assert translate(shared, listed) is None


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (gke(2, gpu_sharing_strategy="time-sharing"), "one share"),
        (gke(5, gpu_sharing_strategy="mps", max_shared_clients_per_gpu="4"), "parts of one GPU only"),
        (gke(gpu_sharing_strategy="other"), "neither time-sharing nor mps"),
        (gke(max_shared_clients_per_gpu="49"), "not 2 to 48"),
    ],
)
def test_gke_refused(document, why):
    assert why in refused(document)

"""What a Kubernetes manifest asks of GPUs, judged."""

from typing import Any

import pytest

from partage.kubernetes.manifests.manifest import findings
from partage.kubernetes.manifests.pods import is_manifest, objects_of
from partage.model.ids import ResourceName
from partage.model.share import Resource
from tests.answers.nodes import EXCLUSIVE, GUARDED, HARD, MPS, NONE, SLICED, offering

GPU, SHARED = ResourceName("nvidia.com/gpu"), ResourceName("nvidia.com/gpu.shared")
OFFERED = {
    GPU: Resource(GPU, (offering(0, EXCLUSIVE, 1, HARD),)),
    SHARED: Resource(SHARED, (offering(1, MPS, 4, GUARDED, single=True, resource=SHARED),)),
}


def _pod(limits, **container) -> dict[str, Any]:
    main = {"name": "main", "resources": {"limits": limits}, **container}
    return {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [main]}}


def _said(document, offered=None):
    return [
        (found.problem.severity, found.problem.path, found.here)
        for found in findings(document, "f", "", offered)
    ]


@pytest.mark.parametrize(
    ("limits", "offered"),
    [({"nvidia.com/gpu": 1}, OFFERED), ({"nvidia.com/gpu": "2"}, None), ({"cpu": "1"}, OFFERED)],
)
def test_a_request_that_can_be_met_is_left_in_peace(limits, offered):
    assert _said(_pod(limits), offered) == []


def test_two_of_our_resources_in_one_container_collide():
    assert _said(_pod({"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 1}), OFFERED) == [
        ("warning", "spec.containers[0].resources.limits", False)
    ]


def test_more_than_one_share_of_a_single_share_resource_fails_the_pod():
    (found,) = findings(_pod({"nvidia.com/gpu.shared": 2}), "f", "", OFFERED)
    assert found.here
    assert "may hold one" in found.problem.message
    assert found.problem.path == "spec.containers[0].resources.limits.nvidia.com/gpu.shared"


def _sliced(*gpus, **more):
    return Resource(GPU, tuple(offering(gpu, SLICED, 4, NONE, **more) for gpu in gpus))


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (_sliced(0), "2 shares of a GPU give no more of it than one"),
        (_sliced(0, 1), "and these may be of one GPU"),
        (Resource(GPU, (offering(0, MPS, 4, GUARDED),)), "MPS x 4"),
        (Resource(GPU, (offering(0, EXCLUSIVE, 1, HARD), *_sliced(1).offerings)), "time-slicing x 4"),
        (Resource(GPU, (offering(0, MPS, 4, GUARDED, limits_in_env=True),)), None),
        (Resource(GPU, tuple(offering(gpu, EXCLUSIVE, 1, HARD) for gpu in (0, 1))), None),
    ],
)
def test_two_shares_of_a_gpu_are_no_more_gpu(offered, said):
    asked = findings(_pod({"nvidia.com/gpu": 2}), "f", "", {GPU: offered})
    found = [one for one in asked if one.problem.path.endswith("nvidia.com/gpu")]
    assert [one.problem.severity for one in found] == ["warning"] * (said is not None)
    assert all(said in one.problem.message for one in found)


def test_two_shared_gpus_are_warned_of_without_a_policy():
    assert [(severity, here) for severity, _, here in _said(_pod({"nvidia.com/gpu.shared": 2}))] == [
        ("warning", False)
    ]
    assert _said(_pod({"nvidia.com/gpu.shared": 1})) == []


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        ({"name": "train"}, "Pod/train, container main: "),
        ({"generateName": "train-", "namespace": "a"}, "Pod/train- (namespace a), container main: "),
        (None, "Pod, container main: "),
    ],
)
def test_a_problem_says_of_what_object_and_container_it_is(metadata, owner):
    (found,) = findings({**_pod({"nvidia.com/gpu": "x"}), "metadata": metadata}, "f")
    assert found.problem.message.startswith(owner)


def test_more_than_the_node_offers_would_wait_for_ever():
    (found,) = findings(_pod({"nvidia.com/gpu": 3}), "f", "", OFFERED)
    assert found.here
    assert "the node offers 1" in found.problem.message


def test_a_name_that_nobody_offers_is_impossible_here_and_no_error_elsewhere():
    asked = _pod({"nvidia.com/mig-1g.10gb": 1})
    assert [found.here for found in findings(asked, "f", "", OFFERED)] == [True]
    assert findings(asked, "f") == []


@pytest.mark.parametrize("amount", ["500m", 1.5, -1, None, True, "many"])
def test_an_amount_that_is_no_whole_number_is_an_error(amount):
    assert _said(_pod({"nvidia.com/gpu": amount})) == [
        ("error", "spec.containers[0].resources.limits.nvidia.com/gpu", False)
    ]


def test_a_request_without_a_limit_is_an_error():
    document = _pod({}, resources={"requests": {"nvidia.com/gpu": 1}})
    assert _said(document) == [("error", "spec.containers[0].resources.requests.nvidia.com/gpu", False)]


@pytest.mark.parametrize(("value", "problems"), [("all", 1), ("GPU-1", 1), ("void", 0), ("none", 0)])
def test_choosing_ones_own_gpus_by_environment_is_warned_of(value, problems):
    document = _pod({"nvidia.com/gpu": 1}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}])
    assert len(_said(document)) == problems


def test_a_volume_at_dev_shm_hides_what_an_mps_share_brings():
    mounts = [{"name": "shm", "mountPath": "/dev/shm/"}]
    document = _pod({"nvidia.com/gpu.shared": 1}, volumeMounts=mounts)
    assert _said(document, OFFERED) == [("warning", "spec.containers[0].volumeMounts[0]", True)]
    assert _said(_pod({"nvidia.com/gpu": 1}, volumeMounts=mounts), OFFERED) == []


def test_volcanos_job_keeps_its_pods_elsewhere_than_kubernetes_own():
    container = {"image": "a", "resources": {"limits": {"nvidia.com/gpu": "x"}}}
    spec = {"tasks": [{"template": {"spec": {"containers": [container]}}}]}
    document = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": spec}
    path = "spec.tasks[0].template.spec.containers[0].resources.limits.nvidia.com/gpu"
    assert _said(document) == [("error", path, False)]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", "spec.template.spec.initContainers[0].resources.limits.nvidia.com/gpu"),
        ("CronJob", "spec.jobTemplate.spec.template.spec.initContainers[0].resources.limits.nvidia.com/gpu"),
    ],
)
def test_a_pod_template_is_found_wherever_its_kind_keeps_it(kind, path):
    spec: dict[str, Any] = {"initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "x"}}}]}
    for key in reversed(path.split(".initContainers")[0].split(".")):
        spec = {key: spec}
    group = "apps" if kind == "Deployment" else "batch"
    document = {"apiVersion": f"{group}/v1", "kind": kind, **spec}
    assert _said(document) == [("error", path, False)]


@pytest.mark.parametrize(
    "rubbish", [None, [], "x", {"spec": 3}, {"spec": {"containers": [None, 3, {"resources": []}]}}]
)
def test_rubbish_in_a_manifest_is_the_api_servers_affair(rubbish):
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        **(rubbish if isinstance(rubbish, dict) else {"spec": rubbish}),
    }
    assert findings(document, "f", "", OFFERED) == []


def test_our_own_documents_are_no_manifests():
    assert not is_manifest({"apiVersion": "partage/v1", "kind": "Plan"})
    assert is_manifest({"apiVersion": "v1", "kind": "Pod"})


@pytest.mark.parametrize("amount", ["2", 2, "2000m", "2e0", 2.0, "0.002k"])
def test_every_way_in_which_kubernetes_writes_a_count_is_read(amount):
    pod = _pod({"nvidia.com/gpu.shared": amount})
    pod["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu.shared": 2}
    (found,) = findings(pod, "f", "", OFFERED)
    assert "asks for 2 of nvidia.com/gpu.shared" in found.problem.message


PYTORCH_JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "spec": {
        "pytorchReplicaSpecs": {
            "Master": {"template": _pod({"nvidia.com/gpu.shared": 2})},
            "Worker": {"template": _pod({"nvidia.com/gpu": 1})},
        }
    },
}


def test_pods_are_found_in_objects_of_kinds_that_are_not_kubernetes_own():
    assert _said(PYTORCH_JOB, OFFERED) == [
        (
            "error",
            "spec.pytorchReplicaSpecs.Master.template.spec.containers[0].resources.limits"
            ".nvidia.com/gpu.shared",
            True,
        )
    ]


def test_a_gpu_for_the_pod_as_a_whole_is_no_gpu():
    pod = _pod({})
    pod["spec"]["resources"] = {"limits": {"nvidia.com/gpu": 1, "cpu": 1}}
    assert _said(pod) == [("error", "spec.resources.limits.nvidia.com/gpu", False)]


def test_a_container_for_debugging_sees_no_gpus_of_others():
    pod = _pod({})
    everything = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod["spec"]["ephemeralContainers"] = [{"name": "debug", "env": everything}]
    assert _said(pod) == [("warning", "spec.ephemeralContainers[0].env[0]", False)]


def test_a_forgotten_api_version_is_said():
    pod = _pod({"nvidia.com/gpu": 1})
    del pod["apiVersion"]
    assert is_manifest(pod)
    assert _said(pod) == [("error", "", False)]


def test_the_items_of_a_list_need_not_say_their_kind():
    listed = {"apiVersion": "v1", "kind": "PodList", "items": [{"spec": _pod({})["spec"]}]}
    [(path, pod)] = objects_of(listed, "")
    assert (path, pod["kind"], pod["apiVersion"]) == ("items[0]", "Pod", "v1")


def test_a_profile_of_this_machine_is_not_called_one_of_other_models():
    pod = _pod({"nvidia.com/mig-1g.5gb": 1})
    models = {"1g.5gb": ("a100-40gb", "a800-40gb")}
    found = findings(pod, "f", "", OFFERED, models_of=models.__getitem__, models_here={"a100-40gb"})
    assert ["nothing offers" in one.problem.message for one in found] == [True]

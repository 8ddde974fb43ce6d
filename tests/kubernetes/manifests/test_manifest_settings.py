"""Settings in manifests that do not fit the share that a container asks for."""

from typing import Any

import pytest

from partage.cli.checked_files import models_with
from partage.edges.files.catalogue import load_catalogue
from partage.kubernetes.manifests.manifest import findings
from partage.model.ids import ResourceName
from partage.model.share import Resource
from tests.answers.nodes import ADVISORY, EXCLUSIVE, GUARDED, HARD, MPS, NONE, SLICED, offering

GPU, SHARED, SLICES = (ResourceName(f"nvidia.com/gpu{end}") for end in ("", ".shared", ".slices"))
OFFERED = {
    GPU: Resource(GPU, (offering(0, EXCLUSIVE, 1, HARD),)),
    SHARED: Resource(SHARED, (offering(1, MPS, 4, GUARDED, single=True, resource=SHARED),)),
    SLICES: Resource(SLICES, (offering(2, SLICED, 2, NONE, resource=SLICES),)),
}
HERE = "spec.containers[0]."


def _said(resource, offered=OFFERED, models_of=None, **container) -> list[tuple[str, str]]:
    main = {"name": "main", "resources": {"limits": {resource: 1}}, **container}
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [main]}}
    found = findings(pod, "f", "", offered, models_of=models_of)
    assert all(one.problem.hint for one in found)
    return [(one.problem.path.removeprefix(HERE), one.problem.message) for one in found]


def _env(name, value):
    return {"env": [{"name": name, "value": value}]}


VLLM = {"image": "docker.io/vllm/vllm-openai:v0.9"}
WRONG = [
    (SHARED, {"args": ["--gpu-memory-utilization", "0.9"]}, "args[0]", "the share is 0.25 of it"),
    (SHARED, {"args": ["--gpu-memory-utilization=0.26"]}, "args[0]", "0.26 is a part of the whole GPU"),
    (SHARED, {"args": ["serve", "--gpu_memory_utilization=.9"]}, "args[1]", "--gpu_memory_utilization 0.9"),
    (
        SHARED,
        {"command": ["sh", "-c", "sglang --mem-fraction-static 0.8"]},
        "command[2]",
        "mem-fraction-static",
    ),
    (SHARED, {"args": ["--cuda-memory-fraction", "1.0"]}, "args[0]", "--cuda-memory-fraction 1 is"),
    (SHARED, VLLM, "image", "what vLLM without --gpu-memory-utilization takes, 0.9, is a part"),
    (SHARED, {"command": ["vllm", "serve"]}, "image", "vLLM without"),
    (SHARED, _env("XLA_PYTHON_CLIENT_MEM_FRACTION", ".75"), "env[0].value", "MEM_FRACTION 0.75 is a part"),
    (SHARED, _env("XLA_CLIENT_MEM_FRACTION", "1.1"), "env[0].value", "MEM_FRACTION 1.1 is a part"),
    (
        SHARED,
        _env("PYTORCH_CUDA_ALLOC_CONF", "a:b,per_process_memory_fraction:0.5"),
        "env[0].value",
        "fraction 0.5",
    ),
    (SHARED, _env("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"), "env[0]", "ignores every limit"),
    (SHARED, _env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps"), "env[0]", "would not find the daemon"),
    (SHARED, _env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=21G"), "env[0].value", "larger than any share (20"),
    (SLICES, {}, "resources.limits", "nothing limits the GPU memory"),
    (SLICES, {"args": ["--gpu-memory-utilization=0.9"]}, "args[0]", "the share is 0.5 of it"),
]
SHELL = ["sh", "-c"]
WRONG += [
    # In quotes, over two lines, from a variable, in Python code, in a shell, as one text.
    (
        SHARED,
        {"command": [*SHELL, "vllm serve m --gpu-memory-utilization '0.9'"]},
        "command[2]",
        "ion 0.9 is",
    ),
    (SHARED, {"args": ["vllm serve \\\n --gpu-memory-utilization \\\n  0.9"]}, "args[0]", "ion 0.9 is"),
    (
        SHARED,
        {"args": ["--gpu-memory-utilization", "$(PART)"], **_env("PART", "0.9")},
        "args[0]",
        "--gpu-memory-utilization 0.9 is",
    ),
    (SHARED, {"command": ["python", "-c", "LLM('m', gpu_memory_utilization=0.9)"]}, "command[2]", "0.9 is"),
    (SHARED, {"command": ["python", "-c", "set_per_process_memory_fraction(0.9)"]}, "command[2]", "0.9 is"),
    (
        SHARED,
        {"args": ["export XLA_PYTHON_CLIENT_MEM_FRACTION=.9; python t.py"]},
        "args[0]",
        "FRACTION 0.9 is",
    ),
    (SHARED, {"args": "--gpu-memory-utilization=0.9"}, "args", "0.9 is"),
]
RIGHT = [
    (SHARED, {**VLLM, "command": [*SHELL, 'vllm serve m --gpu-memory-utilization "0.2"']}),
    (SHARED, {**VLLM, "args": ["--gpu-memory-utilization", "$PART"], **_env("PART", "0.2")}),
    (SHARED, {**VLLM, "args": ["--gpu-memory-utilization", "$PART"]}),  # only the running shell knows
    (SLICES, {"command": ["python", "-c", "torch.cuda.set_per_process_memory_fraction(0.5, 0)"]}),
    (SHARED, {"args": ["--gpu-memory-utilization", "0.25"]}),
    (SHARED, {**VLLM, "args": ["--gpu-memory-utilization=0.2"]}),
    (SHARED, {"image": "team/novllm-proxy"}),
    (SHARED, _env("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.2")),
    (SHARED, _env("XLA_PYTHON_CLIENT_MEM_FRACTION", "$(FRACTION)")),
    (SHARED, _env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=20480M")),
    (SLICES, {"args": ["--gpu-memory-utilization=0.5"]}),
    (GPU, {"args": ["--gpu-memory-utilization=0.95"]}),
    (GPU, VLLM),
    (GPU, _env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")),
]


@pytest.mark.parametrize(("resource", "container", "path", "message"), WRONG)
def test_a_setting_that_defeats_the_share_is_named(resource, container, path, message):
    [(where, said)] = _said(resource, **container)
    assert where == path
    assert message in said


@pytest.mark.parametrize(("resource", "container"), RIGHT)
def test_a_setting_that_fits_is_left_in_peace(resource, container):
    assert _said(resource, **container) == []


def test_a_guarded_share_needs_no_limit_of_its_own():
    guarded = Resource(SLICES, (offering(2, SLICED, 2, ADVISORY, guard=True, resource=SLICES),))
    assert _said(SLICES, {SLICES: guarded}) == []


def test_without_a_policy_a_share_is_half_of_a_gpu_at_most():
    [(_, said)] = _said(SHARED, None, args=["--gpu-memory-utilization=0.9"])
    assert "half of it at most" in said
    assert _said(SHARED, None, args=["--gpu-memory-utilization=0.4"]) == []
    assert _said(GPU, None, args=["--gpu-memory-utilization=0.9"]) == []


def test_a_profile_that_no_model_has_and_one_of_other_models_are_told_apart():
    assert [s for _, s in _said("nvidia.com/mig-2g.25gb", None, models_with) if "no known GPU model" in s]
    said = [s for _, s in _said("nvidia.com/mig-1g.5gb", OFFERED, models_with)]
    assert any("1g.5gb is a MIG profile of a100-40gb" in one for one in said)


@pytest.mark.parametrize("model", [m for m in load_catalogue().models if m.geometry], ids=lambda m: m.id)
def test_every_profile_of_every_model_is_known(model):
    for spec in model.geometry.profiles:
        plain = str(spec.profile).replace("+", ".").replace(",", ".")
        assert _said(f"nvidia.com/mig-{plain}", None, models_with) == [], spec.profile


def test_two_resources_in_one_container_collide_only_where_a_variable_names_them():
    limits = {"limits": {GPU: 1, SHARED: 1}}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "m", "resources": limits}]}}
    assert len(findings(pod, "f", "", OFFERED)) == 1
    assert findings(pod, "f", "", OFFERED, only_cdi=True) == []

"""``--node-labels``, ``--fallback`` and a directory as ``--policy``, on verbs that need no agent."""

import io
import json

import pytest

from partage.cli.main import run

NODE = ["--machine", "2xh100-sxm5-80gb"]
SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
WHEN = "version: partage/v1\ngpus: [{select: all, when: {label: {pool: inference}}, mps: {replicas: 3}}]\n"
MIG = """
version: v1
mig-configs:
  halves: [{devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  all-balanced:
    - {devices: [0], mig-enabled: true, mig-devices: {2g.20gb: 3}}
    - {devices: [1], mig-enabled: false}
"""


@pytest.fixture
def policies(tmp_path):
    """A directory as the kubelet makes one of a ConfigMap."""
    data = tmp_path / "..data"
    data.mkdir()
    for name, text in {
        "default": "version: partage/v1\n",
        "shared": SHARED,
        "when": WHEN,
        "mig": MIG,
    }.items():
        (data / name).write_text(text)
        (tmp_path / name).symlink_to(data / name)
    (tmp_path / "..hidden").write_text("nonsense")
    return str(tmp_path)


def offered(capsys, *arguments):
    """Resource to count; or the exit code and what is wrong."""
    code = run(["plan", "-o", "json", *NODE, *arguments])
    document = json.loads(capsys.readouterr().out)
    if code:
        return code, document["problems"][0]["message"]
    return {row["name"]: row["count"] for row in document["resources"]}


@pytest.mark.parametrize(
    ("labels", "resources"),
    [
        ("", {"nvidia.com/gpu": 2}),
        ("nvidia.com/device-plugin.config=shared", {"nvidia.com/gpu": 8}),
        ("partage.dev/policy=when", {"nvidia.com/gpu": 2}),
        ("partage.dev/policy=when,pool=inference", {"nvidia.com/gpu.shared": 6}),
        ("nvidia.com/mig.config=halves", {"nvidia.com/mig-3g.40gb": 4}),
        ("nvidia.com/mig.config=all-balanced", {"nvidia.com/mig-2g.20gb": 3, "nvidia.com/gpu": 1}),
        ("nvidia.com/mig.config=all-1g.20gb", {"nvidia.com/mig-1g.20gb": 8}),
        ("nvidia.com/mig.config=all-disabled", {"nvidia.com/gpu": 2}),
        ("partage.dev/policy=mig,nvidia.com/mig.config=halves", {"nvidia.com/mig-3g.40gb": 4}),
        ("partage.dev/policy=when,pool=inference,nvidia.com/mig.config=halves",
         {"nvidia.com/mig-3g.40gb.shared": 12}),
    ],
)  # fmt: skip
def test_labels_choose(capsys, policies, labels, resources):
    assert offered(capsys, "--policy", policies, "--node-labels", labels) == resources


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--node-labels", "partage.dev/policy=sharde"], "asks for 'sharde', and no policy has that name"),
        (["--config", "nothing"], "default asks for 'nothing'"),
        (["--fallback", "single"], "no policy is chosen"),
        (["--fallback", "anything"], "--fallback 'anything' is not known"),
        (["--node-labels", "pool"], "no such file"),
        (["--node-labels", "po ol=x"], "not the key of a label"),
        (["--node-labels", "nvidia.com/mig.config=quarters"], "unknown layout: 'quarters'"),
        (["--config", "when"], "depends on the labels of the node"),
        (["--config", "mig"], "holds 2 configurations, and none is chosen"),
    ],
)
def test_what_is_wrong_is_said(capsys, policies, arguments, said):
    code, message = offered(capsys, "--policy", policies, *arguments)
    assert code == 2
    assert said in message


def test_the_default_the_fallback_and_a_file(capsys, policies):
    assert offered(capsys, "--policy", policies, "--config", "shared") == {"nvidia.com/gpu": 8}
    assert offered(capsys, "--policy", policies, "--fallback", "single,empty") == {"nvidia.com/gpu": 2}
    assert offered(capsys, "--policy", f"{policies}/mig", "--config", "halves") == {
        "nvidia.com/mig-3g.40gb": 4
    }


def test_sharing_as_nvidias_file_says_it_of_devices_that_a_label_asks_for(capsys, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: v1\nflags: {migStrategy: mixed}\n"
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-3g.40gb, replicas: 2}]}}\n"
    )
    label = ["--node-labels", "nvidia.com/mig.config=all-3g.40gb"]
    assert offered(capsys, "--policy", str(policy), *label) == {"nvidia.com/mig-3g.40gb": 8}


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("version: v1\n", 3, "a MIG layout under MIG strategy none"),
        (
            "version: partage/v1\ngpus: [{select: all, mig: {layout: all-balanced}}]\n",
            2,
            "a layout of its own",
        ),
    ],
)
def test_a_label_that_contradicts_the_policy_is_refused(capsys, tmp_path, text, code, said):
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    label = ["--node-labels", "nvidia.com/mig.config=all-3g.40gb"]
    found, message = offered(capsys, "--policy", str(policy), *label)
    assert found == code
    assert said in message


def test_a_label_that_says_what_the_policy_says_is_fine(capsys, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: partage/v1\ngpus: [{select: all, mig: {layout: all-balanced}}]\n")
    label = ["--node-labels", "nvidia.com/mig.config=all-balanced"]
    assert offered(capsys, "--policy", str(policy), *label)["nvidia.com/mig-3g.40gb"] == 2


def test_a_layout_that_only_some_models_have_concerns_only_those(capsys):
    label = ["--node-labels", "nvidia.com/mig.config=all-1g.10gb"]
    mixed = ["--machine", "1xh100-sxm5-80gb+1xa30-24gb"]
    assert run(["plan", "-o", "json", *mixed, *label]) == 0
    resources = {row["name"]: row["count"] for row in json.loads(capsys.readouterr().out)["resources"]}
    assert resources == {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/gpu": 1}


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "Node", "metadata": {"name": "n", "labels": {"pool": "inference"}}}',
        "metadata:\n  labels:\n    pool: inference\n",
        "pool: inference\n",
    ],
)
def test_labels_as_kubectl_prints_them(capsys, tmp_path, monkeypatch, text):
    policy = tmp_path / "policy.yaml"
    policy.write_text(WHEN)
    node = tmp_path / "node.yaml"
    node.write_text(text)
    assert offered(capsys, "--policy", str(policy), "--node-labels", str(node)) == {
        "nvidia.com/gpu.shared": 6
    }
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert offered(capsys, "--policy", str(policy), "--node-labels", "-") == {"nvidia.com/gpu.shared": 6}


@pytest.mark.parametrize(
    ("text", "said"),
    [("[1]", "has to be a Node"), ("pool: 4", "put it in quotes"), ("metadata: 3", "has to be a Node")],
)
def test_a_file_that_has_no_labels_is_refused(capsys, tmp_path, text, said):
    node = tmp_path / "node.yaml"
    node.write_text(text)
    code, message = offered(capsys, "--node-labels", str(node))
    assert code == 2
    assert said in message

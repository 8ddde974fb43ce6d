"""``partage plan``."""

import json

import pytest

from partage.cli.main import run

MACHINE = "8xh100-sxm5-80gb"
MIXED = """\
version: partage/v1
gpus:
  - {select: {index: [0, 1]}, mps: {replicas: 4}}
  - {select: {index: [2]}, name: nvidia.com/gpu.notebooks, time-slicing: {replicas: 10, interval: short}}
  - {select: {index: [3]}, mig: {layout: [3g.40gb, 1g.10gb]}}
"""


@pytest.fixture
def policy(tmp_path):
    def write(text):
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        return str(path)

    return write


def _plan(capsys, *arguments):
    code = run(["plan", "--machine", MACHINE, "-o", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_without_a_policy_every_gpu_is_exclusive(capsys):
    code, plan = _plan(capsys)
    assert code == 0
    assert plan["kind"] == "Plan"
    assert plan["driver"]["state"] == "ok"
    (row,) = plan["resources"]
    assert (row["name"], row["count"], row["strategy"], row["guarantee"]) == (
        "nvidia.com/gpu", 8, "exclusive", "hard",
    )  # fmt: skip
    assert [gpu["index"] for gpu in row["gpus"]] == list(range(8))


def test_a_mixed_policy_gives_every_gpu_its_row(capsys, policy):
    code, plan = _plan(capsys, "--policy", policy(MIXED))
    assert code == 0
    rows = {row["name"]: row for row in plan["resources"]}
    assert {name: row["count"] for name, row in rows.items()} == {
        "nvidia.com/gpu.shared": 8,
        "nvidia.com/gpu.notebooks": 10,
        "nvidia.com/mig-3g.40gb": 1,
        "nvidia.com/mig-1g.10gb": 1,
        "nvidia.com/gpu": 4,
    }
    assert rows["nvidia.com/gpu.shared"]["gpus"][0]["devices"][0]["threadsPercent"] == 25
    assert rows["nvidia.com/mig-3g.40gb"]["gpus"][0]["planned"] is True


def test_the_steps_name_what_has_to_be_done_to_which_gpu(capsys, policy):
    _, plan = _plan(capsys, "--policy", policy(MIXED))
    steps = [(*step["gpus"], step["act"]) for step in plan["steps"]]
    assert steps[:5] == [
        (0, "set-compute-mode"),
        (0, "start-daemon"),
        (1, "set-compute-mode"),
        (1, "start-daemon"),
        (2, "set-time-slice"),
    ]
    assert [act for gpu, act in steps[5:] if gpu == 3] == [
        "set-mig-mode",
        "create-instance",
        "create-compute",
        "create-instance",
        "create-compute",
        "verify",
    ]
    assert [gpu["phase"] for gpu in plan["gpus"]] == ["ready"] * 4 + ["settled"] * 4


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("version: partage/v1\ngpus: [{select: {index: [9]}, mps: {replicas: 2}}]", 3),
        ("version: partage/v1\ngpus: [{select: all, mps: {replicas: 1}}]", 2),
        ("", 2),
        ("version: partage/v1\ngpus: [{select: all, mps: {replicas: 61}}]", 3),
        ("version: partage/v1\ngpus: [{select: all, mig: {layout: [3g.40gb, 3g.40gb, 3g.40gb]}}]", 3),
    ],
)
def test_what_is_wrong_and_what_is_impossible_have_codes_of_their_own(capsys, policy, text, code):
    found, document = _plan(capsys, "--policy", policy(text))
    assert found == code
    assert document["kind"] == "Problems"
    assert document["problems"]


def test_the_table_says_the_guarantees_in_words(capsys, policy):
    assert run(["plan", "--machine", MACHINE, "--policy", policy(MIXED)]) == 0
    text = capsys.readouterr().out
    assert "advisory: a tenant can lift the limit" in text
    assert "none: a neighbour can use all of it" in text
    assert "hard: GPU or driver holds it" in text
    assert "set the compute mode to exclusive-process" in text
    assert "0-1" in text


def test_an_incomplete_cdi_specification_is_called_so(capsys, policy):
    _, plan = _plan(capsys, "--policy", policy("version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri}}"))
    assert any("would not have the driver's libraries" in caveat for caveat in plan["caveats"])


def test_yaml_says_the_same_as_json(capsys):
    import yaml

    _, document = _plan(capsys)
    assert run(["plan", "--machine", MACHINE, "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == document


def test_a_configuration_needs_a_file_to_be_in(capsys):
    assert run(["plan", "--machine", MACHINE, "--config", "x"]) == 2
    assert "--policy" in capsys.readouterr().err


def test_the_table_keeps_the_order_of_each_gpus_steps(capsys, policy):
    text = "version: partage/v1\ngpus:\n  - {select: all, mig: {layout: [1g.6gb]}}\n"
    assert run(["plan", "--machine", "2xa30", "--policy", policy(text)]) == 0
    table = capsys.readouterr().out.split("What would change")[1]
    steps = [line.split("  ")[1].strip() for line in table.splitlines() if line.startswith("GPUs 0-1")]
    assert [step.split()[0] for step in steps] == ["turn", "reset", "create", "create"]


CLAIMS = """\
version: partage/v1
gpus:
  - {select: {index: [0, 1]}, via: claims, mps: {unit: 1Gi}}
  - {select: {index: [2]}, via: claims, time-slicing: {replicas: 4}}
  - {select: {index: [3]}, via: claims, mig: {layout: [3g.40gb, 3g.40gb]}}
  - {select: {index: [4]}, via: claims, exclusive: {}}
  - {select: rest, exclusive: {}}
"""


def test_classes_are_called_as_under_the_name_of_the_driver(capsys, policy):
    _, plan = _plan(capsys, "--policy", policy(CLAIMS), "--dra-driver-name", "gpu.nvidia.com")
    assert [(row["gpus"], row["deviceClass"]) for row in plan["claimable"]] == [
        ([0, 1], "gpu.nvidia.com"),
        ([2], "gpu.nvidia.com"),
        ([3], "mig.nvidia.com"),
        ([4], "gpu.nvidia.com"),
    ]


def test_which_gpus_go_to_claims_and_what_a_claim_can_ask_for_there(capsys, policy):
    _, plan = _plan(capsys, "--policy", policy(CLAIMS))
    found = [(row["gpus"], row["deviceClass"], row["asks"], row["guarantee"]) for row in plan["claimable"]]
    amounts = "memory 1 GiB to 79 GiB in steps of 1 GiB, or all of it"
    assert found == [
        ([0, 1], "gpu.partage.dev", amounts, "advisory"),
        ([2], "share.partage.dev", "1 to 4 shares of 19.9 GiB each", "none"),
        ([3], "mig.partage.dev", "the MIG device 3g.40gb (39.5 GiB)", "hard"),
        ([4], "gpu.partage.dev", "all of it (79.6 GiB)", "hard"),
    ]
    assert run(["plan", "--machine", MACHINE, "--policy", policy(CLAIMS)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"GPUs 0-1 by claim: gpu.partage.dev, {amounts} (advisory)" in out

"""GPU memory as an amount, as the command line says it."""

import json
from pathlib import Path

import pytest

from partage.cli.inspect import InspectedNode, detailed, summary
from partage.cli.main import run
from partage.model.ids import MEMORY_RESOURCE
from partage.plan.cluster.gpu_memory import (
    DeviceUnits,
    NodeMemory,
    PodMemory,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
BY_MEMORY = "version: partage/v1\ngpus: [{select: all, mps: {unit: %s}}]\n"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  containers:
    - name: main
      image: x
      resources: {limits: {aliyun.com/gpu-mem: %s}}
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def checked(capsys, *arguments):
    code = run(["check", "-o", "json", *arguments])
    return code, [
        (one["severity"], one["message"], one["hint"])
        for one in json.loads(capsys.readouterr().out)["problems"]
    ]


def test_the_plan_counts_units(capsys, write):
    policy = write("p.yaml", BY_MEMORY % "1Gi")
    assert run(["plan", "--machine", "2xa100-80gb", "--policy", policy, "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["resources"]
    assert (row["name"], row["count"], row["guarantee"]) == ("aliyun.com/gpu-mem", 158, "advisory")
    assert row["gpus"][0]["memoryBytes"] == 1 << 30
    assert row["gpus"][0]["devices"][0]["byMemory"] is True
    assert run(["plan", "--machine", "2xa100-80gb", "--policy", policy]) == 0
    said = capsys.readouterr()
    assert "MPS by memory" in said.out
    assert "250 to 820 MiB" in said.out + said.err
    assert run(["show", "--machine", "2xa100-80gb", "--policy", policy]) == 0
    assert "79 units of 1 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("labels", "offered", "warns"),
    [
        ("mps", {MEMORY_RESOURCE: ("mps", 21 + 79)}, False),
        ("share", {MEMORY_RESOURCE: ("time-slicing", 21 + 79)}, False),
        ("cgpu", {MEMORY_RESOURCE: ("mps", 21 + 79)}, True),
        ("core_mem", {MEMORY_RESOURCE: ("mps", 21 + 79)}, True),
        ("default", {"nvidia.com/gpu": ("exclusive", 2)}, False),
        ("", {"nvidia.com/gpu": ("exclusive", 2)}, False),
    ],
)
def test_the_labels_of_acks_pools_choose(capsys, write, labels, offered, warns):
    machine = write("m.yaml", "gpus: [{name: NVIDIA A10}, {name: NVIDIA A100-SXM4-80GB}]")
    policy = str(EXAMPLES / "14-gpu-memory" / "policy.yaml")
    chosen = f"ack.node.gpu.schedule={labels}" if labels else ""
    words = ["plan", "--machine", machine, "--policy", policy, "--node-labels", chosen, "-o", "json"]
    assert run(words) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)["resources"]
    assert {row["name"]: (row["strategy"], row["count"]) for row in rows} == offered
    assert (f"asks for {labels}, a kernel module of Alibaba's" in said.err) is warns


def test_a_unit_of_one_mib_is_impossible_and_the_numbers_are_said(capsys, write):
    assert run(["plan", "--machine", "1xa100-80gb", "--policy", write("p.yaml", BY_MEMORY % "1Mi")]) == 3
    said = capsys.readouterr().err
    assert "81,408 units of 1 MiB" in said
    assert "8,000" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mps: {unit: 1Gi, replicas: 4}", "replicas and unit exclude each other"),
        ("time-slicing: {unit: 1Gi, replicas: 4}", "replicas and unit exclude each other"),
        ("mps: {unit: 1}", "write 1Gi"),
        ("mps: {unit: -1Gi}", "not an amount of memory"),
        ("mps: {unit: 1000}", "write 1000Gi"),
        ("mps: {unit: 1.1Gi}", "not in whole MiB"),
        ("mps: {replicas: 4, placement: spread}", "there is no unit"),
        ("mps: {unit: 1Gi, placement: fullest}", "binpack"),
    ],
)
def test_a_policy_that_is_wrong_says_what_was_meant(capsys, write, text, said):
    code, problems = checked(
        capsys, write("p.yaml", f"version: partage/v1\ngpus: [{{select: all, {text}}}]\n")
    )
    assert code == 2
    assert said in str(problems)


@pytest.mark.parametrize("amount", ["2.5", "'2.5'", "-1", "3Gi"])
def test_an_amount_that_the_api_server_refuses_or_misreads(capsys, write, amount):
    pod = write("pod.yaml", POD % amount)
    policy = write("p.yaml", BY_MEMORY % "1Gi")
    for arguments in ([pod], [pod, "--policy", policy, "--machine", "1xa100-80gb"]):
        code, problems = checked(capsys, *arguments)
        assert code == 2
        assert "is not a number of units of memory" in str(problems)


@pytest.mark.parametrize(
    ("amount", "unit", "severity", "said"),
    [
        ("79", "1Gi", None, ""),
        ("80", "1Gi", "error", "the largest one here offers 79 x 1 GiB: the pod would fail"),
        ("159", "1Gi", "error", "the pod would stay pending"),
        ("1", "256Mi", "warning", "250 to 820 MiB"),
        ("4", "256Mi", None, ""),
        ("3072", "128Mi", "error", "the largest one here offers 636 x 128 MiB"),
    ],
)
def test_a_containers_amount_is_on_one_gpu(capsys, write, amount, unit, severity, said):
    policy = write("p.yaml", BY_MEMORY % unit)
    code, problems = checked(
        capsys, write("pod.yaml", POD % amount), "--policy", policy, "--machine", "2xa100-80gb"
    )
    assert code == (3 if severity == "error" else 0)
    ours = [(one, text) for one, text, _ in problems]
    if severity is None:
        assert ours == []
    else:
        ((found, text),) = ours
        assert found == severity
        assert said in text


def _pod_of(init, *mains, sidecar=0):
    def container(name, amount, more=""):
        return f"{{name: {name}, image: x, {more}resources: {{limits: {{aliyun.com/gpu-mem: {amount}}}}}}}"

    inits = [container(f"init{n}", amount) for n, amount in enumerate(init)]
    if sidecar:
        inits.append(container("side", sidecar, "restartPolicy: Always, "))
    said = [container(f"main{n}", amount) for n, amount in enumerate(mains)]
    spec = f"{{initContainers: [{', '.join(inits)}], containers: [{', '.join(said)}]}}"
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: train}}\nspec: {spec}\n"


@pytest.mark.parametrize(
    ("init", "mains", "sidecar", "said"),
    [
        ((), (79, 79), 0, []),
        ((5,), (5, 9), 0, []),
        ((10, 4), (4, 6, 3), 0, []),
        ((0,), (5,), 0, []),
        ((3,), (5,), 0, ["warning: container main0 asks for 5, and gets 3 of them from an init"]),
        ((3, 9), (9,), 0, ["warning: init container init1 asks for 9, and gets 3 of them"]),
        ((3,), (1, 5), 0, ["warning: container main1 asks for 5, and gets 2 of them"]),
        ((3,), (9,), 2, ["warning: container main0 asks for 9, and gets 1 of them"]),
        ((), (79, 79), 1, ["error: asks for 159 x 1 GiB of GPU memory in all, and the node offers 158: the"]),
        ((), (40, 79, 40), 0, ["error: asks for 159 x 1 GiB"]),
        ((), (50, 50, 50), 0, ["error: container main2 asks for 50 x 1 GiB of GPU memory, and beside what"]),
        (
            (3,),
            (80,),
            0,
            ["warning: container main0 asks for 80", "error: asks for 80 x 1 GiB of GPU"],
        ),
    ],
)
def test_the_containers_of_a_pod_have_their_amounts_together(capsys, write, init, mains, sidecar, said):
    """The kubelet gives the units of ordinary init containers to the next containers, in their order."""
    pod = write("pod.yaml", _pod_of(init, *mains, sidecar=sidecar))
    policy = write("p.yaml", BY_MEMORY % "1Gi")
    _, problems = checked(capsys, pod, "--policy", policy, "--machine", "2xa100-80gb")
    told = sorted(f"{severity}: {text}" for severity, text, _ in problems)
    assert len(told) == len(said), told
    for one, start in zip(told, sorted(said), strict=True):
        assert start.partition(": ")[2] in one, told
        assert one.startswith(start.partition(": ")[0])


def test_prove_tries_units_as_two_containers_have_them(capsys, write):
    from partage.edges.files.policy import parse_policy
    from partage.lab.prove.share import offer_of_policy
    from partage.sim.node.files.load import load_machine

    policy = parse_policy(BY_MEMORY % "1Gi", "p.yaml").policy
    (rows,) = offer_of_policy(policy, load_machine("1xa100-80gb").inventory).values()
    (row,) = rows
    assert (row.count, row.memory_bytes, row.by_memory) == (2, 39 << 30, False)


# --- inspect ---------------------------------------------------------------------------------


def nodes():
    memory = NodeMemory(
        devices=(DeviceUnits(0, 21, 20, 1 << 30), DeviceUnits(2, 79, 40, 1 << 30)),
        pods=(PodMemory("default", "a", (12, 0)), PodMemory("default", "b", (8, 40))),
    )
    other = NodeMemory(devices=(DeviceUnits(0, 14, 0, 1 << 30),))
    return [InspectedNode("n1", "10.0.0.1", memory), InspectedNode("n2", "", other)]


def test_inspect_has_the_shape_of_gpushares():
    assert summary(nodes()) == (
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU2(Allocated/Total)"
        "  GPU Memory(GiB)\n"
        "n1    10.0.0.1   20/21                  0/0                    40/79                  60/100\n"
        "n2    -          0/14                   0/0                    0/0                    0/14\n"
        "----------------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "60/114 (52%)"
    )
    assert detailed(nodes()[:1]) == (
        "NAME:       n1\n"
        "IPADDRESS:  10.0.0.1\n"
        "\n"
        "NAME  NAMESPACE  GPU0(Allocated)  GPU2(Allocated)\n"
        "a     default    12               0\n"
        "b     default    8                40\n"
        "Allocated :  60 (60%)\n"
        "Total :      100\n"
        "----------------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "60/100 (60%)"
    )


def test_the_mig_devices_of_a_gpu_are_one_column():
    devices = (DeviceUnits(0, 19, 3, 1 << 30), DeviceUnits(0, 9, 5, 1 << 30), DeviceUnits(1, 79, 7, 1 << 30))
    pods = (PodMemory("x", "a", (3, 0, 0)), PodMemory("x", "b", (0, 5, 7)))
    seen = [InspectedNode("n1", "", NodeMemory(devices, pods))]
    assert summary(seen).splitlines()[:2] == [
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)",
        "n1    -          8/28                   7/79                   15/107",
    ]
    assert detailed(seen).splitlines()[3:6] == [
        "NAME  NAMESPACE  GPU0(Allocated)  GPU1(Allocated)",
        "a     x          3                0",
        "b     x          5                7",
    ]


def test_a_card_of_141_gib_is_not_taken_for_mib():
    device = DeviceUnits(0, 140, 1, 1 << 30)
    assert "GPU Memory(GiB)" in summary([InspectedNode("n", "", NodeMemory((device,)))])
    halves = NodeMemory((DeviceUnits(0, 280, 3, 1 << 29),))
    said = summary([InspectedNode("n", "", halves)])
    assert "GPU Memory(MiB)" in said
    assert "1536/143360" in said


def test_without_an_agent_nobody_knows(capsys, tmp_path):
    assert run(["inspect", "--machine", "1xl4", f"--run-dir={tmp_path}"]) == 4
    assert "no agent runs here" in capsys.readouterr().err

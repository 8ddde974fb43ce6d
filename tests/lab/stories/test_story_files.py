"""Reading stories, and judging what they expect."""

import os
from pathlib import Path

import pytest

from partage.errors import InputError
from partage.lab.stories.expectations import NodeSnapshot, unmet_expectations
from partage.lab.stories.model import ChangePolicy, Expect, FaultStep, Remark, RestartKubelet, RunPods
from partage.lab.stories.read import read_story
from partage.model.pod import Container, Pod
from partage.sim.kubelet.pods import ContainerStatus, PodPhase, PodStatus
from partage.sim.node.faults import RaiseXid

HEAD = "machine: 2xl4\nsteps:\n"


@pytest.fixture
def story(tmp_path):
    def read(text, **options):
        path = tmp_path / "story.yaml"
        path.write_text(text)
        return read_story(path, **options)

    return read


def _only_step(story, line):
    (step,) = story(f"{HEAD}  - {line}\n").steps
    return step


def test_copies_of_a_pod_are_numbered(story):
    step = _only_step(story, "{run: team/nb, copies: 2, requests: {gpu: 1}}")
    assert isinstance(step, RunPods)
    assert [pod.key for pod in step.pods] == ["team/nb-0", "team/nb-1"]
    assert step.pods[0].containers == (Container("main", {"nvidia.com/gpu": 1}),)


def test_several_containers_and_init_containers_keep_their_order(story):
    step = _only_step(story, "{run: p, init: {a: {gpu: 1}}, containers: {c: {gpu: 1}, b: {}}}")
    assert isinstance(step, RunPods)
    assert [container.name for container in step.pods[0].containers] == ["a", "c", "b"]
    assert [container.kind for container in step.pods[0].containers] == ["init", "main", "main"]


def test_faults_are_said_in_the_words_of_the_simulation(story):
    step = _only_step(story, "fault: {gpu: 1, xid: 79}")
    assert step == FaultStep(RaiseXid(1, 79))
    assert str(step.fault) == "XID 79 on GPU 1"


def test_a_policy_may_stand_in_the_story_or_beside_it(story, tmp_path):
    (tmp_path / "p.yaml").write_text("version: partage/v1")
    assert story("machine: l4\npolicy: p.yaml\nsteps: []").policy.content == b"version: partage/v1"
    step = _only_step(story, "policy: {version: partage/v1}")
    assert isinstance(step, ChangePolicy)
    assert step.policy.content == b'{"version": "partage/v1"}'


def test_a_machine_file_beside_the_story_is_found(story, tmp_path):
    (tmp_path / "m.json").write_text('{"gpus": [{"name": "NVIDIA L4"}]}')
    assert len(story("machine: m.json\nsteps: []").machine.inventory.gpus) == 1


def test_the_command_line_outranks_the_file(story):
    assert len(story("machine: 2xl4\nsteps: []", machine="3xt4").machine.inventory.gpus) == 3
    assert story("machine: l4\nconfig: a\nsteps: []", config="b").config == "b"


def test_the_other_steps(story):
    assert _only_step(story, "say: hello") == Remark("hello")
    assert _only_step(story, "restart: kubelet") == RestartKubelet()
    step = _only_step(story, "{expect: {health: {suspect: [1]}, waiting: [0]}, within: 2s}")
    assert isinstance(step, Expect)
    assert (step.within_s, step.health, step.waiting) == (2.0, {"suspect": (1,)}, (0,))


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("run: P", "steps[0].run"),
        ("{run: p}", "steps[0]"),
        ("{run: p, requests: {gpu: 0}}", "steps[0].requests.gpu"),
        ("{run: p, requests: {gpu: 1}, copies: 9999}", "steps[0].copies"),
        ("{run: p, requests: {UPPER: 1}}", "steps[0].requests.UPPER"),
        ("{run: p, containers: {a: {}}, init: {a: {}}}", "steps[0]"),
        ("{say: a, end: b}", "steps[0]"),
        ("dance: now", "steps[0]"),
        ("just text", "steps[0]"),
        ("restart: world", "steps[0]"),
        ("fault: {gpu: 1}", "steps[0].fault"),
        ("fault: bang", "steps[0].fault"),
        ("policy: missing.yaml", "steps[0].policy"),
        ("expect: {allocatabel: {}}", "steps[0].expect.allocatabel"),
        ("expect: {health: {weird: [0]}}", "steps[0].expect.health.weird"),
        ("{expect: {}, within: 2h}", "steps[0].within"),
        ("expect: {pods: {train: Runing}}", "steps[0].expect.pods.train"),
        ("expect: {health: {healthy: [0, 2]}}", "steps[0].expect.health.healthy[1]"),
        ("expect: {waiting: [7]}", "steps[0].expect.waiting[0]"),
        ("fault: {gpu: 2, xid: 79}", "steps[0].fault"),
        ("fault: {gpu: 2, used-by: python}", "steps[0].fault"),
        ("fault: {gpu: 0, mig: [3g.40gb]}", "steps[0].fault"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(story, line, path):
    with pytest.raises(InputError) as caught:
        story(f"{HEAD}  - {line}\n")
    assert path in [problem.path for problem in caught.value.problems]


def test_a_mistyped_step_is_told_the_right_word(story):
    with pytest.raises(InputError, match="did you mean 'run'"):
        story(f"{HEAD}  - {{runn: p, requests: {{gpu: 1}}}}\n")


@pytest.mark.parametrize("instance", ["xid: 94, gi: 3", "used-by: python, gi: 3, ci: 0"])
def test_mig_instances_may_be_made_before_a_fault_names_them(story, instance):
    machine = "machine: h100-sxm5-80gb\nsteps:\n"
    (step,) = story(f"{machine}  - fault: {{gpu: 0, {instance}}}\n").steps
    assert isinstance(step, FaultStep)


def test_faults_are_judged_by_the_machine_of_the_command_line(story):
    text = f"{HEAD}  - fault: {{gpu: 2, lost: true}}\n"
    assert len(story(text, machine="3xl4").steps) == 1
    with pytest.raises(InputError, match="no GPU 2"):
        story(text)


@pytest.mark.parametrize(
    "text", ["", "steps: []", "machine: l4", "[]", "machine: 3xnothing\nsteps: []", "machine: l4\nsteps: 3"]
)
def test_a_story_needs_a_machine_and_steps(story, text):
    with pytest.raises(InputError):
        story(text)


def test_a_story_that_is_not_there_is_an_input_error():
    with pytest.raises(InputError, match="cannot be read"):
        read_story(Path("/no/such/story.yaml"))


def test_a_story_without_end_is_not_read_to_its_end():
    with pytest.raises(InputError, match="not a regular file"):
        read_story(Path("/dev/zero"))


@pytest.mark.parametrize("line", ["policy: /dev/zero", "policy: pipe", "machine: /dev/zero"])
def test_what_a_story_names_is_not_waited_for(story, tmp_path, line):
    os.mkfifo(tmp_path / "pipe")
    head = "" if line.startswith("machine") else "machine: l4\n"
    with pytest.raises(InputError, match=r"not a regular file|too large"):
        story(f"{head}{line}\nsteps: []\n")


# --- expectations ---

POD = Pod(
    "default",
    "train",
    (Container("init", kind="init"), Container("main", {"nvidia.com/gpu": 1}), Container("side")),
)
RUNNING = PodStatus(
    POD,
    PodPhase.RUNNING,
    containers=(
        ContainerStatus("init"),
        ContainerStatus("main", env={"A": "GPU-1"}),
        ContainerStatus("side"),
    ),
)
NOW = NodeSnapshot({"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 1}, (RUNNING,), None)


@pytest.mark.parametrize(
    "expect",
    [
        Expect(
            "", allocatable={"nvidia.com/gpu": 1, "nvidia.com/unheard-of": 0}, capacity={"nvidia.com/gpu": 2}
        ),
        Expect("", pods={"default/tr*": PodPhase.RUNNING}),
        Expect("", env={"default/train:main": {"A": "GPU-*"}}),
        Expect("", waiting=(), problem=""),
    ],
)
def test_what_is_so_has_no_shortcomings(expect):
    assert unmet_expectations(expect, NOW) == []


@pytest.mark.parametrize(
    ("expect", "said"),
    [
        (Expect("", allocatable={"nvidia.com/gpu": 2}), "allocatable nvidia.com/gpu is 1, not 2"),
        (Expect("", capacity={"nvidia.com/gpu": 1}), "capacity nvidia.com/gpu is 2, not 1"),
        (Expect("", pods={"default/train": PodPhase.FAILED}), "default/train is Running, not Failed"),
        (Expect("", pods={"default/x": PodPhase.RUNNING}), "no pod is called default/x"),
        (Expect("", env={"default/train:main": {"A": "GPU-2"}}), "default/train:main has A=GPU-1, not GPU-2"),
        (Expect("", env={"default/train:side": {"A": "*"}}), "default/train:side has no A"),
        (Expect("", health={"healthy": (0,)}), "the agent knows no GPU 0"),
        (Expect("", waiting=(1,)), "GPUs [] wait for their holders, not [1]"),
        (Expect("", problem="replica"), "the agent reports no problem with 'replica'"),
    ],
)
def test_what_is_not_so_is_said_in_a_sentence(expect, said):
    assert unmet_expectations(expect, NOW) == [said]

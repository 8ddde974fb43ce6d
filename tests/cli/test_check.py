"""``partage check``."""

import json
from pathlib import Path

import pytest

from partage.cli.main import run

GOOD = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 4}}]\n"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
    - name: main
      resources: {limits: {nvidia.com/gpu.shared: %s}}
"""


@pytest.fixture
def file(tmp_path):
    def write(text, name="file.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return write


def _check(capsys, *arguments):
    code = run(["check", "-o", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)["problems"]


def test_a_good_policy_has_no_problems(capsys, file):
    assert _check(capsys, file(GOOD)) == (0, [])


def test_all_problems_of_all_files_are_named_with_file_path_and_hint(capsys, file):
    one = file(
        "version: partage/v1\ngpus: [{select: all, time-slicing: {replica: 4}}, {select: {index: x}}]", "1"
    )
    two = file("version: v2", "2")
    code, problems = _check(capsys, one, two)
    assert code == 2
    assert {problem["file"] for problem in problems} == {one, two}
    assert "gpus[0].time-slicing.replica" in [problem["path"] for problem in problems]
    assert any("did you mean 'replicas'?" in problem["hint"] for problem in problems)


def test_a_warning_is_no_failure_unless_it_shall_be(capsys, file):
    doubtful = file("version: v1\nflags: {migStratgy: none}\n")
    code, problems = _check(capsys, doubtful)
    assert code == 0
    assert [problem["severity"] for problem in problems] == ["warning"]
    assert _check(capsys, "--strict", doubtful)[0] == 1


def test_a_drain_is_said_to_need_a_cluster(capsys, file):
    drain = file("version: partage/v1\ngpus: [{select: all, mps: {replicas: 2}, change: {drain: 10m}}]")
    for more in ([], ["--machine", "2xl4"]):
        code, problems = _check(capsys, drain, *more)
        [found] = [one for one in problems if "through the API of a cluster" in one["message"]]
        assert (code, found["path"], found["severity"]) == (0, "gpus[0].change", "warning")


def test_that_tenants_can_set_the_limits_of_mps_is_said_beforehand(capsys, file):
    shared = file("version: partage/v1\ngpus: [{select: all, mps: {replicas: 4}}]")
    old = file('driver: 535.261.03\ncuda-driver: "12.2"\ngpus: [{name: NVIDIA L40S}]\n', "machine.yaml")
    for machine, who in ((old, "driver branch 535 lets every user"), ("l40s", "processes are root")):
        code, problems = _check(capsys, shared, "--machine", machine)
        (said,) = (one for one in problems if "'advisory'" in one["message"])
        assert (code, said["severity"], who in said["message"]) == (0, "warning", True)


def test_what_only_this_machine_cannot_do_ends_with_3(capsys, file):
    layout = file("version: partage/v1\ngpus: [{select: all, mig: {layout: [3g.40gb]}}]")
    assert _check(capsys, layout)[0] == 0
    code, problems = _check(capsys, layout, "--machine", "2xl4")
    assert code == 3
    assert problems


def test_a_machine_with_a_key_that_means_nothing_is_wrong_as_it_is_for_the_other_verbs(capsys, file):
    machine = file("gpus: [{name: l4, count: 4, memory-byte: 1}]", "machine.yaml")
    code, problems = _check(capsys, machine)
    assert code == 2
    assert [problem["path"] for problem in problems] == ["gpus[0].count", "gpus[0].memory-byte"]
    assert problems[1]["hint"] == "did you mean 'memory-bytes'?"
    assert run(["plan", "--machine", machine]) == 2


@pytest.mark.parametrize("wrap", [lambda machine: machine, lambda machine: {"machine": machine, "cases": []}])
def test_a_machine_needs_no_header_and_may_stand_in_a_recording(capsys, file, wrap):
    assert _check(capsys, file(json.dumps(wrap({"gpus": [{"name": "NVIDIA L4"}]})))) == (0, [])
    code, problems = _check(capsys, file(json.dumps(wrap({"gpus": [{"name": "nothing"}]}))))
    assert code == 2
    assert problems[0]["path"].endswith("gpus[0].name")


def test_an_error_outranks_what_is_only_impossible(capsys, file):
    layout = file("version: partage/v1\ngpus: [{select: all, mig: {layout: [3g.40gb]}}]", "1")
    assert _check(capsys, layout, file("[", "2"), "--machine", "2xl4")[0] == 2


RUBBISH = {
    "empty": "",
    "binary": "\0\1\2",
    "deep": "[" * 5000,
    "self": "a: &a [*a]",
    "10MB": "x" * (11 << 20),
    "wide": "- " * 60000,
    "latin": b"\xff",
    "type": "version: partage/v1\ngpus: 3",
    "markers": "---\n---\n",
    "tag": "%TAG ! x\n",
}


@pytest.mark.parametrize("content", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_is_answered_with_2_and_a_sentence(capsys, file, content):
    code, problems = _check(capsys, file(content))
    assert code == 2
    assert problems


@pytest.mark.parametrize("path", ["/no/such/file", "a\0b"])
def test_a_file_that_cannot_be_read_is_an_error_of_its_own(capsys, path):
    code, problems = _check(capsys, path)
    assert code == 2
    assert "cannot be read" in problems[0]["message"]


def test_several_documents_are_judged_one_by_one(capsys, file):
    manifests = file(f"{POD % 1}---\n# nothing\n---\n{POD % '1.5'}")
    code, problems = _check(capsys, manifests)
    assert code == 2
    assert [problem["path"] for problem in problems] == [
        "[1].spec.containers[0].resources.limits.nvidia.com/gpu.shared"
    ]


def test_a_problem_of_a_manifest_has_its_line(capsys, file):
    _, (problem,) = _check(capsys, file(f"{POD % 1}---\n{POD % 'many'}"))
    assert problem["message"].startswith("line 15: Pod/p, container main: ")


def test_a_manifest_is_judged_by_what_the_policy_offers(capsys, file):
    policy = file(GOOD, "policy.yaml")
    judge = ("--policy", policy, "--machine", "1xl4")
    assert _check(capsys, file(POD % 1), *judge)[0] == 0
    code, problems = _check(capsys, file(POD % 2), *judge)
    assert code == 3
    assert "may hold one" in problems[0]["message"]


def test_every_policy_in_a_config_map_is_checked(capsys, file):
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "data": {"good": GOOD, "bad": GOOD.replace("4", "1"), "other": "just: text"},
    }
    code, problems = _check(capsys, file(json.dumps(config_map)))
    assert code == 2
    assert {problem["path"] for problem in problems} == {"data.bad.gpus[0].time-slicing.replicas"}


CONFIGS = """\
version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  halves: [{devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  thirds: [{devices: all, mig-enabled: true, mig-devices: {3g.40gb: 3}}]
"""


def test_every_configuration_of_a_file_is_checked_unless_one_is_named(capsys, file):
    configs = file(CONFIGS)
    machine = ("--machine", "1xh100-sxm5-80gb")
    assert _check(capsys, configs)[0] == 0
    code, (problem,) = _check(capsys, configs, *machine)
    assert (code, problem["severity"]) == (0, "warning")
    assert problem["message"].startswith("configuration thirds is not for this machine: GPU 0: ")
    assert _check(capsys, configs, *machine, "--strict")[0] == 1
    assert _check(capsys, configs, *machine, "--config", "halves")[0] == 0
    assert _check(capsys, configs, *machine, "--config", "thirds")[0] == 3
    assert _check(capsys, configs, "--config", "quarters")[0] == 2


def test_a_machine_for_which_no_configuration_is_has_them_all_as_errors(capsys, file):
    halves = "\n".join(line for line in CONFIGS.splitlines() if "all-disabled" not in line)
    code, problems = _check(capsys, file(halves), "--machine", "2xa30-24gb")
    assert code == 3
    assert [(one["path"].split("[")[0], one["severity"]) for one in problems] == [
        ("mig-configs.halves", "error"),
        ("mig-configs.thirds", "error"),
    ]


def test_what_is_wrong_everywhere_stays_an_error_beside_configurations_that_fit(capsys, file):
    wrong = CONFIGS + "  typo: [{devices: all, mig-enabled: yes-please, mig-devices: {}}]\n"
    code, problems = _check(capsys, file(wrong), "--machine", "1xh100-sxm5-80gb")
    assert code == 2
    assert {one["severity"] for one in problems if "typo" in one["path"]} == {"error"}


def test_standard_input_is_a_file_too(capsys, monkeypatch, file):
    with Path(file(GOOD)).open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert _check(capsys, "-") == (0, [])


def test_the_table_ends_in_a_count(capsys, file):
    assert run(["check", file(GOOD)]) == 0
    said, _, left_out = capsys.readouterr().out.partition("\n")
    assert said == "1 file: no problems"
    assert "not compared with the GPUs of a machine" in " ".join(left_out.split())
    assert run(["check", file(GOOD), "--machine", "1xl4"]) == 0
    assert capsys.readouterr().out == "1 file: no problems\n"


def test_a_policy_and_a_pod_given_together_are_compared(capsys, file):
    policy, machine = file(GOOD, "policy.yaml"), ("--machine", "1xl4")
    code, problems = _check(capsys, policy, file(POD % 2, "two.yaml"), *machine)
    assert code == 3
    assert "may hold one" in problems[0]["message"]
    assert _check(capsys, file(POD % 1, "one.yaml"), policy, *machine)[0] == 0


def test_a_pod_is_for_the_one_of_several_policies_that_has_what_it_asks_for(capsys, file):
    pod, shared = file(POD % 1, "pod.yaml"), file(GOOD, "shared.yaml")
    whole = file("version: partage/v1\n", "whole.yaml")
    code, problems = _check(capsys, pod, shared, whole, "--machine", "1xl4")
    assert code == 0
    problem = next(one for one in problems if one["message"].startswith("not for"))
    assert problem["severity"] == "warning"
    assert problem["message"].startswith(f"not for {whole}: ")
    assert "nothing offers nvidia.com/gpu.shared" in problem["message"]


def test_a_directory_stands_for_the_files_in_it(capsys, file, tmp_path):
    policy, pod = file(GOOD, "policies/a.yaml"), file(POD % 2, "policies/pod.json")
    file("rubbish: [", "policies/.a.yaml")
    file("no YAML", "policies/README.md")
    file("rubbish: [", "policies/inner/b.yaml")
    code, problems = _check(capsys, str(tmp_path / "policies"), "--machine", "1xl4")
    assert code == 3
    assert {one["file"] for one in problems} == {pod}
    run(["check", "-o", "json", str(tmp_path / "policies")])
    assert json.loads(capsys.readouterr().out)["files"] == [policy, pod]


def test_a_directory_without_files_is_an_error(capsys, tmp_path):
    code, (problem,) = _check(capsys, str(tmp_path))
    assert code == 2
    assert ".yaml, .yml, .json" in problem["message"]


def test_a_mounted_config_map_is_checked_once(capsys, file, tmp_path):
    file(GOOD, "mounted/..2026_11_24/a")
    (tmp_path / "mounted/..data").symlink_to("..2026_11_24")
    (tmp_path / "mounted/a").symlink_to("..data/a")
    run(["check", "-o", "json", str(tmp_path / "mounted")])
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "mounted/a")]


def test_f_is_the_policy(capsys, file):
    code, (problem, *_) = _check(
        capsys, file(POD % 2, "pod.yaml"), "-f", file(GOOD, "policy.yaml"), "--machine", "1xl4"
    )
    assert code == 3
    assert "may hold one" in problem["message"]


@pytest.mark.parametrize(
    ("texts", "more", "words"),
    [
        ([POD % 1], (), ["a policy: name one with --policy FILE, and a machine"]),
        ([POD % 1], ("--machine", "1xl4"), ["a policy: name one with --policy FILE"]),
        ([POD % 1, GOOD], (), ["a policy: which GPUs?", "the GPUs of a machine"]),
        ([POD % 1, GOOD + "more: 1\n"], ("--machine", "1xl4"), ["no policy here can be used"]),
        ([POD % 1, GOOD], ("--machine", "1xl4"), []),
    ],
)
def test_what_was_not_compared_is_said(capsys, file, texts, more, words):
    files = [file(text, f"{n}.yaml") for n, text in enumerate(texts)]
    run(["check", "-o", "json", *files, *more])
    found = json.loads(capsys.readouterr().out)["notCompared"]
    assert [word in line for word, line in zip(words, found, strict=True)] == [True] * len(words)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu", "nvidia.com/gpu"),
        ("gpu.shared", "nvidia.com/gpu.shared"),
        ("nvidia/gpu.shared", "nvidia.com/gpu.shared"),
        ("nvidia.con/gpu", "nvidia.com/gpu"),
        ("nvdia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("NVIDIA.com/gpu", "nvidia.com/gpu"),
    ],
)
@pytest.mark.parametrize("against", [False, True])
def test_a_name_that_asks_for_nothing_is_an_error_with_the_right_one(capsys, file, name, meant, against):
    pod = file((POD % 1).replace("nvidia.com/gpu.shared", name), "pod.yaml")
    policy = file("version: partage/v1\nresources: {}\n", "policy.yaml")
    code, problems = _check(capsys, pod, *(("-f", policy, "--machine", "1xl4") if against else ()))
    assert code == 2
    assert problems[0]["severity"] == "error"
    assert against or problems[0]["hint"] == f"did you mean {meant}?"
    assert run(["explain", pod, "--machine", "1xl4"]) == 2
    assert "did you mean nvidia.com/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("GPU", "gpu"),
        ("gpus", "gpu"),
        ("gpu-shared", "gpu.shared"),
        ("gpus.shared", "gpu.shared"),
        ("MIG-1g.10gb", "mig-1g.10gb"),
        ("mig-1g-10gb.shared", "mig-1g.10gb.shared"),
        ("mig-1g.10gb.ME", "mig-1g.10gb.me"),
    ],
)
def test_an_unusual_name_of_nvidia_is_a_warning_with_the_usual_one(capsys, file, name, meant):
    """A policy may give it: so it is no error while no policy is known."""
    pod = file((POD % 1).replace("nvidia.com/gpu.shared", f"nvidia.com/{name}"), "pod.yaml")
    code, problems = _check(capsys, pod)
    assert (code, {one["severity"] for one in problems}) == (0, {"warning"})
    assert problems[0]["hint"] == f"did you mean nvidia.com/{meant}?"
    named = file(
        f"version: partage/v1\ngpus: [{{select: all, name: nvidia.com/{name}, exclusive: {{}}}}]\n",
        "named.yaml",
    )
    if name == name.lower() and "mig" not in name:  # a policy gives no name with capitals, and none of MIG
        assert _check(capsys, pod, named, "--machine", "1xl4") == (0, [])


@pytest.mark.parametrize("name", ["gpu", "gpu.shared", "mig-1g.10gb", "GA102GL_A10", "GRID_T4-1Q", "hostdev"])
def test_a_usual_name_and_one_of_other_plugins_is_left_alone(capsys, file, name):
    assert _check(capsys, file((POD % 1).replace("gpu.shared", name), "pod.yaml")) == (0, [])


def test_a_name_that_is_not_offered_has_the_one_that_was_meant(capsys, file):
    policy = file("version: partage/v1\nresources: {}\n", "policy.yaml")
    for name in ("nvidia.com/GPU", "nvidia.com/gpus"):
        pod = file((POD % 1).replace("nvidia.com/gpu.shared", name), "pod.yaml")
        code, (problem, *_) = _check(capsys, pod, "-f", policy, "--machine", "1xl4")
        assert code == 3
        assert problem["hint"] == "did you mean nvidia.com/gpu? offered: nvidia.com/gpu"


@pytest.mark.parametrize(
    "name", ["gpu/shared", "", "gpu.shared ", "gpu shared", "gpu:shared", "-gpu", "g" * 64]
)
@pytest.mark.parametrize("domain", ["nvidia.com", "example.com"])
def test_a_name_that_kubernetes_refuses_is_an_error_without_a_policy(capsys, file, domain, name):
    text = (POD % 1).replace("nvidia.com/gpu.shared", f'"{domain}/{name}"')
    code, problems = _check(capsys, file(text, "pod.yaml"))
    assert code == 2
    assert "Kubernetes refuses it" in problems[0]["message"]


@pytest.mark.parametrize("name", ["cpu", "memory", "hugepages-2Mi", "amd.com/gpu", "intel.com/gpu", "rdma/a"])
def test_a_resource_of_somebody_else_is_none_of_our_business(capsys, file, name):
    assert _check(capsys, file((POD % 1).replace("nvidia.com/gpu.shared", name))) == (0, [])


STORY = "machine: 4xl4\npolicy: {version: partage/v1, gpus: [{select: {index: 0}, %s}]}\nsteps: [%s]\n"
SLICED = "time-slicing: {replicas: 2}"


@pytest.mark.parametrize(
    ("strategy", "step", "code"),
    [
        (SLICED, "{expect: {pods: {a: Runing}}}", 2),
        (SLICED, "{fault: {gpu: 4, lost: true}}", 2),
        ("mig: {layout: 3}", "", 2),
        ("mig: {layout: [3g.40gb]}", "", 3),
    ],
)
def test_check_and_simulate_refuse_the_same_stories_for_the_same_reason(capsys, file, strategy, step, code):
    story = file(STORY % (strategy, step))
    checked, problems = _check(capsys, story)
    assert checked == code
    assert run(["simulate", story, "-o", "json"]) == code
    assert json.loads(capsys.readouterr().out)["problems"] == problems
    assert {problem["file"].partition(":")[0] for problem in problems} == {story}


def test_a_good_story_is_good(capsys, file):
    assert _check(capsys, file(STORY % (SLICED, "{expect: {pods: {a: Running}}}"))) == (0, [])


TWO_TYPES = """
version: partage/v1
gpus:
  - {select: all, when: {label: {pool: inference}}, mps: {replicas: 4}}
  - {select: {index: 7}, when: {label: {pool: training}}, time-slicing: {replicas: 2}}
"""


def test_a_policy_for_two_machine_types_is_right_where_one_of_them_fits(capsys, file):
    policy = file(TWO_TYPES)
    code, problems = _check(capsys, policy, "--machine", "4xl40s")
    said = [problem["message"] for problem in problems]
    assert code == 0
    assert any(
        "nodes with pool=training is not for this machine: the node has no GPU 7" in one for one in said
    )


def test_with_labels_only_what_they_choose_is_judged(capsys, file):
    policy = file(TWO_TYPES)
    node = ["--machine", "4xl40s", "--node-labels"]
    assert _check(capsys, policy, *node, "pool=training")[0] == 3
    code, problems = _check(capsys, policy, *node, "")
    assert (code, problems) == (0, [])


def test_variants_of_which_none_fits_are_errors(capsys, file):
    policy = file(
        "version: partage/v1\ngpus:\n"
        "  - {select: {index: 8}, when: {label: {pool: a}}, exclusive: {}}\n"
        "  - {select: {index: 9}, exclusive: {}}\n"
    )
    code, problems = _check(capsys, policy, "--machine", "4xl40s")
    assert code == 3
    assert {problem["path"] for problem in problems} == {"gpus[0].select.index", "gpus[1].select.index"}

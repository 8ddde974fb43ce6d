"""``partage simulate``."""

import json

import pytest

from partage.cli.main import run

HEAD = """\
title: A test
machine: 2xl4
policy:
  version: partage/v1
  gpus: [{select: {index: [0]}, time-slicing: {replicas: 2}}]
steps:
"""


@pytest.fixture
def simulate(tmp_path, capsys):
    def play(steps, *options, code=0):
        story = tmp_path / "story.yaml"
        story.write_text(HEAD + steps)
        assert run(["simulate", str(story), *options]) == code
        return capsys.readouterr().out

    return play


def _json(simulate, steps, **options):
    return json.loads(simulate(steps, "-o", "json", **options))


RUNS = "  - {run: p, copies: 2, requests: {nvidia.com/gpu.shared: 1}}\n"


def test_a_story_tells_its_scenes_the_node_and_what_containers_got(simulate):
    text = simulate(RUNS + "  - {say: Hello there.}\n  - expect: {pods: {p-*: Running}}\n")
    for part in ("A test", "2 x L4", "Hello there.", "p-0", "nvidia.com/gpu.shared on GPU 0 #",
                 "time-slicing x 2", "Allocatable:", "nvidia.com/gpu.shared:  2", "Allocated resources:",
                 "PARTAGE_STRATEGY", "✓ 1 expectation, all met"):  # fmt: skip
        assert part in text


def test_an_expectation_that_fails_ends_with_1_and_says_what_is_missing(simulate):
    text = simulate("  - {expect: {allocatable: {nvidia.com/gpu: 7}}, within: 0.1s}\n", code=1)
    assert "✗ expect   7 nvidia.com/gpu" in text
    assert "allocatable nvidia.com/gpu is 1, not 7" in text
    assert "✗ 1 of 1 expectation not met" in text


@pytest.mark.parametrize("count", [1, 9])
def test_a_second_pod_of_one_name_is_the_storys_mistake(simulate, count):
    twice = f"  - {{run: p, requests: {{nvidia.com/gpu.shared: {count}}}}}\n" * 2
    document = json.loads(simulate(twice, "-o", "json", code=2))
    (problem,) = document["problems"]
    assert "pod default/p" in problem["message"]


@pytest.mark.parametrize("mends", ["{gpu: 1, reset: true}", "{reboot: true}"])
def test_a_gpu_that_fell_off_the_bus_comes_back_by_what_mends_it(simulate, mends):
    simulate(
        "  - {fault: {gpu: 1, xid: 79}}\n  - {expect: {health: {unhealthy: [1]}}}\n"
        f"  - {{fault: {mends}}}\n  - {{expect: {{health: {{probation: [1]}}}}}}\n"
        "  - {later: 2m}\n  - {expect: {health: {healthy: [0, 1]}}}\n"
    )


def test_the_document_has_pods_with_environment_and_the_counts(simulate):
    document = _json(simulate, RUNS)
    assert document["kind"] == "Simulation"
    assert document["passed"] is True
    assert document["allocatable"] == {"nvidia.com/gpu.shared": 2, "nvidia.com/gpu": 1}
    (container,) = document["pods"][0]["containers"]
    assert container["env"]["PARTAGE_STRATEGY"] == "time-slicing"
    assert len(container["ids"]["nvidia.com/gpu.shared"]) == 1


def test_a_pod_without_room_waits_and_gets_in_when_there_is_some(simulate):
    document = _json(
        simulate,
        RUNS + "  - {run: late, requests: {nvidia.com/gpu.shared: 1}}\n"
        "  - expect: {pods: {late: Pending}}\n  - {end: p-0}\n  - expect: {pods: {late: Running}}\n",
    )
    scenes = [(scene["verb"], scene["text"]) for scene in document["scenes"]]
    assert ("run", "default/late, which waited") in scenes
    assert document["passed"] is True


@pytest.mark.parametrize(
    ("refused", "code"), [("maximum request size", 0), ("Insufficient nvidia.com/gpu.shared", 1)]
)
def test_a_refusal_has_to_come_for_the_expected_reason(simulate, refused, code):
    step = f"  - {{run: greedy, requests: {{nvidia.com/gpu.shared: 2}}, refused: {refused}}}\n"
    assert _json(simulate, step, code=code)["pods"][0]["phase"] == "Failed"


def test_a_pod_that_runs_where_it_should_be_refused_is_a_failure(simulate):
    simulate("  - {run: p, requests: {nvidia.com/gpu: 1}, refused: because}\n", code=1)


def test_ending_nobody_is_a_failure(simulate):
    simulate("  - {end: nobody}\n", code=1)


def test_an_init_container_and_the_main_one_share_a_device(simulate):
    wanted = "{nvidia.com/gpu.shared: 1}"
    document = _json(simulate, f"  - {{run: p, init: {{fetch: {wanted}}}, containers: {{main: {wanted}}}}}\n")
    fetch, main = document["pods"][0]["containers"]
    assert fetch["ids"] == main["ids"]


def test_restarts_keep_everything_registered(simulate):
    document = _json(
        simulate,
        RUNS + "  - {restart: kubelet}\n  - {restart: agent}\n"
        "  - expect: {allocatable: {nvidia.com/gpu.shared: 2}, pods: {p-*: Running}}\n",
    )
    assert document["passed"] is True


def test_time_can_pass(simulate):
    document = _json(
        simulate,
        "  - fault: {gpu: 1, xid: 48}\n  - expect: {health: {unhealthy: [1]}}\n"
        "  - fault: {gpu: 1, reset: true}\n"
        "  - expect: {health: {probation: [1]}}\n  - {later: 2m}\n  - expect: {health: {healthy: [1]}}\n",
    )
    assert document["passed"] is True


def test_a_bad_reload_is_told_under_the_storys_name_for_the_file(simulate, tmp_path):
    (tmp_path / "bad.yaml").write_text("version: partage/v1\ngpus: 3\n")
    document = _json(simulate, "  - {policy: bad.yaml}\n  - expect: {problem: gpus}\n")
    (scene,) = [scene for scene in document["scenes"] if scene["verb"] == "policy"]
    assert "is refused" in scene["text"]
    assert scene["details"][0].startswith("bad.yaml: gpus")


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("{version: partage/v1, gpus: 3}", 2),
        ("{version: partage/v1, gpus: [{select: all, mig: {layout: [1g.5gb]}}]}", 3),
    ],
)
def test_a_first_policy_that_cannot_hold_ends_the_story_before_it_begins(tmp_path, capsys, policy, code):
    story = tmp_path / "story.yaml"
    story.write_text(f"machine: l4\npolicy: {policy}\nsteps: []\n")
    assert run(["simulate", str(story)]) == code
    assert "error: " in capsys.readouterr().err


def test_the_same_seed_plays_the_same_story(simulate):
    def ids(seed):
        document = json.loads(simulate(RUNS, "-o", "json", "--seed", seed))
        return [pod["containers"][0]["ids"] for pod in document["pods"]]

    assert ids("5") == ids("5")


def test_a_policy_that_does_not_fit_is_blamed_under_the_name_that_the_story_gave_it(tmp_path, capsys):
    (tmp_path / "policy.yaml").write_text(
        "{version: partage/v1, gpus: [{select: {index: 7}, exclusive: {}}]}"
    )
    (tmp_path / "story.yaml").write_text("machine: 8xl4\npolicy: policy.yaml\nsteps: []\n")
    assert run(["simulate", str(tmp_path / "story.yaml"), "--machine", "4xl4"]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}/policy.yaml: gpus[0].select.index: the node has no GPU 7")

"""Every example does what it says."""

import json
from collections import Counter
from pathlib import Path

import pytest

from partage.cli.main import run
from partage.edges.files.catalogue import load_catalogue
from partage.edges.files.policy import configurations, load_policy
from partage.lab.stories.read import read_story
from partage.model.layout import named_layouts
from partage.model.policy import GpuCriteria, GpuEntry

EXAMPLES = Path(__file__).parent.parent / "examples"
STORIES = sorted(EXAMPLES.glob("*/story*.yaml"))
EXPECTED = [
    (path.parent, expected)
    for path in sorted(EXAMPLES.glob("*/expected.json"))
    for expected in json.loads(path.read_text())
]
FLEET = EXAMPLES / "09-mig-parted" / "fleet.yaml"
WRONG_ON_PURPOSE = {"broken.yaml"}
POLICIES = sorted(
    path for path in EXAMPLES.glob("*/*.yaml") if path not in STORIES and path.name not in WRONG_ON_PURPOSE
)


def _name(path):
    return str(path.relative_to(EXAMPLES))


@pytest.mark.parametrize("story", STORIES, ids=_name)
def test_a_story_comes_true(story, capsys):
    assert run(["simulate", str(story)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("story", STORIES, ids=_name)
def test_a_story_expects_something_and_has_a_title(story):
    read = read_story(story)
    assert any(type(step).__name__ == "Expect" for step in read.steps)
    assert read.title != story.parent.name


@pytest.mark.parametrize("policy", POLICIES, ids=_name)
def test_a_policy_is_clean(policy):
    assert run(["check", "--strict", str(policy)]) == 0


@pytest.mark.parametrize(
    ("folder", "expected"), EXPECTED, ids=lambda one: one.get("config") if isinstance(one, dict) else one.name
)
def test_a_plan_comes_to_what_is_expected_of_it(folder, expected, capsys):
    policy = ["--policy", str(folder / expected["policy"]), "--config", expected["config"]]
    code = run(["plan", *policy, "--machine", expected["machine"], "-o", "json"])
    answer = json.loads(capsys.readouterr().out)
    problems = [f"{problem['path']}: {problem['message']}" for problem in answer["problems"]]
    assert code == expected.get("exit", 0), problems
    if code == 0:
        assert {row["name"]: row["count"] for row in answer["resources"]} == expected["offers"]
    assert any(expected["says"] in problem for problem in problems) if "says" in expected else not problems


def _fleet():
    """Every configuration of the fleet's file, with the models that its entries name and their layouts."""
    for name in configurations(FLEET.read_bytes(), str(FLEET)):
        for entry in load_policy(str(FLEET), name).policy.entries:
            assert isinstance(entry, GpuEntry)
            if isinstance(entry.select, GpuCriteria):
                assert entry.mig is not None
                yield (
                    name,
                    entry.mig.items,
                    [load_catalogue().by_pci_device_id(one) for one in entry.select.device_filter],
                )


def test_the_fleet_says_what_the_rule_of_its_names_says_for_every_card():
    seen = set()
    for name, items, models in _fleet():
        for model, *_ in models:  # GB200 by the names of today's drivers: a filter knows no memory
            assert model.geometry is not None
            assert Counter(items) == Counter(named_layouts(model.geometry)[name])
            seen.add(model.id)
    planned = {model.id for model in load_catalogue().models if model.geometry and model.pci_device_ids}
    assert seen == planned - {"gb200-189gb"}


def test_the_policies_come_in_both_formats():
    first_words = {path.read_text().split("\n", 1)[0] for path in POLICIES}
    assert {"version: partage/v1", "version: v1"} <= first_words


def test_every_example_is_numbered_explained_and_listed():
    overview = (EXAMPLES / "README.md").read_text()
    folders = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
    for number, folder in enumerate(folders, start=1):
        assert folder.name.startswith(f"{number:02d}-")
        assert (folder / "README.md").read_text().startswith(f"# {number:02d} ")
        assert f"({folder.name}/)" in overview

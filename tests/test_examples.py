"""Every example does what it says."""

from pathlib import Path

import pytest

from partage.faces.cli.main import run
from partage.faces.story.read import read_story

EXAMPLES = Path(__file__).parent.parent / "examples"
STORIES = sorted(EXAMPLES.glob("*/story*.yaml"))
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

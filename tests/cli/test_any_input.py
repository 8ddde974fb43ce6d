"""No input whatever gives a traceback: answers have exit codes, and problems have sentences."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partage.cli.main import run
from tests.examples import examples

QUICK = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = sorted(path for path in EXAMPLES.glob("*/*") if path.suffix in (".yaml", ".json"))
WORDS = st.sampled_from(
    [
        *("gpus", "version", "steps", "run", "machine", "nvidia.com/gpu", "partage/v1", "v1", "kind"),
        *("apiVersion", "Pod", "spec", "containers", "resources", "limits", "expect", "fault", "data"),
        *("ConfigMap", "index", "mps", "replicas", "select", "all"),
    ]
)
LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 99) | st.floats(allow_nan=False) | WORDS | st.text(max_size=6)
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)


def _checked(capsys, content):
    path = Path("any.yaml")
    path.write_bytes(content)
    code = run(["check", "-o", "json", "--machine", "2xl4", str(path)])
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert code in (0, 2, 3)
    assert (code == 0) == all(problem["severity"] == "warning" for problem in problems)
    assert all(problem["message"] and problem["file"] for problem in problems)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@given(tree=TREES)
@QUICK
def test_any_document_is_checked(capsys, tree):
    _checked(capsys, yaml.safe_dump(tree).encode())


@given(content=st.binary(max_size=200))
@QUICK
def test_any_bytes_are_checked(capsys, content):
    _checked(capsys, content)


@given(data=st.data())
@QUICK
def test_any_slip_of_the_keyboard_is_checked(capsys, data):
    content = data.draw(st.sampled_from(TEXTS)).read_bytes()
    place = data.draw(st.integers(0, len(content)))
    width = data.draw(st.integers(0, 8))
    slip = data.draw(st.text(max_size=3)).encode()
    _checked(capsys, content[:place] + slip + content[place + width :])


@given(tree=TREES)
@QUICK
def test_any_story_is_refused_or_read(capsys, tree):
    Path("story.yaml").write_text(yaml.safe_dump({"machine": "l4", "steps": tree}))
    assert run(["check", "story.yaml"]) in (0, 2)
    capsys.readouterr()


@pytest.mark.parametrize("verb", ["plan", "show"])
@given(tree=TREES)
@QUICK
def test_any_policy_is_refused_or_planned(capsys, verb, tree):
    Path("policy.yaml").write_text(yaml.safe_dump({"version": "partage/v1", "gpus": tree}))
    assert run([verb, "--machine", "2xl4", "--policy", "policy.yaml"]) in (0, 2, 3)
    capsys.readouterr()


@given(text=st.text(max_size=20))
@QUICK
def test_any_machine_is_refused_or_made(capsys, text):
    assert run(["record", f"--machine={text}"]) in (0, 2, 4)
    capsys.readouterr()

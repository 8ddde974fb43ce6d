"""What all verbs have in common: empty values, options by environment, the help."""

import re

import click
import pytest

from partage.answers.verb import CommonOption, Verb
from partage.cli.main import VERBS, partage, run

SHARED = "version: partage/v1\ngpus:\n  - {select: all, time-slicing: {replicas: 3}}\n"


def _verbs():
    ctx = click.Context(partage)
    for name in VERBS:
        command = partage.get_command(ctx, name)
        if isinstance(command, click.Group):
            for inner in command.list_commands(ctx):
                yield [name, inner], command.get_command(ctx, inner)
        else:
            yield [name], command


def _valued():
    """Each option of each verb that takes a text."""
    for words, command in _verbs():
        for one in command.params:
            flag = isinstance(one, click.Option) and (one.is_flag or one.count)
            if isinstance(one, click.Option) and not flag and not getattr(one, "may_be_empty", False):
                yield pytest.param(words, one.opts[-1], id=" ".join([*words, one.opts[-1]]))


def test_every_verb_is_one_of_ours():
    assert [words for words, command in _verbs() if not isinstance(command, Verb)] == [["hardware"]]


@pytest.mark.parametrize(("words", "option"), [*_valued()])
def test_an_empty_value_is_wrong_for_every_option(capsys, words, option):
    assert run([*words, option, ""]) == 2
    said = capsys.readouterr()
    assert "empty" in said.err
    assert option in said.err
    assert run([*words, f"{option}="]) == 2


def test_an_empty_argument_is_wrong(capsys, tmp_path, monkeypatch):
    """An unset variable would be the directory in which it was typed."""
    monkeypatch.chdir(tmp_path)
    assert run(["check", "", "--machine", "1xl4"]) == 2
    assert "FILE" in capsys.readouterr().err


def test_an_unset_variable_never_takes_the_file_that_lies_there(capsys, tmp_path, monkeypatch):
    (tmp_path / "one.yaml").write_text(SHARED)
    monkeypatch.chdir(tmp_path)
    assert run(["apply", "--policy", "", "--machine", "1xl4", "--write", "after.json"]) == 2
    assert "--policy" in capsys.readouterr().err
    assert not (tmp_path / "after.json").exists()


def test_no_labels_is_a_value(capsys):
    assert run(["plan", "--machine", "1xl4", "--node-labels", ""]) == 0
    capsys.readouterr()


def test_of_a_directory_only_policies_count(capsys, tmp_path):
    for name in ("README.md", "notes", "policy.yaml.bak", ".policy.swp"):
        (tmp_path / name).write_text("not a policy\n")
    (tmp_path / "shared.yaml").write_text(SHARED)
    assert run(["plan", "--policy", str(tmp_path), "--machine", "1xl4"]) == 0
    assert "nvidia.com/gpu.shared" in capsys.readouterr().out
    (tmp_path / "default.yml").write_text("version: partage/v1\n")
    chosen = ["--node-labels", "partage.dev/policy=shared"]
    assert run(["plan", "--policy", str(tmp_path), "--machine", "1xl4", *chosen]) == 0
    assert "nvidia.com/gpu.shared" in capsys.readouterr().out
    assert run(["plan", "--policy", str(tmp_path), "--machine", "1xl4"]) == 0
    assert "nvidia.com/gpu.shared" not in capsys.readouterr().out


def test_a_directory_without_a_policy_says_what_would_be_one(capsys, tmp_path):
    (tmp_path / "policy").write_text(SHARED)
    assert run(["plan", "--policy", str(tmp_path), "--machine", "1xl4"]) == 2
    assert ".yaml, .yml, .json" in capsys.readouterr().err


def test_policy_and_machine_may_stand_in_the_environment(capsys, tmp_path, monkeypatch):
    policy = tmp_path / "my policy.yaml"
    policy.write_text(SHARED)
    monkeypatch.setenv("PARTAGE_POLICY", str(policy))
    monkeypatch.setenv("PARTAGE_MACHINE", "2xl4")
    assert run(["plan"]) == 0
    assert "nvidia.com/gpu.shared" in capsys.readouterr().out
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, resources: "
        "{limits: {nvidia.com/gpu.shared: 1}}}]}}"
    )
    assert run(["explain", str(pod)]) == 0
    assert run(["assert"]) == 0
    capsys.readouterr()


def test_the_command_line_outranks_the_environment(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PARTAGE_POLICY", str(tmp_path / "missing.yaml"))
    monkeypatch.setenv("PARTAGE_MACHINE", "no-such-machine")
    policy = tmp_path / "policy.yaml"
    policy.write_text(SHARED)
    assert run(["plan", "--policy", str(policy), "--machine", "1xl4"]) == 0
    assert run(["plan", "--demand", "3g.40gb=1", "--machine", "1xh100-sxm5-80gb"]) == 0
    assert run(["plan", "--demand", "3g.40gb=1", "--machines", "1xh100-sxm5-80gb"]) == 0
    assert run(["fits", "h100-sxm5-80gb"]) == 0
    assert run(["simulate", "examples/13-labels/story.yaml", "-o", "json"]) == 0
    capsys.readouterr()
    assert run(["plan", "--machine", "1xl4"]) == 2
    assert "missing.yaml" in capsys.readouterr().err


def test_common_options_come_last_under_a_heading(capsys):
    for words, command in _verbs():
        if not isinstance(command, Verb):
            continue
        common = {one.opts[-1] for one in command.params if isinstance(one, CommonOption)}
        assert run([*words, "--help"]) == 0
        own, heading, last = capsys.readouterr().out.partition("\nCommon options:\n")
        assert heading
        for option in common:
            assert option in last
            listed = f"^  (-.,)? *{option}( [A-Z]|  |$)"  # a sentence can begin a line with it, too
            assert not re.search(listed, own, re.MULTILINE)

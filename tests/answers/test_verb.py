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


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["fits", ""], "MODEL"),
        (["machines", ""], "MODEL"),
        (["inspect", ""], "NODE"),
        (["simulate", ""], "STORY"),
        (["web", ""], "DIR"),
        (["cordon", ""], "GPU..."),
        (["rollout", ""], ""),
    ],
)
def test_an_argument_is_called_what_the_help_calls_it(capsys, words, name):
    """The brackets around it are no part of its name."""
    assert run(words) == 2
    said = capsys.readouterr().err
    assert "[" not in said.partition("(")[0].replace("GPU...", "")
    assert not name or f"'{name}'" in said


@pytest.mark.parametrize(("words", "command"), [pytest.param(*row, id=" ".join(row[0])) for row in _verbs()])
def test_an_argument_is_no_row_of_the_options(capsys, words, command):
    assert run([*words, "--help"]) == 0
    _, _, options = capsys.readouterr().out.partition("ptions:\n")
    assert all(row.startswith(("  -", "   ")) for row in options.splitlines() if row.startswith("  "))


@pytest.mark.parametrize("option", ["--policy", "--machine"])
def test_a_name_of_spaces_is_in_quotes(capsys, option):
    assert run(["plan", option, " "]) == 2
    assert "' '" in capsys.readouterr().err


def test_no_labels_is_a_value(capsys):
    assert run(["plan", "--machine", "1xl4", "--node-labels", ""]) == 0
    capsys.readouterr()


def test_of_a_directory_only_policies_count(capsys, tmp_path):
    for name in ("README.md", "notes", "policy.yaml.bak", ".policy.swp", ".policy.yaml", ".#shared.yaml"):
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "--interval", "0"], "'--interval': 0.0 is not from 0.1 to 86400"),
        (["show", "--interval", "abc"], "'abc' is not a number"),
        (["apply", "-f", "x", "--timeout", "-1"], "-1.0 is less than 0"),
        (["simulate", "x", "--seed", "x"], "'x' is not a number"),
        (["rollout", "stop"], "invalid value for 'ACTION': 'stop' is not one of 'status', 'pause', 'resume'"),
        (["completion"], "missing argument 'SHELL'; it is one of bash, zsh, fish"),
        (["plan", "--polcy", "x"], "no such option '--polcy'; did you mean '--policy'?"),
        (["show", "--machin", "x"], "no such option '--machin'; did you mean '--machine'"),
        (["fits", "--machine", "1xl4", "l4"], "error: MODEL and --machine"),
        (["check", "x", "--machine", "1xl4", "--this-node"], "--this-node and --machine exclude each other"),
        (["plan", "-f", "a", "--policy=b"], "--policy stands there twice"),
        (["advise", "--gpu", "l4", "--memory", "8"], "'8' is less than 1Mi of GPU memory: write 8Gi"),
        (["bench", "--memory", "8"], "write 8Gi"),
        (["plan", "--machine", "1xl4", "--node-labels", "x"], "(--node-labels takes labels, "),
        (["labels", "--machine", "1xl4", "--to", "absent/file"], "(there is no directory absent)"),
        (["record", "--machine", "1xl4", "--to", "absent/file.json"], "(there is no directory absent)"),
    ],
)
def test_a_mistake_has_one_plain_message(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert "\t" not in lines[0]
    assert ". (" not in lines[0]


@pytest.mark.parametrize("option", ["--this-node"])
def test_this_node_is_not_the_machine_of_the_environment(capsys, monkeypatch, option):
    """``PARTAGE_MACHINE`` gives way to whatever says which node is meant."""
    monkeypatch.setenv("PARTAGE_MACHINE", "1xl4")
    assert run(["check", option, "--driver-root", "/absent"]) == 4
    assert "libnvidia-ml" in capsys.readouterr().err


def test_a_manifest_is_no_policy(capsys, tmp_path):
    pod = tmp_path / "pod.yaml"
    pod.write_text("apiVersion: v1\nkind: Pod\nspec: {}\n")
    assert run(["plan", "-f", str(pod), "--machine", "1xl4"]) == 2
    assert "not a policy, but a Kubernetes object of kind Pod" in capsys.readouterr().err

"""``partage completion``, and what is completed with what."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from partage.answers.completion import SHELLS
from partage.cli.main import VERBS, run

FLEET = str(Path(__file__).parents[2] / "examples" / "09-mig-parted" / "fleet.yaml")


def _completed(*words):
    """What bash is offered for the last of these words."""
    asked = {"_PARTAGE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words)}
    done = subprocess.run(
        [sys.executable, "-m", "partage"],
        env={**os.environ, **asked, "COMP_CWORD": str(len(words) - 1)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_its_shell_reads(capsys, shell, tmp_path):
    assert run(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "_PARTAGE_COMPLETE" in script.read_text()
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", str(script)], check=True)


def test_bash_completes_a_verb():
    """The script as bash runs it."""
    program = (
        'eval "$(partage completion bash)"; COMP_WORDS=(partage sim); COMP_CWORD=1;'
        '_partage_completion partage; echo "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", program], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["simulate"]


def test_verbs_and_options():
    assert _completed("partage", "as") == ["plain,assert"]
    assert "plain,--driver-root" in _completed("partage", "plan", "--driver")


@pytest.mark.parametrize(
    ("begun", "name"),
    [("8xa100-4", "8xa100-40gb"), ("l4", "l4"), ("2xl4+4xh100-nvl", "2xl4+4xh100-nvl-94gb")],
)
def test_machines_are_files_and_names_of_models(begun, name):
    offered = _completed("partage", "plan", "--machine", begun)
    assert offered[0] == f"file,{begun}"
    assert any(line.startswith(f"plain,{name}") for line in offered[1:]), offered


def test_configurations_come_from_the_policy_that_is_named():
    offered = _completed("partage", "plan", "-f", FLEET, "--config", "all-d")
    assert offered == ["plain,all-disabled"]
    assert _completed("partage", "plan", "-f", "/no/such/file", "--config", "all") == []


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_is_the_same_by_verb_and_by_option(capfd, verb):
    assert run([verb, "--help"]) == 0
    by_option = capfd.readouterr().out
    assert run(["help", verb]) == 0
    assert capfd.readouterr().out == by_option


def test_help_alone_and_no_verb_at_all_are_the_help_of_partage(capsys):
    assert run(["--help"]) == 0
    expected = capsys.readouterr().out
    for arguments in (["help"], []):
        assert run(arguments) == 0
        assert capsys.readouterr().out == expected


def test_help_of_a_verb_that_does_not_exist_suggests_one(capsys):
    assert run(["help", "plam"]) == 2
    assert "did you mean 'plan'?" in capsys.readouterr().err

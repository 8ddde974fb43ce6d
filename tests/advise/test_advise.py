"""``partage advise`` as users meet it: options, a file, a terminal, JSON, a policy, a drawing."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import pytest
from click.testing import CliRunner

from partage.advise.decide.situation import Asked, Workload, tenants_of
from partage.advise.dialogue import ask_missing
from partage.advise.text import AdviceDocument
from partage.cli.main import run
from partage.codec.values import decode
from partage.errors import InputError

H100 = ("--gpu", "h100-sxm5-80gb")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["advise", *arguments, "-o", "json"]) == 0
    text = capsys.readouterr().out
    decode(AdviceDocument, text.encode())
    return json.loads(text)


def test_json_has_strategy_policy_reasons_and_alternatives(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *H100, "--isolation", "hardware", "--tenants", "7", "--workload", "inference")
    assert found["strategy"] == "mig"
    assert found["policy"] == {
        "version": "partage/v1",
        "gpus": [{"select": {"model": ["h100-sxm5-80gb"]}, "mig": {"layout": ["1g.10gb"] * 7}}],
    }
    assert found["share"]["guarantee"] == "hard"
    assert found["reasons"][0].startswith("Each tenant has 1g.10gb")
    assert {one["strategy"] for one in found["alternatives"]} == {
        "mps",
        "vgpu",
        "time-slicing",
        "exclusive",
    }
    assert all(one["refusal"] for one in found["alternatives"])


def test_the_policy_is_taken_by_check_and_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    models = ("--gpu", "l4", "--gpu", "a100-40gb", "--gpu", "l4")
    assert run(["advise", *models, "--isolation", "memory", "--tenants", "4", "-o", "policy"]) == 0
    file.write_text(capsys.readouterr().out)
    assert run(["check", str(file), "--machine", "2xl4+1xa100-40gb"]) == 0
    capsys.readouterr()
    assert run(["plan", "--policy", str(file), "--machine", "2xl4+1xa100-40gb", "-o", "json"]) == 0
    (resource,) = json.loads(capsys.readouterr().out)["resources"]
    assert (resource["count"], resource["guarantee"]) == (12, "advisory"), "no cluster refuses pods here"


def test_several_models_can_get_different_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    virtual = ("--virtualised", "--licensed", "--isolation", "hardware", "--tenants", "2")
    found = answer(capsys, "--gpu", "l4", "--gpu", "a100-40gb", *virtual)
    assert found["strategy"] is None
    assert [one["strategy"] for one in found["models"]] == ["vgpu", "mig"]
    assert len(found["policy"]["gpus"]) == 2


def test_what_cannot_be_had_is_3_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "--gpu", "rtx-4090", "--isolation", "hardware", "--tenants", "2"]) == 3
    said = capsys.readouterr().err
    assert "NVIDIA GeForce RTX 4090: no strategy serves 2 tenants with hardware isolation" in said
    assert "has no MIG" in said
    assert "--isolation memory" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--gpu is missing"),
        (("--gpu", "h100"), "choose one: h100-sxm5-80gb"),
        (("--gpu", "l5"), "no GPU model is called 'l5'"),
        ((*H100, "--tenants", "0"), "--tenants"),
        ((*H100, "--memory", "8 potatoes"), "--memory 8Gi"),
        ((*H100, "--driver", "new"), "580.95.05"),
        ((*H100, "--path", "path.gif"), ".mmd"),
        ((*H100, "--workload-file", "/nowhere"), "/nowhere"),
    ],
)
def test_wrong_input_is_2_and_says_what_to_write(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["advise", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_file_has_the_same_keys_and_options_override_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text(
        "gpu: a30-24gb\nisolation: hardware\ntenants: 4\nworkload: notebooks\nvirtualised: false\n"
        "licensed: false\nscheduler: slurm\nmemory: 5Gi\nprefer: throughput\nbursty: true\ndriver: '580'\n"
    )
    found = answer(capsys, "--workload-file", str(file))
    assert found["strategy"] == "mig"
    assert len(found["assumptions"]) == 1, "everything was said"
    over = answer(capsys, "--workload-file", str(file), "--isolation", "none")
    assert over["strategy"] == "time-slicing"
    assert over["policy"]["gpus"][0]["time-slicing"] == {"replicas": 4, "interval": "long"}


def test_a_wrong_file_names_every_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text("gpus: l4\nisolation: full\ntenants: none\nmemory: 8\n")
    assert run(["advise", "--workload-file", str(file)]) == 2
    said = capsys.readouterr().err
    for problem in ("did you mean 'gpu'", "isolation", "tenants", "memory"):
        assert problem in said


def test_the_path_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("path.mmd", "path.svg"):
        more = ("--tenants", "60", "--workload", "mpi", "--path", str(tmp_path / name))
        answer(capsys, *H100, *more)
    drawn = (tmp_path / "path.mmd").read_text()
    assert drawn.startswith("flowchart TD\n")
    assert '==>|yes| m0w5(["time-slicing"]):::taken' in drawn
    assert "-.->|yes, but| m0w3" in drawn
    texts = [one.text for one in ET.fromstring((tmp_path / "path.svg").read_bytes()).iter() if one.text]
    assert "time-slicing" in texts
    assert any("at most 48" in text for text in texts)


def test_the_table_says_what_each_tenant_gets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "--gpu", "l4", "--workload", "mpi", "--tenants", "4"]) == 0
    said = capsys.readouterr().out
    assert "4 x nvidia.com/gpu.shared, each 5.6 GiB, 25% of the SMs" in said
    assert "mps: {replicas: 4}" in said
    assert run(["advise", "--gpu", "l4", "--virtualised", "--licensed", "--tenants", "2"]) == 0
    assert "2 virtual machines, each with a vGPU of up to 11.2 GiB" in capsys.readouterr().out


def test_a_terminal_asks_for_what_is_missing() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "partage", "advise", "--workload", "notebooks", "-o", "json"]
    os.write(ours, b"h100\nl4\nmemory\n3\nmuch\n4Gi\nn\ny\n\nslurm\n")
    try:
        done = subprocess.run(command, stdin=theirs, capture_output=True, timeout=60, check=True)
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"choose one: h100-sxm5-80gb" in done.stderr, "a wrong answer is asked again"
    found = json.loads(done.stdout)
    (model,) = found["models"]
    assert (model["gpu"], model["strategy"]) == ("l4", "mps")
    situation = model["situation"]
    assert (situation["tenants"], situation["isolation"], situation["scheduler"]) == (3, "memory", "slurm")
    assert (situation["virtualised"], situation["licensed"]) == (True, False)
    assert (situation["memoryBytes"], situation["bursty"]) == (4 << 30, False)


@pytest.mark.parametrize(
    ("said", "typed", "tenants"),
    [
        (Asked(gpu=("a30-24gb",), memory=(4 << 30, 8 << 30)), "\n" * 6, 2),  # one tenant for each amount
        (Asked(gpu=("l4", "a30-24gb"), workload=Workload.NOTEBOOKS), "hardware\n" + "\n" * 6, 4),
    ],
)
def test_the_dialogue_offers_what_would_be_assumed(said: Asked, typed: str, tenants: int) -> None:
    """Enter, Enter, Enter gives the same tenants as no dialogue, and not more than can be kept apart."""
    answers: list[Asked] = []
    command = click.Command("dialogue", callback=lambda: answers.append(ask_missing(said)))
    done = CliRunner().invoke(command, input=typed, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert tenants_of(answers[0]) == tenants


def test_amounts_for_other_tenants_are_refused_before_the_first_question() -> None:
    with pytest.raises(InputError, match="2 amounts of memory for 3 tenants"):
        ask_missing(Asked(gpu=("l4",), memory=(1 << 30, 2 << 30), tenants=3))


def test_the_policy_for_virtual_machines_holds_under_the_name_that_a_vgpu_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Inside of the machine an H100 is called after its vGPU type."""
    virtual = ("--virtualised", "--licensed", "--tenants", "4", "-o", "policy")
    assert run(["advise", *H100, "--gpu", "l4", *virtual]) == 0
    policy, machine = tmp_path / "policy.yaml", tmp_path / "machine.yaml"
    policy.write_text(capsys.readouterr().out)
    machine.write_text("gpus: [{name: NVIDIA H100-20C, memory-bytes: 21474836480}]\nvirtual: true\n")
    assert run(["check", "--strict", str(policy), "--machine", str(machine)]) == 0

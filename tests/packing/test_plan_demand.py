"""``partage plan --demand``."""

import json
import sys
from collections import Counter

import pytest
from msgspec.structs import replace

from partage.cli.main import run
from partage.packing.document import disturbed_sentence, gpus_sentence
from tests.packing.decide.fleets import gpu, packed

MACHINE = ("--machine", "8xh100-sxm5-80gb")
LIVE = """\
gpus:
  - name: NVIDIA H100 80GB HBM3
    mig-mode: [1, 1]
    mig-devices:
      - {gi: 2, ci: 0, profile: 3g.40gb, start: 4, size: 4}
      - {gi: 7, ci: 0, profile: 1g.10gb, start: 0, size: 1}
"""


def ask(capsys, *arguments):
    code = run(["plan", "-o", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_the_document_says_who_serves_what_and_why_fewer_cannot(capsys):
    code, answer = ask(capsys, *MACHINE, "--demand", "3g.40gb=2,1g.10gb=9")
    assert code == 0
    assert answer["kind"] == "Packing"
    assert (answer["gpusUsed"], answer["bound"], answer["gap"], answer["optimal"]) == (3, 3, 0, True)
    assert (answer["disturbed"], answer["disturbedBound"]) == (0, 0)
    assert answer["demand"] == {"3g.40gb": 2, "1g.10gb": 9}
    assert answer["proof"]["prices"] == {"3g.40gb": "3/7", "1g.10gb": "1/7"}
    assert answer["proof"]["worth"] == "15/7"
    served = sum((Counter(row["serves"]) for row in answer["assignments"]), Counter())
    assert served == {"3g.40gb": 2, "1g.10gb": 9}
    row = answer["assignments"][0]
    assert (row["machine"], row["gpu"], row["migModeChange"]) == ("8xh100-sxm5-80gb", 0, True)
    layout = Counter(item.partition("@")[0] for row in answer["assignments"] for item in row["layout"])
    assert layout == answer["demand"]
    assert all("@" in item for row in answer["assignments"] for item in row["layout"])


def test_a_layout_of_the_answer_is_a_layout_of_a_policy(capsys, tmp_path):
    _, answer = ask(capsys, *MACHINE, "--demand", "3g.40gb=2,1g.10gb=9,1c.2g.20gb=1")
    entries = [
        {"select": {"index": [row["gpu"]]}, "mig": {"layout": row["layout"]}} for row in answer["assignments"]
    ]
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"version": "partage/v1", "gpus": entries}))
    code, plan = ask(capsys, *MACHINE, "--policy", str(policy))
    assert code == 0
    offered = {row["name"]: row["count"] for row in plan["resources"]}
    assert (offered["nvidia.com/mig-3g.40gb"], offered["nvidia.com/mig-1g.10gb"]) == (2, 9)


@pytest.mark.parametrize(
    "machines",
    [
        ("--machines", "2xa100-40gb", "--machines", "a30-24gb"),
        ("--machines", "2xa100-40gb", "a30-24gb"),
        ("--machines", "2xa100-40gb,a30-24gb"),
        ("--machine", "2xa100-40gb", "--machines", "a30-24gb"),
    ],
)
def test_several_machines_are_named_one_after_the_other(capsys, machines):
    code, answer = ask(capsys, "--demand", "3g.20gb=1,1g.6gb=1", *machines)
    assert code == 0
    assert answer["gpusAvailable"] == 3
    assert [row["machine"] for row in answer["assignments"]] == ["2xa100-40gb", "a30-24gb"]


def test_machines_of_one_name_are_numbered(capsys):
    _, answer = ask(capsys, "--demand", "7g.80gb=3", "--machines", "3*h100-sxm5-80gb")
    assert {row["machine"] for row in answer["assignments"]} == {f"h100-sxm5-80gb#{n}" for n in (1, 2, 3)}


def test_a_machine_of_a_thousand_gpus_can_be_asked_about_though_not_simulated(capsys):
    code, answer = ask(capsys, "--demand", "3g.40gb=700,1g.10gb=4200", "--machine", "1000xh100-sxm5-80gb")
    assert (code, answer["gpusUsed"], answer["optimal"]) == (0, 900, True)


def test_live_instances_are_used_or_destroyed_by_name(capsys, tmp_path):
    machine = tmp_path / "node.yaml"
    machine.write_text(LIVE)
    _, answer = ask(capsys, "--demand", "3g.40gb=1,1g.10gb=1", "--machine", str(machine))
    (row,) = answer["assignments"]
    assert [device["profile"] for device in row["reused"]] == ["1g.10gb", "3g.40gb"]
    assert run(["plan", "--demand", "7g.80gb", "--machine", str(machine)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "2 live instances destroyed (1 x 3g.40gb + 1 x 1g.10gb), and fewer cannot be" in text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--demand", "3g.41gb=1"), 2, "nearest: 3g.40gb"),
        (("--demand", "3g.40gb=0"), 2, "at least 1"),
        (("--demand", ""), 2, "the value is empty"),
        (("--demand", ","), 2, "nothing is demanded"),
        (("--demand", "3g.40gb", "--policy", "x.yaml"), 2, "one of the two"),
        (("--demand", "3g.40gb", "--machines", "9999999*l4"), 2, "no GPU model is called"),
        (("--demand", "3g.40gb", "--machines", "99999*8xh100-sxm5-80gb"), 2, "more than 20000 GPUs"),
        (("--demand", "3g.40gb", "--machines", "h100-sxm"), 2, "nearest"),
        (("--machines", "l4"), 2, "go with --demand"),
        (("stray",), 2, "unexpected argument"),
        (("--demand", "3g.71gb"), 3, "no available GPU here has a profile 3g.71gb"),
        (("--demand", "3g.40gb=17"), 3, "at most 16 fit"),
        (("--demand", "3g.40gb=16,1g.10gb=1"), 3, "beside 16 x 3g.40gb at most 0 fit"),
    ],
)
def test_what_is_wrong_and_what_is_impossible_is_explained(capsys, arguments, code, words):
    assert run(["plan", *MACHINE, "-o", "json", *arguments]) == code
    said = capsys.readouterr()
    assert words in said.err
    assert json.loads(said.out)["kind"] == "Problems"


def test_an_impossible_demand_says_which_gpus_were_out_of_the_question(capsys):
    assert run(["plan", "--machine", "2xl4", "--demand", "1g.10gb"]) == 3
    assert "2xl4: GPUs 0-1: NVIDIA L4 has no MIG" in capsys.readouterr().err


def test_without_the_solver_one_line_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert run(["plan", *MACHINE, "--demand", "3g.40gb"]) == 3
    assert "pip install scipy" in capsys.readouterr().err


def test_the_table_puts_gpus_that_are_treated_alike_in_one_row(capsys):
    assert run(["plan", "--machines", "3*8xh100-sxm5-80gb", "--demand", "3g.40gb=20"]) == 0
    text = capsys.readouterr().out
    said = " ".join(text.split())
    assert "20 x 3g.40gb on 10 of 24 GPUs" in text
    assert "3g.40gb@0,4" in text
    assert "10 GPUs, and fewer cannot do: at 3g.40gb = 1/2 no layout is worth more than one GPU" in said
    assert "MIG mode has to be turned on, on each of them." in said
    assert len(text.splitlines()) <= 12


def test_what_the_time_did_not_suffice_for_is_said_in_words():
    packing = packed("7g.80gb=2", gpu("h100-sxm5-80gb", ["3g.40gb@4"]), gpu("h100-sxm5-80gb", (), 1))
    open_count = replace(packing, bound=1, proof=None)
    assert not open_count.optimal
    assert gpus_sentence(open_count).startswith("2 GPUs, and perhaps 1 GPU too many: the time was over.")
    open_loss = replace(packing, disturbed_bound=0)
    assert not open_loss.optimal
    assert "perhaps fewer suffice: the time was over" in disturbed_sentence(open_loss)


def test_a_fleet_of_many_machines_is_no_path(capsys):
    code, answer = ask(capsys, "--machine", ",".join(["8xh100-sxm5-80gb"] * 40), "--demand", "7g.80gb=9")
    assert (code, answer["gpusUsed"]) == (0, 9)


@pytest.mark.parametrize(
    "demand", ["3g.40gb=2,1g.10gb=9", "1c.3g.40gb=2,2g.20gb=3", "7g.80gb=4", "1g.10gb+me=3,1g.20gb"]
)
def test_a_demand_is_written_as_a_policy_that_apply_carries_out(capsys, tmp_path, demand):
    policy, before, after = tmp_path / "policy.yaml", tmp_path / "before.yaml", tmp_path / "after.json"
    before.write_text(
        LIVE
        + LIVE.partition("\n")[2].replace("gi: 7", "gi: 9").replace("start: 0", "start: 2")
        + "  - name: NVIDIA H100 80GB HBM3\n" * 2
    )
    assert run(["plan", "--demand", demand, "--machine", str(before), "-o", "policy"]) == 0
    said = capsys.readouterr()
    policy.write_text(said.out)
    assert "fewer cannot do" in said.err
    assert run(["check", str(policy), "--machine", str(before)]) == 0
    assert run(["apply", "--policy", str(policy), "--machine", str(before), "--write", str(after)]) == 0
    assert run(["assert", "--policy", str(policy), "--machine", str(after)]) == 0
    made = Counter(
        device["profile"]
        for gpu in json.loads(after.read_text())["gpus"]
        for device in gpu.get("migDevices", ())
    )
    wanted = Counter(
        {name: int(count or 1) for name, _, count in (one.partition("=") for one in demand.split(","))}
    )
    assert wanted <= made
    capsys.readouterr()
    assert ask(capsys, "--demand", demand, "--machine", str(after))[1]["assignments"][0]["reused"]


def test_a_policy_is_for_one_machine_and_for_a_demand(capsys):
    wide = ("--demand", "7g.80gb=2", "--machines", "2*h100-sxm5-80gb")
    assert run(["plan", *wide, "-o", "policy"]) == 2
    assert "a policy is for one" in capsys.readouterr().err
    assert run(["plan", "--machine", "l4", "-o", "policy"]) == 2
    assert "goes with --demand" in capsys.readouterr().err

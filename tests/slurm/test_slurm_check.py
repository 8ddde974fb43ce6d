"""``partage slurm check``."""

import json

import pytest

from partage.cli.main import run

CONFIG = ["slurm", "config", "--machine", "4xh100-sxm5-80gb", "--slurm-version", "24.11.5", "--node", "g1"]
MPS = "version: partage/v1\ngpus: [{select: {index: [0, 1]}, mps: {replicas: 4}}]\n"


@pytest.fixture
def files(tmp_path, capsys):
    policy, out = tmp_path / "policy.yaml", tmp_path / "etc"
    policy.write_text(MPS)
    assert run([*CONFIG, "--policy", str(policy), "--output", str(out)]) == 0
    capsys.readouterr()
    return [str(out / name) for name in ("gres.conf", "slurm.conf", "cgroup.conf")]


def _check(files, *more):
    return run(["slurm", "check", *files, "--slurm-version", "24.11.5", *more])


def test_what_config_writes_is_right(files, capsys):
    assert _check(files, "--machine", "4xh100-sxm5-80gb", "--strict") == 0
    assert "3 files: no problems" in capsys.readouterr().out


def test_another_machine_is_exit_code_3(files, capsys):
    assert _check(files, "--machine", "3xh100-sxm5-80gb") == 3
    assert "has no GPU /dev/nvidia3" in capsys.readouterr().out


def test_a_request_that_waits_for_ever_is_exit_code_3(files, capsys):
    assert _check(files, "--request", "mps:60") == 0
    assert _check(files, "--request", "mps:60", "--request", "mps:120") == 3
    out = capsys.readouterr().out
    assert "--gres=mps:120: waits for ever" in out
    assert "--gres=mps:60: accepted" in out


def test_an_error_is_exit_code_2_and_a_row_of_the_document(files, capsys, tmp_path):
    wrong = tmp_path / "gres.conf"
    wrong.write_text("Name=gpu File=/dev/nvidia0 UniqueId=GPU-1\n")
    assert _check([str(wrong)], "-o", "json", "--request", "gpu:1") == 2
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "SlurmCheck"
    (problem,) = document["problems"]
    assert (problem["file"], problem["path"]) == (str(wrong), "line 1")
    assert document["requests"][0]["outcome"] == "refused"


def test_the_document_has_slurms_indexes(files, capsys):
    assert _check(files, "-o", "json") == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert [(gpu["index"], gpu["type"], gpu["shares"]) for gpu in node["gpus"]] == [
        (0, "h100", {"mps": 0}), (1, "h100", {"mps": 0}),
        (2, "h100_shared", {"mps": 100}), (3, "h100_shared", {"mps": 100}),
    ]  # fmt: skip


def test_what_is_no_file_of_slurm(tmp_path, capsys):
    file = tmp_path / "notes.txt"
    file.write_text("hello\n")
    assert _check([str(file)]) == 2
    assert "is no gres.conf, slurm.conf or cgroup.conf" in capsys.readouterr().err

"""``partage labels``."""

import json

import pytest

from partage.cli.main import run

MIG = """\
version: partage/v1
gpus: [{select: all, mig: {layout: [3g.40gb, 3g.40gb], time-slicing: {replicas: 4}}}]
"""


def test_the_formats_say_the_same(tmp_path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "features"
    given = ["labels", "--machine", "2xh100-sxm5-80gb"]
    assert run([*given, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "Labels"
    lines = "".join(f"{key}={value}\n" for key, value in document["labels"].items())
    for output in ("table", "nfd"):
        assert run([*given, "-o", output, "--to", str(file)]) == 0
        assert capsys.readouterr().out == lines
        assert file.read_text(encoding="utf-8") == lines
    assert [one.name for one in tmp_path.iterdir()] == ["features"]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_layout_that_has_still_to_be_made_is_labelled(tmp_path, capsys: pytest.CaptureFixture[str]):
    policy = tmp_path / "policy.yaml"
    policy.write_text(MIG, encoding="utf-8")
    assert run(["labels", "--machine", "2xh100-sxm5-80gb", "--policy", str(policy), "-o", "json"]) == 0
    labels = json.loads(capsys.readouterr().out)["labels"]
    assert labels["nvidia.com/mig-3g.40gb.count"] == "4"
    assert labels["nvidia.com/mig-3g.40gb.replicas"] == "4"
    assert labels["partage.dev/mig-3g.40gb.shared.guarantee"] == "none"


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys: pytest.CaptureFixture[str]):
    assert run(["labels", "--machine", "1xl4", "--to", str(tmp_path / "no" / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_time_is_there_on_request(capsys: pytest.CaptureFixture[str]):
    assert run(["labels", "--machine", "1xl4", "--timestamp"]) == 0
    assert "nvidia.com/gfd.timestamp=" in capsys.readouterr().out

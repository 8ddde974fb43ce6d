"""The verbs of somebody who is not root, on a node in MIG mode: the program itself, and the stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from partage.edges.hardware.nvml import NvmlHardware
from partage.model.geometry import Placement
from partage.model.step import CreateCompute, CreateInstance, SetMigMode
from tests.edges.hardware.stub import StubNode

SAME = "version: partage/v1\ngpus: [{select: all, mig: {layout: [3g.40gb, 1g.10gb]}}]\n"
OTHER = "version: partage/v1\ngpus: [{select: all, mig: {layout: [7g.80gb]}}]\n"


@pytest.fixture
async def mig_node(node: StubNode) -> StubNode:
    """A GPU with a 3g.40gb and a 1g.10gb; the driver refuses what needs root."""
    node.add_h100s(1).with_live_mig(0)
    hardware = NvmlHardware(host=node.host)
    gpu = node.uuid(0)
    await hardware.perform(SetMigMode(gpu, enabled=True))
    for name, place in (("3g.40gb", Placement(4, 4)), ("1g.10gb", Placement(0, 1))):
        await hardware.perform(CreateInstance(gpu, name, place))
        await hardware.perform(CreateCompute(gpu, name, place, name))
    await hardware.close()
    node.write(unprivileged=1)
    return node


def partage(node: StubNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program. No other driver's library may be on this machine below /usr."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(node.library.parent), "COLUMNS": "200"}
    argv = [sys.executable, "-m", "partage", *arguments, "--run-dir", str(node.root / "run")]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30, check=False)


def policy(folder: Path, text: str) -> str:
    file = folder / "policy.yaml"
    file.write_text(text)
    return str(file)


def test_show_lists_the_mig_devices(mig_node: StubNode) -> None:
    shown = partage(mig_node, "show")
    assert (shown.returncode, "3g.40gb, 1g.10gb" in shown.stdout) == (0, True), shown
    assert "Where the MIG devices of GPU 0 are can be read by root only" in shown.stdout
    (gpu,) = json.loads(partage(mig_node, "show", "-o", "json").stdout)["gpus"]
    assert [(one["profile"], one["placement"]) for one in gpu["migDevices"]] == [
        ("3g.40gb", None),
        ("1g.10gb", None),
    ]


def test_a_layout_that_is_there_needs_no_root_and_another_one_does(
    mig_node: StubNode, tmp_path: Path
) -> None:
    planned = partage(mig_node, "plan", "--policy", policy(tmp_path, SAME), "-o", "json")
    assert (planned.returncode, json.loads(planned.stdout)["steps"]) == (0, []), planned
    (row,) = json.loads(partage(mig_node, "plan", "--policy", policy(tmp_path, OTHER), "-o", "json").stdout)[
        "gpus"
    ]
    assert (row["refusal"], "only root may read" in row["reason"]) == ("not-permitted", True)


def test_apply_and_record_say_that_root_is_needed(mig_node: StubNode, tmp_path: Path) -> None:
    applied = partage(mig_node, "apply", "--policy", policy(tmp_path, OTHER))
    assert (applied.returncode, "run it as root" in applied.stderr) == (3, True), applied
    recorded = subprocess.run(
        [sys.executable, "-m", "partage", "record"],
        env={**os.environ, "LD_LIBRARY_PATH": str(mig_node.library.parent)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (recorded.returncode, "run it as root" in recorded.stderr) == (4, True), recorded

"""That memory limits are not set is said where somebody wants them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from partage.slurm.host.devices_file import devices_text
from partage.slurm.host.missing_limits import missing_limits
from partage.slurm.model import NodeDevices
from tests.slurm.decide.jobs import LIMITED, NODE


@pytest.mark.parametrize(
    ("plugstack", "devices", "cgroups", "said"),
    [
        ("", NODE, True, ""),
        ("", LIMITED, True, "does not have the line"),
        ("required {d}/partage_limits.so", NODE, True, ""),
        ("required {d}/partage_limits.so", LIMITED, True, ""),
        ("optional {d}/partage_limits.so", NODE, True, "with which a job runs without its limit"),
        ("required {d}/partage_limits.so", NODE, False, "there is no cgroup v2"),
    ],
)
@pytest.mark.skipif(os.getuid() != 0, reason="devices.json is root's")
def test_whoever_wants_limits_is_told(
    tmp_path: Path, plugstack: str, devices: NodeDevices, cgroups: bool, said: str
) -> None:
    for name, text in (
        ("slurm.conf", ""),
        ("cgroup.conf", ""),
        ("partage_limits.so", ""),
        ("plugstack.conf", plugstack.format(d=tmp_path)),
        ("devices.json", devices_text(devices)),
        *([("cgroup.controllers", "")] if cgroups else []),
    ):
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in ("slurm.conf", "gres.conf")]
    found = missing_limits(files, tmp_path / "devices.json", tmp_path)
    assert [problem.severity for problem in found] == ["warning"] * bool(said)
    assert all(said in problem.message and "'memory: hard'" in problem.message for problem in found)

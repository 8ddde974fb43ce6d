"""Simulated GPUs on a node whose pods are real: the helper looks at the node for what is left of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from partage.cli.hardware import _hardware
from partage.cli.hardware_options import parse
from partage.model.gpu_use import Left
from partage.model.ids import PodUid

MACHINE = "--machine=4xa100-40gb"
UID = PodUid("5a0c1c5e-6f2e-4b52-9a37-1f3f4f0c7a11")
PIDS = Path("/sys/fs/cgroup/pids")


@pytest.mark.skipif(os.geteuid() != 0 or not PIDS.is_dir(), reason="makes cgroups of v1")
async def test_a_real_process_is_seen_beside_simulated_gpus() -> None:
    pods = PIDS / "kubepods"
    container = pods / f"pod{UID}" / ("c" * 64)
    made = [one for one in (pods, container.parent, container) if not one.exists()]
    for one in made:
        one.mkdir()
    process = subprocess.Popen(["sleep", "60"])
    try:
        container.joinpath("cgroup.procs").write_text(str(process.pid))
        with_pods = _hardware(parse([MACHINE, "--allow-container=a/b*/c"]))
        (found,) = (await with_pods.left_of({UID})).processes
        assert (found.pod, found.pid) == (UID, process.pid)
        alone = _hardware(parse([MACHINE]))
        assert await alone.left_of({UID}) == Left()
    finally:
        process.kill()
        process.wait()
        for one in reversed(made):
            one.rmdir()

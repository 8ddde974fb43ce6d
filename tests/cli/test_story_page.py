"""``partage simulate --http --serve``: the agent's pages stay after the story, until Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

STORY = """
title: one pod
machine: 1xa100-sxm4-40gb
policy: {version: partage/v1, gpus: [{select: all, time-slicing: {replicas: 2}}]}
steps:
  - run: train
    requests: {nvidia.com/gpu.shared: 1}
    memory: 6Gi
"""


def test_metrics_stay_with_the_names_of_dcgm_exporter_until_it_is_ended(tmp_path: Path) -> None:
    story = tmp_path / "story.yaml"
    story.write_text(STORY)
    command = [sys.executable, "-m", "partage", "simulate", str(story), "--http", "127.0.0.1:0", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        printed = iter(process.stdout.readline, "")
        url = next(line.strip() for line in printed if line.startswith("http://"))
        said = iter(process.stderr.readline, "")
        assert any("the page stays" in line for line in said)
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
                text = answer.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    used = [line for line in text.splitlines() if 'pod="train"' in line and "FB_USED" in line]
    assert {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in used} == {
        "DCGM_FI_DEV_FB_USED": 6 * 1024,
        "DCGM_FI_DEV_FB_USED_BYTES": 6 * 2**30,
    }

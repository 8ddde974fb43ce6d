"""NVIDIA's own programs and libraries by driver branch, where ``prepare.sh`` has fetched them."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "build" / "nvidia"
BRANCHES = ("535", "550", "555")


def unpacked(branch: str) -> Path:
    """The root of the packages of one branch; skips the test where they could not be had."""
    root = FOLDER / branch
    if not (root / ".ready").exists():
        pytest.skip(f"NVIDIA's packages of branch {branch} are not there: tests/nvidia/prepare.sh says why")
    return root


def nvml_library(branch: str) -> Path:
    """``libnvidia-ml.so.1`` of a branch. It loads without a driver."""
    return unpacked(branch) / "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1"


def toolkit() -> Path:
    """The folder with ``nvidia-ctk`` and ``nvidia-cdi-hook``; skips the test where they are not."""
    folder = FOLDER / "toolkit"
    if not (folder / "nvidia-ctk").exists():
        pytest.skip("NVIDIA's container toolkit is not there: tests/nvidia/prepare-toolkit.sh says why")
    return folder

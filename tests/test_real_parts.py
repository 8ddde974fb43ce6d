"""What ``make check`` can fetch has to be there where PARTAGE_REAL_PARTS is set: in continuous integration.

Elsewhere the tests of a part that could not be had are skipped, with the reason. There a skip would hide that
a part is no longer tried.
"""

from __future__ import annotations

import os

import pytest

from tests.nvidia.packages import BRANCHES, FOLDER
from tests.prometheus.server import PROMETHEUS, PROMTOOL
from tests.slurm.lab import NEW, OLD, why_not
from tests.web.test_browser import CHROMIUM, DRIVER

pytestmark = pytest.mark.real

PARTS = {
    **{f"NVIDIA's packages of branch {branch}": (FOLDER / branch / ".ready").exists() for branch in BRANCHES},
    "NVIDIA's container toolkit": (FOLDER / "toolkit/nvidia-ctk").exists(),
    "Prometheus": PROMETHEUS and PROMTOOL,
    "Chromium": CHROMIUM and DRIVER,
    "the older Slurm": not why_not(OLD),
    "the newer Slurm": not why_not(NEW),
}


@pytest.mark.skipif(not os.environ.get("PARTAGE_REAL_PARTS"), reason="only where every part has to be there")
@pytest.mark.parametrize("part", PARTS)
def test_it_is_there(part: str) -> None:
    assert PARTS[part]

"""The tests of all that waits for kubelet and API server, on the Python of Debian 12 (3.11.2).

Up to 3.11.2 a task that was cancelled once stays so (gh-102780). The interpreter runs the packages of this
environment where both have the same version of the C API.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

PYTHON = os.environ.get("PARTAGE_OLD_PYTHON", "/usr/bin/python3")
ROOT = Path(__file__).parent.parent
TESTS = (
    "tests/edges/kubelet/test_calls.py",
    "tests/edges/kubelet/test_endpoint.py",
    "tests/edges/kubelet/test_pod_resources.py",
    "tests/edges/kube/test_leases.py",
    "tests/agent/test_supervision.py",
    "tests/kubernetes/agent/test_taints_left.py",
)


def _version() -> str:
    command = [PYTHON, "-c", "import sys; print(*sys.version_info[:3], sep='.')"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


@pytest.mark.timeout(300)
def test_what_waits_for_others_passes_on_the_python_of_debian() -> None:
    version = _version()
    if version not in ("3.11.0", "3.11.1", "3.11.2"):
        pytest.skip(
            f"{PYTHON} is {version or 'not there'}, not 3.11.0 to 3.11.2; name one: PARTAGE_OLD_PYTHON"
        )
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the packages here are for another Python: make test VENV=... PYTHON=/usr/bin/python3")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *packages])}
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]

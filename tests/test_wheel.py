"""What ``make wheel`` makes can be installed and used without the repository."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The command ``partage`` of a new environment: the wheel, and the packages that it needs from here."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=60)
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    (wheel,) = folder.glob("partage-*.whl")
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True, timeout=60
    )
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    # Behind the wheel's own place on the path, and without its .pth files, which name this repository.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env" / "bin" / "partage"


def run(installed, *arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [installed, *arguments],
        check=False,
        cwd=installed.parent,
        env=clean,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_wheel_runs_outside_of_the_repository(installed):
    from partage import __version__

    where = [installed.parent / "python", "-c", "import partage; print(partage.__file__)"]
    found = subprocess.run(
        where, check=True, cwd=installed.parent, capture_output=True, text=True, timeout=60
    )
    assert Path(found.stdout.strip()).is_relative_to(installed.parent.parent)
    assert run(installed, "--version").stdout == f"partage {__version__}\n"


def test_the_wheel_has_its_data(installed):
    """The catalogue of GPUs, MIG placements and the guard are files beside the code."""
    (installed.parent / "policy.yaml").write_text(
        "version: partage/v1\n"
        "gpus:\n"
        "  - {select: {index: 0}, mig: {layout: all-balanced}}\n"
        "  - {select: rest, guard: true, time-slicing: {replicas: 2}}\n"
    )
    planned = run(installed, "plan", "--machine", "2xa100-sxm4-80gb", "--policy", "policy.yaml")
    assert planned.returncode == 0, planned.stderr
    assert "nvidia.com/mig-3g.40gb" in planned.stdout
    (guard,) = installed.parent.parent.glob("lib/python*/site-packages/partage/guard/site/sitecustomize.py")
    assert guard.is_file()
    checked = run(installed, "check", "--provider", "fpt", "policy.yaml")
    assert "Traceback" not in checked.stderr, checked.stderr
    for name in ("serve_http/pages/static/page.css", "serve_http/pages/static/page.js"):
        assert list(installed.parent.parent.glob(f"lib/python*/site-packages/partage/{name}")), name
    providers = "partage/edges/files/catalogue/providers"
    rules = installed.parent.parent.glob(f"lib/python*/site-packages/{providers}/*.yaml")
    assert {path.stem for path in rules} >= {"fpt", "ack", "gke"}

"""The kit, as it is carried away: another folder, no network, this Python without Partage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.on_gpu.conftest import HOME, Machine

pytestmark = pytest.mark.xdist_group("on-gpu")
MOST_BYTES = 40 * 2**20


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kit") / "partage-on-gpu"
    made = subprocess.run(
        [sys.executable, "-m", "tools.on_gpu.kit", folder, "x86_64"],
        cwd=HOME, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode and "ConnectionError" in made.stderr + made.stdout:
        pytest.skip("the packages of the kit cannot be downloaded here")
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture
def carried(kit: Path, machine: Machine) -> Machine:
    """The machine, with the kit in a folder of its own; the interpreter is not the one with Partage."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a network of one's own takes root")
    folder = machine.folder / "carried"
    shutil.copytree(kit, folder)
    machine.command = ("unshare", "-n", os.path.realpath(sys.executable), str(folder / "on-gpu"))
    return machine


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.real
def test_it_is_small_and_has_the_libraries_of_each_python(kit: Path):
    assert sum(path.stat().st_size for path in kit.rglob("*") if path.is_file()) <= MOST_BYTES
    pythons = ("cp311-x86_64", "cp312-x86_64", "cp313-x86_64")
    assert {path.name for path in (kit / "lib").iterdir()} == {"all", *pythons}
    for python in pythons:
        for library in ("msgspec", "yaml", "multidict"):
            assert (kit / "lib" / python / library).is_dir()


@pytest.mark.real
def test_without_a_network_it_sees_the_gpu_and_writes_nothing_into_its_folder(carried: Machine):
    before = files(carried.folder / "carried")
    carried.run("--only", "driver,compare,record,exporter,geometry,time-slicing")
    found = carried.findings()
    for row in ("discovery", "beside-smi", "record", "exporter", "geometry"):
        assert found[row][0] == "seen", found[row]
    assert files(carried.folder / "carried") == before
    assert carried.left() == []


@pytest.mark.real
def test_its_results_are_beside_it(carried: Machine):
    argv = [*carried.command, "--driver-root", str(carried.node.root), "--state-dir", str(carried.state)]
    subprocess.run(
        [*argv, "--only", "geometry"], env=carried.environment(), check=True, capture_output=True, cwd="/"
    )
    results = carried.folder / "carried/results"
    (result,) = results.glob("hardware-*.json")
    assert result.name in (results / "hardware.md").read_text()


@pytest.mark.real
def test_on_a_machine_without_a_gpu_it_refuses(carried: Machine):
    carried.node.library.unlink()
    assert "there is no GPU to look at here" in carried.run(code=4)


@pytest.mark.real
def test_another_python_is_told_which_it_takes(kit: Path, tmp_path: Path):
    shutil.copytree(kit, tmp_path / "kit")
    for path in (tmp_path / "kit/lib").glob("cp*"):
        path.rename(path.with_name(f"{path.name[:2]}2{path.name[3:]}"))
    said = subprocess.run(
        [sys.executable, tmp_path / "kit/on-gpu"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 3
    assert "this kit has libraries for cp211-x86_64" in said.stderr

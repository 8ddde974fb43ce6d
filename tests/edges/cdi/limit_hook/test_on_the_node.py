"""The hook on the node's disk, and the CDI files that name it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from partage.edges.cdi.limit_files import SOURCE, HookProgram, LimitFiles
from partage.errors import HardwareError
from partage.model.driver_limit import DriverLimit
from partage.model.ids import GpuUuid, ResourceName
from partage.plan.serve.limit_edits import limit_set, limit_terms
from partage.units import GIB
from tests.edges.cdi.schema import CDI_SPEC

LIMITS = limit_set([DriverLimit(GpuUuid("GPU-a"), GIB)], ResourceName("nvidia.com/gpu.shared"))
TERMS = limit_terms("/var/lib/partage/bin/partage-limit-hook", "/", "", nvidia=False)


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """Stands for the program of the image."""
    program = tmp_path / "image" / "partage-limit-hook"
    program.parent.mkdir()
    program.write_bytes(b"first")
    return program


def test_it_is_put_there_for_everybody_to_run_and_nobody_to_change(tmp_path: Path, compiled: Path) -> None:
    program = HookProgram(tmp_path / "bin", compiled)
    assert program.install() == ""
    assert program.path.read_bytes() == b"first"
    assert program.path.stat().st_mode & 0o7777 == 0o755
    assert program.path.stat().st_uid == os.geteuid()
    assert [path.name for path in program.path.parent.iterdir()] == ["partage-limit-hook"]


def test_the_same_version_stays_and_another_replaces_it_in_one_step(tmp_path: Path, compiled: Path) -> None:
    HookProgram(tmp_path / "bin", compiled).install()
    before = (tmp_path / "bin/partage-limit-hook").stat()
    again = HookProgram(tmp_path / "bin", compiled)
    assert again.install() == again.install() == ""
    assert again.path.stat().st_ino == before.st_ino
    running = again.path.open("rb")
    compiled.write_bytes(b"second")
    assert HookProgram(tmp_path / "bin", compiled).install() == ""
    assert (again.path.read_bytes(), running.read()) == (b"second", b"first")
    running.close()


@pytest.mark.parametrize("what", ["removed", "written over", "made unusable"])
def test_it_is_put_back(tmp_path: Path, compiled: Path, what: str) -> None:
    program = HookProgram(tmp_path / "bin", compiled)
    program.install()
    match what:
        case "removed":
            program.path.unlink()
        case "written over":
            program.path.write_bytes(b"other")
        case _:
            program.path.chmod(0o600)
    assert program.install() == ""
    assert program.path.read_bytes() == b"first"
    assert program.path.stat().st_mode & 0o7777 == 0o755


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, compiled: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin").chmod(0o777)
    program = HookProgram(tmp_path / "bin", compiled)
    assert "is not a directory that only its owner" in program.install()
    assert not program.path.exists()
    (tmp_path / "bin").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bin").symlink_to(tmp_path / "elsewhere")
    assert "is not a directory that only its owner" in program.install()


def test_a_partage_without_its_compiled_hook_says_how_to_make_it(tmp_path: Path) -> None:
    said = HookProgram(tmp_path / "bin", tmp_path / "none").install()
    assert said == f"the hook is not compiled: run {SOURCE}/build {tmp_path}/none (needs a C compiler)"


def test_a_file_system_without_programs_is_named(tmp_path: Path, compiled: Path) -> None:
    if os.geteuid():
        pytest.skip("mounts as root")
    (tmp_path / "state").mkdir()
    code = (
        "import sys; from pathlib import Path; from partage.edges.cdi.limit_files import HookProgram;"
        "print(HookProgram(Path(sys.argv[1]) / 'bin', Path(sys.argv[2])).install())"
    )
    ran = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c",
         'mount -t tmpfs -o noexec tmpfs "$1/state" && exec "$2" -c "$3" "$1/state" "$4"',
         "sh", tmp_path, sys.executable, code, compiled],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "is mounted noexec" in ran.stdout


def test_a_file_is_whole_or_not_there_and_has_a_copy(tmp_path: Path) -> None:
    files = LimitFiles(tmp_path / "cdi", tmp_path / "kept")
    files.write(LIMITS, TERMS)
    assert files.has(LIMITS)
    (file,), (copy,) = ([*(tmp_path / name).iterdir()] for name in ("cdi", "kept"))
    assert file.name == copy.name == f"gpu.partage.dev-limits_{LIMITS.name}.json"
    assert file.read_bytes() == copy.read_bytes()
    jsonschema.validate(json.loads(file.read_bytes()), CDI_SPEC)
    assert files.load() == {LIMITS.name: LIMITS}
    files.remove(LIMITS)
    files.remove(LIMITS)
    assert (files.load(), files.has(LIMITS)) == ({}, False)


def test_after_a_boot_the_copy_says_what_was_given(tmp_path: Path) -> None:
    LimitFiles(tmp_path / "cdi", tmp_path / "kept").write(LIMITS, TERMS)
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()
    files = LimitFiles(tmp_path / "cdi", tmp_path / "kept")
    assert files.load() == {LIMITS.name: LIMITS}
    assert not files.has(LIMITS)


def test_halves_go_and_files_of_others_stay(tmp_path: Path) -> None:
    files = LimitFiles(tmp_path / "cdi", tmp_path / "kept")
    files.write(LIMITS, TERMS)
    names = [path.name for path in (tmp_path / "cdi").iterdir()]
    half = tmp_path / "cdi" / f".{names[0]}.new"
    half.write_text("{")
    others = ["nvidia.yaml", "gpu.partage.dev-limits_set-x.json", "gpu.partage.dev-claim_u.json"]
    for name in others:
        (tmp_path / "cdi" / name).write_text("{}")
    assert files.load().keys() == {LIMITS.name}
    assert {path.name for path in (tmp_path / "cdi").iterdir()} == {*names, *others}


@pytest.mark.parametrize("full", ["cdi", "kept"])
def test_a_full_disk_is_named(tmp_path: Path, full: str) -> None:
    (tmp_path / full).write_text("in place of a directory")
    with pytest.raises(HardwareError, match=rf"cannot write the CDI file {tmp_path}/{full}/"):
        LimitFiles(tmp_path / "cdi", tmp_path / "kept").write(LIMITS, TERMS)

"""The template of a daemon's unit: what varies in it, and where the node finds the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from partage.edges.mps.paths import DaemonPaths, DriverFiles
from partage.edges.mps.systemd import unit_command, unit_name
from partage.errors import InputError
from tests.edges.mps.subjects import GPUS


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    root = tmp_path / "driver-root"
    for name in ("usr/bin/nvidia-cuda-mps-control", "usr/lib64/libcuda.so.1"):
        (root / name).parent.mkdir(parents=True)
        (root / name).touch(0o755)
    return root


@pytest.mark.parametrize("name", ["", "GPU-0;reboot", "../../x", "a b", "partage\n", "x" * 300])
def test_nothing_but_a_uuid_names_a_unit(name):
    with pytest.raises(InputError):
        unit_name(name)


def test_only_the_uuid_varies(driver):
    files = DriverFiles(driver, Path("/"))
    commands = []
    for gpu in GPUS:
        paths = DaemonPaths.of(Path("/run/partage"), gpu)
        commands.append("\n".join(unit_command(files.for_node(paths), (), paths, own_shm=True)))
    assert commands[0] != commands[1]
    assert commands[0].replace(GPUS[0], "") == commands[1].replace(GPUS[1], "")


@pytest.mark.parametrize(
    ("on_node", "loader", "command", "libraries"),
    [
        ("/", True, ["/usr/bin/nvidia-cuda-mps-control"], ""),
        ("/run/driver", True, ["chroot", "/run/driver", "/usr/bin/nvidia-cuda-mps-control"], ""),
        ("/opt/nvidia", False, ["/opt/nvidia/usr/bin/nvidia-cuda-mps-control"], "/opt/nvidia/usr/lib64"),
    ],
)
def test_the_program_is_the_nodes_own(driver, on_node, loader, command, libraries):
    if loader:
        (driver / "lib64").mkdir()
        (driver / "lib64/ld-linux-x86-64.so.2").symlink_to("/no/such/loader/here")
    paths = DaemonPaths.of(Path("/run/partage"), GPUS[0])
    made = unit_command(DriverFiles(driver, Path(on_node)).for_node(paths), ("-m",), paths, own_shm=True)
    assert made[made.index("--") + 1 :] == [*command, "-d", "-m"]
    assert not any(str(driver) in word for word in made)  # a path of the container means nothing there
    below = on_node if "chroot" in command else ""
    assert f"--property=BindPaths={paths.shm}:{below}/dev/shm" in made
    assert (f"--property=BindPaths={paths.home}:{below}{paths.home}" in made) is bool(below)
    assert f"--setenv=LD_LIBRARY_PATH={libraries}" in made or not libraries

"""``make on-gpu-kit``: everything that a machine needs which has a driver and a Python, in one folder.

    on-gpu              starts it with the Python that runs it
    partage-*.whl       Partage, to be installed where somebody wants it
    lib/all             Partage and its pure libraries, unpacked
    lib/cp311-x86_64    its compiled libraries, for each Python
    tools/on_gpu        the runner

Downloading takes a network; running does not. Licences of the libraries are in their ``.dist-info``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
LARGEST_BYTES = 40 * 2**20
_PLATFORMS = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
_LEAVE_OUT = ("__pycache__", "*.pyc", "kit.py")
_README = """The kit of `make on-gpu`: run `./on-gpu` here, as root where you may.

It takes a machine with an NVIDIA driver and Python {pythons} ({processor}), and nothing else: no network, no
pip. With another Python than `python3`: `python3.12 ./on-gpu`. `./on-gpu --help` lists the options; results
are in `results/`: bring `results/hardware-*.json` back, or take it along to the next machine.
"""


def make_kit(folder: Path, processor: str) -> int:
    """Write the folder anew, for one kind of processor (x86_64, aarch64); its size in bytes. Raises
    SystemExit where it would be too large.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        new = Path(work) / "kit"
        wheel = _own_wheel(Path(work))
        for tag, wheels in _wheels(Path(work), wheel, processor):
            for one in wheels:
                _unpack(one, new / "lib" / tag)
        shutil.copy(wheel, new)
        ignored = shutil.ignore_patterns(*_LEAVE_OUT)
        shutil.copytree(HOME / "tools/on_gpu", new / "tools/on_gpu", ignore=ignored)
        shutil.copy(HOME / "tools/__init__.py", new / "tools")
        (new / "tools/on_gpu/on-gpu").rename(new / "on-gpu")
        shutil.copy(HOME / "LICENSE", new)
        readme = _README.format(pythons=", ".join(PYTHONS), processor=processor)
        (new / "README.txt").write_text(readme, encoding="utf-8")
        size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
        if size > LARGEST_BYTES:
            raise SystemExit(f"the kit has {size >> 20} MiB, and {LARGEST_BYTES >> 20} are the most")
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    return size


def _own_wheel(work: Path) -> Path:
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", work, HOME)
    (wheel,) = work.glob("partage-*.whl")
    return wheel


def _wheels(work: Path, own: Path, processor: str) -> Iterator[tuple[str, list[Path]]]:
    """For each folder below ``lib`` the wheels in it. What has no compiled part is there once."""
    pure: dict[str, Path] = {own.name: own}
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_{processor}")]
    for python in PYTHONS:
        tag = f"cp{python.replace('.', '')}-{processor}"
        target = work / tag
        _pip(
            "download", "--only-binary", ":all:", "--python-version", python, "--implementation", "cp",
            *platforms, "-c", HOME / "constraints.txt", "--dest", target, own,
        )  # fmt: skip
        found = sorted(path for path in target.glob("*.whl") if path.name != own.name)
        pure |= {path.name: path for path in found if path.name.endswith("-none-any.whl")}
        yield tag, [path for path in found if not path.name.endswith("-none-any.whl")]
    yield "all", list(pure.values())


def _unpack(wheel: Path, folder: Path) -> None:
    """As an installer does, without scripts: everything is run as a module."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


def _pip(*arguments: object) -> None:
    argv = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(argv, check=True)  # noqa: S603 - our own pip


if __name__ == "__main__":
    target, kind = Path(sys.argv[1]).resolve(), sys.argv[2]
    target.parent.mkdir(parents=True, exist_ok=True)
    mib = make_kit(target, kind) / 2**20
    sys.stdout.write(f"{target}: {mib:.1f} MiB, for Python {', '.join(PYTHONS)} on {kind}\n")

"""NVIDIA's own control programs, without a GPU: downloaded and unpacked for the tests, never installed.

From Debian's component non-free, by the machine's own package client and mirror.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

SUITES = {"535": "bookworm", "550": "trixie", "555": "experimental"}
"""Driver branch to the suite that has it."""

_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_PACKAGE = "nvidia-cuda-mps"
_LIMIT_S = 60


def unpacked(branch: str, place: Path) -> Path | str:
    """A driver root with the programs of a branch below ``place``, or why there is none."""
    if os.geteuid() != 0:
        return "apt takes root here"
    try:
        mirror = re.search(r"^URIs: (\S+)", _SOURCES.read_text(encoding="utf-8"), re.MULTILINE)
        assert mirror is not None
        source = place / "one.list"
        source.write_text(f"deb {mirror[1]} {SUITES[branch]} non-free\n", encoding="utf-8")
        for directory in ("lists/partial", "cache/archives/partial", "root"):
            (place / directory).mkdir(parents=True)
        options = [
            f"Dir::Etc::sourcelist={source}",
            "Dir::Etc::sourceparts=-",
            f"Dir::State::lists={place / 'lists'}",
            f"Dir::Cache={place / 'cache'}",
            "APT::Sandbox::User=root",
        ]
        apt = ["apt-get", *(word for option in options for word in ("-o", option))]
        for act in (["update"], ["download", _PACKAGE]):
            subprocess.run([*apt, *act], cwd=place, check=True, capture_output=True, timeout=_LIMIT_S)
        (package,) = place.glob(f"{_PACKAGE}_*.deb")
        subprocess.run(["dpkg", "-x", package, place / "root"], check=True, capture_output=True)
    except (OSError, AssertionError, ValueError, subprocess.SubprocessError) as error:
        return f"{_PACKAGE} of branch {branch} cannot be fetched here: {error}"
    return place / "root"

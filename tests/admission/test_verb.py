"""The options of ``partage admission``."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from partage.admission.decide.settings import DialectSettings
from partage.admission.verb import settings_of_options
from partage.cli.main import run
from partage.errors import InputError


def test_hami_is_configured_as_its_own_file_does_it() -> None:
    options = ("resourceMemoryName=example.com/mem", 'resourceCoreName="example.com/1"', "defaultMemory=5")
    assert settings_of_options((*options, "deviceMemoryScaling=1.5"), 1 << 20) == DialectSettings(
        hami_memory="example.com/mem",
        hami_cores="example.com/1",
        default_memory=5,
        scaling=1.5,
        gpu_mem_bytes=1 << 20,
    )
    with pytest.raises(InputError, match="is not KEY=VALUE"):
        settings_of_options(("resourceMemoryName",), 1)


def test_an_authority_is_for_a_certificate(capsys: Any) -> None:
    assert run(["admission", "--ca", "ca.crt"]) == 2
    assert "--ca is for --http-cert" in capsys.readouterr().err


def test_with_a_certificate_of_ones_own_no_library_is_needed() -> None:
    """``cryptography`` is an extra."""
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from partage.admission import service, verb\n"
        "from partage.admission.decide.settings import DialectSettings\n"
        "from partage.edges.kube.config import ClusterConfig\n"
        "cluster, place = ClusterConfig('https://127.0.0.1:1'), ('a', 'b')\n"
        "parts = verb._parts(cluster, place, DialectSettings(), frozenset(), keeps_own=False)\n"
        "service.AdmissionService(parts)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

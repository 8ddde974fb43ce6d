"""Broken nodes as directory trees: the cause comes first; a healthy node has no finding."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from partage.doctor.decide.diagnose import CHECKS
from partage.doctor.decide.finding import EVERYTHING
from tests.doctor.faults import FAULTS, exclude_each_other
from tests.doctor.node import Node, codes
from tests.examples import examples

EXPLAINS = {check.code: check.explains for check in CHECKS}


def test_a_healthy_node_has_no_finding_and_everything_was_looked_at(node: Node) -> None:
    found = node.diagnose()
    assert found.findings == ()
    assert found.not_looked == ()
    assert found.looked > 40


def _mig(node: Node) -> None:
    node.policy = "version: partage/v1\ngpus:\n  - {select: all, mig: {layout: [3g.40gb, 3g.40gb]}}\n"
    devices = [{"gi": n, "ci": 0, "profile": "3g.40gb", "start": 4 * n} for n in (0, 1)]
    for index in (0, 1):
        node.gpu(index, mig_mode=[1, 1], mig_devices=devices)


def _crio(node: Node) -> None:
    node.remove("etc/containerd/config.toml")
    text = '[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\n'
    node.file("etc/crio/crio.conf.d/99.conf", text + 'runtime_path = "/usr/bin/nvidia-container-runtime"\n')


def _k3s(node: Node) -> None:
    at = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    node.file(at, node.at("etc/containerd/config.toml").read_text())
    node.remove("etc/containerd/config.toml")
    node.process(100, "k3s-server", "/usr/local/bin/k3s", "server")


@pytest.mark.parametrize(
    "other",
    [
        _mig,
        _crio,
        _k3s,
        lambda node: node.card(2, "vfio-pci"),
        lambda node: node.card(2, "nvgrace-gpu-vfio-pci"),
        lambda node: node.card(2, "nvidia-vgpu-vfio"),
        lambda node: node.remove("etc/containerd/config.toml"),  # a runtime that is not known
    ],
)
def test_other_kinds_of_healthy_nodes_have_no_finding(node: Node, other: Callable[[Node], object]) -> None:
    other(node)
    assert codes(node.diagnose()) == []


@pytest.mark.parametrize("name", FAULTS)
def test_the_cause_comes_first(node: Node, name: str) -> None:
    FAULTS[name](node)
    found = node.diagnose()
    assert codes(found)[:1] == [name.partition(":")[0]]
    first = found.findings[0]
    assert first.evidence
    assert all(first.evidence)
    assert first.fix[0].isupper() or first.fix.startswith(("partage ", "kubectl "))


def _explained(code: str, by: list[str]) -> bool:
    return any(code in EXPLAINS[one] or EVERYTHING in EXPLAINS[one] for one in by)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(sorted(FAULTS)), min_size=2, max_size=2, unique=True))
def test_of_two_faults_both_are_found_or_one_explains_the_other(names: list[str]) -> None:
    """Or it is said that the other one could not be looked for."""
    assume(not exclude_each_other(*names))
    with tempfile.TemporaryDirectory(prefix="pd-", dir="/tmp") as root:
        node = Node(Path(root))
        try:
            for name in names:
                FAULTS[name](node)
            found = node.diagnose()
        finally:
            node.close()
    there = [*codes(found), *(one.finding.code for one in found.explained)]
    not_looked = [code for one in found.not_looked for code in one.checks]
    for name in names:
        code = name.partition(":")[0]
        assert code in (*there, *not_looked) or _explained(code, there)
    for one in found.explained:
        assert set(one.by) <= set(there)


def test_nothing_is_the_cause_of_itself() -> None:
    """Otherwise two findings could hide each other."""

    def below(code: str, seen: tuple[str, ...] = ()) -> None:
        assert code not in seen, f"{' -> '.join((*seen, code))}"
        for other in EXPLAINS.get(code, ()):
            below(other, (*seen, code))

    for code in EXPLAINS:
        below(code)


def test_every_code_that_is_explained_exists() -> None:
    known = {*EXPLAINS, EVERYTHING}
    assert {code for explained in EXPLAINS.values() for code in explained} <= known
    assert len(EXPLAINS) == len(CHECKS)

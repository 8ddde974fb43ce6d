"""What most tests of an agent need: a directory for the node, a kubelet, a simulated helper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.harness import Place, SimulatedHelper, place, simulated_helper
from tests.kubelet_script import ScriptedKubelet, scripted_kubelet


@pytest.fixture
def node() -> Iterator[Place]:
    """The directories of one node."""
    with place() as somewhere:
        yield somewhere


@pytest.fixture
def kubelet(node: Place) -> Iterator[ScriptedKubelet]:
    """A kubelet that listens there."""
    with scripted_kubelet(node.kubelet_dir, node.pod_resources) as one:
        yield one


@pytest.fixture
def helper(node: Place) -> Iterator[SimulatedHelper]:
    """A helper with eight simulated GPUs."""
    with simulated_helper(node) as one:
        yield one

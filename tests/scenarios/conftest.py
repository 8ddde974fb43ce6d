"""A node for each scenario: the directories, a kubelet, a simulated helper."""

from tests.agent.conftest import helper, kubelet, node

__all__ = ["helper", "kubelet", "node"]

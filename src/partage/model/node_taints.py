"""The taints that Partage sets on its Node, where that is asked for."""

from __future__ import annotations

from enum import StrEnum


class NodeTaint(StrEnum):
    """not-ready: the agent does not offer the GPUs. gpu-unhealthy: a GPU of the node has a fault."""

    NOT_READY = "not-ready"
    GPU_UNHEALTHY = "gpu-unhealthy"

    @property
    def key(self) -> str:
        """Of the taint: ``partage.dev/not-ready``. Nobody else uses such a key."""
        return f"partage.dev/{self.value}"


NO_SCHEDULE = "NoSchedule"
"""The only effect: pods that run are never ended by a taint."""

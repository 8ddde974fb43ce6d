"""What the agent asks of its cluster: the agent takes it as a part, and knows no orchestrator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from partage.agent.options import AgentOptions
from partage.agent.status.status import AgentStatus
from partage.model.ids import GpuUuid
from partage.plan.report import UNASKED, HeldBack

if TYPE_CHECKING:
    from partage.edges.kube.config import ClusterConfig
    from partage.edges.kube.port import ClusterNode

    ConnectCluster = Callable[
        [AgentOptions, AgentStatus, Callable[[], None], Callable[[ClusterNode], None], Callable[[], None]],
        "ClusterPart",
    ]
    """Makes the part; nothing is asked yet. The last three: ask, for a turn of the loop; know, told what the
    own Node says; judge_again, the rollout may have moved on."""


class ClusterPart(Protocol):
    """The own Node, and the rollout that it is part of."""

    async def run(self, config: ClusterConfig, pause_s: float) -> None:
        """Keep the own Node up to date, ``pause_s`` after the first turn, which must not wait for it."""

    @property
    def trouble(self) -> str:
        """Why the Node cannot be kept up to date; empty if it can."""

    @property
    def gave_up(self) -> Mapping[GpuUuid, str]:
        """The GPUs whose pods could not be asked to leave, with why."""

    @property
    def spared(self) -> Mapping[GpuUuid, str]:
        """The GPUs that wait for pods which are not asked to leave, with which and why."""

    @property
    def other_writer(self) -> str:
        """Who else writes the same labels, a sentence; empty for nobody."""

    def may_change(self, revision: str) -> HeldBack | None:
        """Why the rollout holds this policy back; None: it does not."""


class NoCluster:
    """Without one."""

    trouble = other_writer = ""
    gave_up: Mapping[GpuUuid, str] = {}
    spared: Mapping[GpuUuid, str] = {}

    def __init__(self, *_: object) -> None:
        pass

    async def run(self, config: ClusterConfig, pause_s: float) -> None:
        """There is nothing to run: who gives the agent a cluster also gives it the part."""
        raise NotImplementedError

    def may_change(self, revision: str) -> HeldBack | None:
        """Nobody can be asked."""
        del revision
        return UNASKED

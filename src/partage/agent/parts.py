"""What the agent asks of its cluster, and what it has to do with ResourceClaims: it takes both as parts, and
knows neither an orchestrator nor DRA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from partage.agent.endpoints.plugin_set import AllocateContext
from partage.agent.options import AgentOptions
from partage.agent.status.status import AgentStatus, ClaimFigures
from partage.model.ids import GpuUuid
from partage.plan.report import UNASKED, HeldBack
from partage.plan.serve.claim_offer import NodeMoment
from partage.plan.serve.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.edges.hardware.port import Hardware
    from partage.edges.kube.config import ClusterConfig
    from partage.edges.kube.port import ClusterNode
    from partage.model.claim import ClaimHold, Demands

    ConnectCluster = Callable[
        [AgentOptions, AgentStatus, Callable[[], None], Callable[[ClusterNode], None], Callable[[], None]],
        "ClusterPart",
    ]
    """Makes the part; nothing is asked yet. The last three: ask, for a turn of the loop; know, told what the
    own Node says; judge_again, the rollout may have moved on."""
    ConnectClaims = Callable[
        [AgentOptions, Ledger, Callable[[], float], Callable[[], None], Hardware], "ClaimsPart"
    ]
    """Makes the part from options, ledger, clock, ``ask`` for a turn, and the hardware. What claims held
    before is in the ledger then; nothing is asked yet."""


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


class ClaimsPart(Protocol):
    """The DRA driver of the node."""

    async def run(self) -> None:
        """Serve the kubelet and keep the node's ResourceSlices, until cancelled."""

    def publish(self, now: NodeMoment, terms: AllocateContext) -> None:
        """After a turn: this decides what claims can get. What is new is on disk. terms: what containers
        get."""

    def demands(self, boot_id: str) -> Demands:
        """What claims want of GPUs whose MIG devices are made on demand. boot_id: of the node, empty: not
        known."""

    def seen(self, holds: Sequence[ClaimHold]) -> None:
        """The kubelet names these containers with claims, and no others."""

    def figures(self) -> ClaimFigures | None:
        """For metrics, which are asked on another thread; None: there is no driver."""

    @property
    def trouble(self) -> str:
        """Why claims get nothing, or not all; empty: they do."""


class NoClaims:
    """Without a DRA driver."""

    def __init__(self, *_: object) -> None:
        self.trouble = ""

    async def run(self) -> None:
        """There is nothing to run."""
        raise NotImplementedError

    def figures(self) -> ClaimFigures | None:
        """There are none."""
        return None

    def publish(self, now: NodeMoment, terms: AllocateContext) -> None:
        """What claims could get, nobody gets."""
        del terms
        given = now.on_demand or any(now.open_rows(gpu, rows) for gpu, rows in now.view.offer.items())
        self.trouble = "the policy has GPUs for claims, and the agent runs without --dra" if given else ""

    def demands(self, boot_id: str) -> Demands:
        """Nobody wants anything."""
        del boot_id
        return {}

    def seen(self, holds: Sequence[ClaimHold]) -> None:
        """Another driver's claims are not ours."""
        del holds

"""What the agent has to do with ResourceClaims: the agent takes it as a part, and knows no DRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from partage.agent.endpoints.plugin_set import AllocateContext
from partage.agent.options import AgentOptions
from partage.agent.status.status import ClaimFigures
from partage.plan.serve.claim_offer import NodeMoment
from partage.plan.serve.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.edges.hardware.port import Hardware
    from partage.model.claim import ClaimHold, Demands

    ConnectClaims = Callable[
        [AgentOptions, Ledger, Callable[[], float], Callable[[], None], Hardware], "ClaimsPart"
    ]
    """Makes the part from options, ledger, clock, ``ask`` for a turn, and the hardware. What claims held
    before is in the ledger then; nothing is asked yet."""


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

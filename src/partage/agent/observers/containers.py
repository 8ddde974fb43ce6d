"""What each observer of the node's containers asks: the hardware, who holds what, and what the kubelet calls
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from partage.agent.options import Intervals
from partage.edges.hardware.port import Hardware
from partage.edges.kubelet.container_names import container_names
from partage.model.driver_limit import LimitAt
from partage.model.ids import ContainerId
from partage.plan.serve.ledger import Ledger
from partage.plan.serve.ledger_entry import Holder


class NodeContainers(Struct):
    """The containers of a node. directory: of their logs. ask: asks for a turn. holders_known: whether it is
    known now who holds what. counted: what is counted for cgroups (``MemoryLimitsObserver.used``).
    """

    hardware: Hardware
    ledger: Ledger
    directory: Path
    clock: Callable[[], float]
    ask: Callable[[], None]
    intervals: Intervals
    holders_known: Callable[[], bool]
    counted: Callable[[], Mapping[LimitAt, int]] = dict

    async def names(self) -> Mapping[ContainerId, Holder]:
        """Of those that have logs now."""
        return await asyncio.to_thread(container_names, self.directory)

"""Whether anybody was ever a client of an MPS daemon, while its pipe is mounted read-only.

Whether CUDA's clients write to that directory is not known (ADR 132). If they do, their containers fail, and
no client ever connects; so that is what is looked for. Nothing else tells: the agent does not see why a
container ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from partage.model.gpu_use import ProcessKind
from partage.model.ids import DeviceUuid, device_of
from partage.model.mps import DaemonPhase, DaemonState
from partage.plan.serve.ledger_entry import LedgerEntry
from partage.plan.serve.watchdog import WatchResult

WITHIN_S = 60.0
"""A container that has held a share for so long without a client may have none, or may have failed."""


class MpsClientsSeen(Struct):
    """The daemons, by device and pid, of which clients were seen since the agent began."""

    _seen: set[tuple[DeviceUuid, int | None]] = field(default_factory=set)

    def note(self, daemons: Iterable[DaemonState], watched: WatchResult | None) -> None:
        """What was seen now: by the daemons themselves, or by the driver."""
        listed = {
            usage.device
            for usage in (watched.usages if watched else ())
            if any(process.kind is ProcessKind.MPS_CLIENT for process in usage.processes)
        }
        self._seen |= {
            (daemon.device, daemon.pid) for daemon in daemons if daemon.clients or daemon.device in listed
        }

    def missing(self, daemon: DaemonState, entries: Iterable[LedgerEntry], now_s: float) -> bool:
        """Whether it serves, shares of it have been held for a while, and nobody was ever its client."""
        if daemon.phase is not DaemonPhase.SERVING or (daemon.device, daemon.pid) in self._seen:
            return False
        return any(
            device_of(entry.id) == daemon.device and now_s - entry.since_s >= WITHIN_S for entry in entries
        )

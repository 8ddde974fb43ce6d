"""What the agent has to remember: the last good policy, what its GPUs serve, their health."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from partage.model.health import Health
from partage.plan.transition import Serving


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """The last good policy. source: the file's name; config: which of several configurations, None for the only one."""

    text: str
    source: str
    config: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered. boot_id: of the node, when it was written. serving, health: by GPU UUID."""

    boot_id: str = ""
    policy: SavedPolicy | None = None
    serving: Mapping[str, Serving] = field(default_factory=dict)
    health: Mapping[str, Health] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """state: None where there is none (that is usable). problems: sentences for the log and the report."""

    state: State | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NotSaved:
    """The state could not be written; the agent warns and runs on."""

    reason: str


class StateDir:
    """The state directory, locked for one agent. All calls block (fsync): call them in a thread.

    problem: why nothing can be written or locked here, None where all is well.
    """

    def __init__(self, path: Path) -> None:
        """Make the directory and lock it. Raises InputError where another agent has it."""
        raise NotImplementedError

    def load(self, now_s: float) -> Loaded:
        """Read the state; a file that cannot be used is set aside as ``state.json.corrupt-N``. Never raises."""
        raise NotImplementedError

    def save(self, state: State, now_s: float) -> NotSaved | None:
        """Replace the state atomically: whatever happens meanwhile, the old or the new one is there."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the lock back. Idempotent."""
        raise NotImplementedError

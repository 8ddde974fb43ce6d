"""The life cycle of a GPU's health. Written by the health part of the agent; see Condition for its input."""

from __future__ import annotations

from dataclasses import dataclass

from partage.model.gpu import RecoveryAction


@dataclass(frozen=True, slots=True)
class Condition:
    """What the driver says of one GPU now (``nvmlDeviceGetFieldValues``); cheap to ask every few seconds.

    gpu: UUID. lost: why it does not answer, None where it does.
    recovery: None where the driver has no such field.
    rows_pending: remapped rows wait for a reset; rows_failed: remapping failed.
    fabric_ok: None on GPUs without a fabric. resets: how often this GPU was provably reset since the
    node booted, None where that cannot be known.
    """

    gpu: str
    lost: str | None = None
    recovery: RecoveryAction | None = None
    rows_pending: bool = False
    rows_failed: bool = False
    fabric_ok: bool | None = None
    resets: int | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """One XID event. gpu: UUID, or None where the driver did not say. gi, ci: None for the whole GPU."""

    gpu: str | None
    code: int
    gi_id: int | None = None
    ci_id: int | None = None

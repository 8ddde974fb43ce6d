"""Checks of the node below everything: disks and the clock. Pure."""

from __future__ import annotations

from partage.doctor.decide.finding import Check, Finding, error, warning
from partage.doctor.decide.observation import Agent, Clock, Disk, Observation
from partage.units import MIB, format_bytes

LEAST_BYTES = 32 * MIB
"""The state file is at most 16 MiB, and is written beside the old one."""

_LEAST_FILES = 64
_AHEAD_S = 60.0
"""A clock that is set by another one is not set back that far."""


def _disks(now: Observation) -> Finding | None:
    assert isinstance(now.disks, tuple)
    bad = {disk.path: why for disk in now.disks if (why := _disk_problem(disk))}
    if not bad:
        return None
    return error(
        "disk-full",
        "Partage cannot write its state: after a restart of the node it would not know what its GPUs served",
        (f"{path}: {why}" for path, why in bad.items()),
        "Make room there (df -h, df -i, journalctl --vacuum-size=200M), or mount it writable. The agent then "
        "writes again",
    )


def _disk_problem(disk: Disk) -> str:
    if disk.read_only:
        return "its file system is mounted read-only"
    if disk.free_bytes < LEAST_BYTES:
        return f"{format_bytes(disk.free_bytes)} are free, and {format_bytes(LEAST_BYTES)} are needed"
    if disk.free_files is not None and disk.free_files < _LEAST_FILES:
        return f"its file system has room for {disk.free_files} more files"
    return ""


def _set_back(now: Observation) -> Finding | None:
    assert isinstance(now.agent, Agent)
    if now.agent.ahead_s < _AHEAD_S:
        return None
    return error(
        "clock-set-back",
        "The clock of this node was set back: times in reports are wrong, certificates and leases may not "
        "be valid yet",
        f"files that Partage wrote are {now.agent.ahead_s:.0f} s ahead of the clock",
        "Set the clock (chronyc makestep, or timedatectl set-ntp true), and look why it was wrong: the "
        "battery of the machine, or a snapshot of a virtual machine",
    )


def _unsynchronised(now: Observation) -> Finding | None:
    assert isinstance(now.clock, Clock)
    if now.clock.synchronised:
        return None
    return warning(
        "clock-unsynchronised",
        "Nothing keeps the clock of this node right: leases of a rollout, certificates and the times of "
        "metrics go by it",
        f"the kernel's clock may be wrong by {now.clock.error_s:.0f} s (adjtimex): no time service sets it",
        "Start a time service: systemctl enable --now chronyd, or systemd-timesyncd; timedatectl shows what "
        "it does",
    )


CHECKS = (
    Check("disk-full", "disks", ("disks",), _disks,
          frozenset({"state-unusable", "agent:state-not-saved", "agent:history-not-saved",
                     "agent:guard-not-written"})),
    Check("clock-set-back", "the clock", ("agent",), _set_back, frozenset({"clock-unsynchronised"})),
    Check("clock-unsynchronised", "the clock", ("clock",), _unsynchronised),
)  # fmt: skip

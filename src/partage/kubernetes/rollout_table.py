"""The table of a rollout."""

from __future__ import annotations

from rich.table import Table

from partage.answers.render.tables import plain_table
from partage.kubernetes.rollout import RolloutDocument, RolloutNodeRow
from partage.plan.cluster.rollout import NodePhase
from partage.text import count_of

_STYLES = {NodePhase.FAILED: "red", NodePhase.CHANGING: "yellow", NodePhase.WAITING: "dim"}


def rollout_table(rollout: RolloutDocument) -> Table:
    """One row for each node."""
    title = f"Rollout {rollout.namespace}/{rollout.name}"
    table = plain_table(title, "Node", "Policy", "In force", "Wanted", "Phase", "Why")
    for row in rollout.nodes:
        table.add_row(*_cells(row), style=_STYLES.get(row.phase, ""))
    return table


def _cells(row: RolloutNodeRow) -> tuple[str, ...]:
    phase = f"{row.phase}, canary" if row.canary else str(row.phase)
    return row.name, row.policy or "-", row.in_force, row.wanted or "?", phase, row.why


def node_line(row: RolloutNodeRow) -> str:
    """One node in one line."""
    name, _, in_force, wanted, phase, why = _cells(row)
    change = in_force if in_force == wanted else f"{in_force} -> {wanted}"
    return f"{name}: {phase}: {change}" + (f": {why}" if why else "")


def rollout_lines(rollout: RolloutDocument) -> list[str]:
    """How it stands as a whole."""
    finished = sum(row.phase is NodePhase.DONE for row in rollout.nodes)
    lines = [
        f"{finished} of {count_of(len(rollout.nodes), 'node')} done; at most {rollout.max_changing} at once"
        + (f"; first those with {rollout.canary}" if rollout.canary else "")
    ]
    lines += [
        f"{slot.name}: held by {slot.node}, renewed at {slot.renewed_at}"
        for slot in rollout.slots
        if slot.node
    ]
    if rollout.stopped:
        lines.append(f"stopped: {rollout.stopped}; edit the policy, or partage rollout resume")
    if rollout.paused_by == "hand":
        lines.append("paused; partage rollout resume continues it")
    elif rollout.paused_by == "chart":
        lines.append("paused by the chart's value rollout.paused")
    return lines

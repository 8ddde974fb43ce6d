"""``partage assert``: whether the node is as its policy wants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partage.faces.cli import common

if TYPE_CHECKING:
    from partage.model.gpu import Gpu, Inventory
    from partage.model.policy import DesiredMig

_FALSE = 1


@click.command(name="assert")
@common.policy_options
@common.machine_option
@common.hardware_socket_option
@common.output_option("table", "json", "yaml")
def command(
    policy: str | None, config: str | None, machine: str | None, hardware_socket: Path | None, output: str
) -> int:
    """Whether the node's MIG modes and layouts are as the policy wants them; nothing is changed.

    Exit code 0: they are; 1: they are not, and what differs is said; 2: the policy is wrong; 3: this node can
    never be so; 4: no usable driver.
    """
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.offer.assign import assign
    from partage.plan.reconcile.holders import wishes_of

    loaded = common.read_policy(policy, config)
    inventory, _ = common.look(machine, hardware_socket)
    warnings = assign(loaded.policy, common.need_driver(inventory), geometry_of).warnings
    common.print_problems([*loaded.warnings, *warnings])
    rows = list(_differences(inventory, wishes_of(loaded.policy, inventory, geometry_of)))
    if output == "table":
        for row in rows:
            click.echo(f"GPU {row['index']}: {row['detail']}")
    else:
        problems = [common.problem_row(problem) for problem in (*loaded.warnings, *warnings)]
        answer = {"asWanted": not rows, "differences": rows, "problems": problems}
        common.print_document(common.document("Assertion", answer), output)
    return _FALSE if rows else 0


def _differences(inventory: Inventory, wishes: dict[str, DesiredMig]) -> Iterator[dict[str, Any]]:
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.reconcile.blocked import Blocked
    from partage.plan.reconcile.gpu_mig_plan import as_found, steps_between

    for gpu in inventory:
        wish = wishes.get(gpu.uuid)
        way = None if wish is None else steps_between(gpu, wish, geometry_of(gpu))
        if wish is None or way is None or (not isinstance(way, Blocked) and not way.steps):
            continue
        found = as_found(gpu)
        wanted = [str(item) for item in wish.items] if isinstance(way, Blocked) else list(way.layout)
        reason = way.reason if isinstance(way, Blocked) else ""
        live = [str(item) for item in found.items]
        yield {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "wanted": {"mig": wish.enabled, "layout": wanted},
            "found": {"mig": found.enabled, "layout": live},
            "detail": reason or _told(gpu, wanted, live, enabled=wish.enabled),
        }


def _told(gpu: Gpu, wanted: list[str], live: list[str], *, enabled: bool) -> str:
    assert gpu.mig_mode is not None
    if gpu.mig_mode.current != enabled:
        mode, now = ("on", "off") if enabled else ("off", "on")
        pending = ", until it is reset" if gpu.mig_mode.pending == enabled else ""
        return f"MIG mode is wanted {mode}, and is {now}{pending}"
    if gpu.mig_mode.pending != enabled:
        return f"MIG mode will be {'off' if enabled else 'on'} after the next reset"
    if wanted == live:
        return "a GPU instance without a MIG device takes up its slices"
    return f"wanted {', '.join(wanted) or 'no MIG device'}; found {', '.join(live) or 'none'}"

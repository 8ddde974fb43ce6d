"""``partage assert``: check whether the node is as the policy wants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partage.faces.cli import common

if TYPE_CHECKING:
    from partage.agent.reconciler.apply_once import PlanInput
    from partage.model.gpu import Gpu
    from partage.plan.reconcile.node_plan import NodePlan

_FALSE = 1


@click.command(name="assert")
@common.policy_options
@common.machine_option
@common.hardware_socket_option
@common.run_dir_option
@common.state_dir_option
@common.output_option("table", "json", "yaml")
def command(
    *,
    policy: str | None,
    config: str | None,
    machine: str | None,
    hardware_socket: Path | None,
    run_dir: str | None,
    state_dir: Path | None,
    output: str,
) -> int:
    """Compare the node with the policy: MIG layouts, MPS daemons, compute modes, time slices.

    Nothing is changed.

    Exit code 0: all GPUs are as the policy wants them; 1: some are not, and what differs is printed; 2: the
    policy is wrong; 3: impossible on this node; 4: no usable driver.
    """
    from partage.edges.files.catalogue import geometry_of
    from partage.plan.reconcile.planner import plan_node

    loaded = common.read_policy(policy, config)
    found = common.plan_input(machine, loaded.policy, hardware_socket, run_dir=run_dir, state_dir=state_dir)
    common.print_problems([*loaded.warnings, *found.desired.warnings])
    rows = list(_differences(found, plan_node(found.desired, found.now, geometry_of)))
    if output == "table":
        for row in rows:
            click.echo(f"GPU {row['index']}: {row['detail']}")
    else:
        problems = [common.problem_row(one) for one in (*loaded.warnings, *found.desired.warnings)]
        answer = {"asWanted": not rows, "differences": rows, "problems": problems}
        common.print_document(common.document("Assertion", answer), output)
    return _FALSE if rows else 0


def _differences(found: PlanInput, plan: NodePlan) -> Iterator[dict[str, Any]]:
    from partage.faces.plan_rows import step_row

    for gpu in found.inventory:
        one = plan.gpus[gpu.uuid]
        if gpu.uuid not in plan.unsettled:
            continue
        layout = _layout(gpu, found, plan)
        detail = layout.pop("detail", None) or one.reason
        steps = [step_row(step, found.inventory) for step in one.steps]
        yield {"index": gpu.index, "uuid": gpu.uuid, **layout, "detail": detail, "steps": steps}


def _layout(gpu: Gpu, found: PlanInput, plan: NodePlan) -> dict[str, Any]:
    """How its MIG layout differs; empty if it matches."""
    from partage.plan.reconcile.blocked import Blocked
    from partage.plan.reconcile.gpu_mig_plan import GpuMigPlan, live_layout

    desired, mig = found.desired.layouts.get(gpu.uuid), plan.mig.of(gpu.uuid)
    if desired is None or mig is None or (isinstance(mig, GpuMigPlan) and not mig.steps):
        return {}
    live = live_layout(gpu)
    layout = [str(item) for item in live.items]
    wanted = [str(item) for item in desired.items] if isinstance(mig, Blocked) else list(mig.layout)
    return {
        "wanted": {"mig": desired.enabled, "layout": wanted},
        "found": {"mig": live.enabled, "layout": layout},
        "detail": _difference(gpu, wanted, layout, enabled=desired.enabled),
    }


def _difference(gpu: Gpu, wanted: list[str], live: list[str], *, enabled: bool) -> str:
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

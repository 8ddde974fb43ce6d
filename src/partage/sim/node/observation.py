"""What the driver of a simulated node answers: the inventory, the conditions, and the state as text."""

from __future__ import annotations

from msgspec.structs import replace

from partage.model.gpu import Driver, Gpu, Inventory, NoDriver
from partage.model.gpu_use import GpuUse
from partage.model.health import GpuCondition
from partage.sim.node.limits import support_of
from partage.sim.node.state import SimulatedNode


def inventory_of(state: SimulatedNode) -> Inventory:
    """The node as ``Hardware.observe`` answers it."""
    now = replace(
        state.at_power_on,
        driver=state.driver,
        boot_id=state.boot_id,
        simulated=True,
        toolkit=None,
        limits_by=None,
    )
    if isinstance(state.driver, NoDriver):
        return replace(now, gpus=(), lost=(), links=(), control_nodes=(), fabric_manager=None, vgpu=None)
    gpus = tuple(
        replace(
            _with_files(state, gpu),
            recovery=state.conditions[index].recovery,
            limits=support_of(state, gpu) or gpu.limits,
        )
        for index, gpu in sorted(state.gpus.items())
        if index not in state.lost
    )
    answering = {gpu.uuid for gpu in gpus}
    return replace(
        now,
        gpus=gpus,
        lost=tuple(lost for _, lost in sorted(state.lost.items())),
        links=tuple(link for link in now.links if link.a in answering and link.b in answering),
    )


def _with_files(state: SimulatedNode, gpu: Gpu) -> Gpu:
    if gpu.index not in state.without_files:
        return gpu
    devices = (replace(device, missing_file=device.capability_files[0]) for device in gpu.mig_devices)
    return replace(gpu, mig_devices=tuple(devices))


def conditions_of(state: SimulatedNode) -> tuple[GpuCondition, ...]:
    """What the driver says of every GPU whose UUID is known, by index."""
    rows = {index: _in_mig_mode(row, state.gpus[index]) for index, row in state.conditions.items()}
    for index, lost in state.lost.items():
        rows.pop(index, None)
        if lost.uuid is not None:
            rows[index] = GpuCondition(lost.uuid, lost=lost.reason)
    return tuple(row for _, row in sorted(rows.items()))


def _in_mig_mode(row: GpuCondition, gpu: Gpu) -> GpuCondition:
    """In MIG mode a driver ends its search for the NVLink fabric, and says that it goes on for ever."""
    if not gpu.mig_enabled:
        return row
    return replace(row, mig_mode=True, fabric_ok=None if row.fabric_ok is None else False)


def describe_node(state: SimulatedNode) -> str:
    """The state as text, one line for each thing."""
    driver = state.driver
    head = (
        f"driver {driver.version} cuda {driver.cuda}"
        if isinstance(driver, Driver)
        else f"no driver: {driver.reason}"
    )
    lines = [f"boot {state.boots}, {head}"]
    for index, gpu in sorted(state.gpus.items()):
        lines.append(_gpu_line(state, index, gpu))
        lines += [
            f"  mig {mig.index}  {mig.profile} {mig.placement}  gi {mig.gi_id} ci {mig.ci_id}  {mig.uuid}"
            for mig in gpu.mig_devices
        ]
        lines += [
            f"  empty  {instance.profile} {instance.placement}  gi {instance.gi_id}"
            for instance in gpu.empty_instances
        ]
        lines += [f"  used by {use}{_part(use)}" for use in state.uses if use.gpu == gpu.uuid]
        daemons = (daemon for daemon in state.daemons.values() if daemon.spec.gpu == gpu.uuid)
        lines += [f"  mps daemon of {daemon.spec.device}: {daemon.phase}" for daemon in daemons]
    return "\n".join(lines)


def _part(use: GpuUse) -> str:
    return "" if use.whole else f"  gi {use.gi_id}" + ("" if use.ci_id is None else f" ci {use.ci_id}")


def _gpu_line(state: SimulatedNode, index: int, gpu: Gpu) -> str:
    condition, lost = state.conditions[index], state.lost.get(index)
    words = [f"gpu {index}  {gpu.product}  {gpu.uuid}"]
    if lost:
        words.append(f"lost: {lost.reason}")
    if gpu.mig_mode and (gpu.mig_mode.current or gpu.mig_mode.pending):
        words.append("mig on" if gpu.mig_mode.current else "mig pending")
    if condition.recovery:
        words.append(f"needs {condition.recovery.word.replace('-', ' ')}")
    if condition.rows_pending:
        words.append("rows pending")
    if condition.rows_failed:
        words.append("rows failed")
    if condition.fabric_ok is False:
        words.append("fabric broken")
    if condition.resets:
        words.append(f"resets {condition.resets}")
    return "  ".join(words)

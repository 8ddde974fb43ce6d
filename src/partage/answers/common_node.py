"""The node that a verb is about: its hardware, its policy, the report of its agent.

No slow imports at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from partage.answers.common_options import (
    DEFAULT_RUN_DIR,
    choice_options,
    driver_root,
    kubelet_dir,
    state_directory,
)
from partage.answers.common_output import print_problems
from partage.answers.process_start import lean_imports
from partage.errors import Problem

if TYPE_CHECKING:
    from partage.agent.observers.once import PlanInput
    from partage.answers.documents.report import ReportDocument
    from partage.edges.files.policy import LoadedPolicy
    from partage.edges.hardware.port import Hardware
    from partage.model.gpu import Inventory
    from partage.model.gpu_use import GpuUse
    from partage.model.policy import Policy
    from partage.plan.offer.desired import DesiredState


T = TypeVar("T")


def read_policy(
    policy: str | None,
    config: str | None,
    report: ReportDocument | None = None,
    *,
    labels: Mapping[str, str] | None = None,
) -> LoadedPolicy:
    """The policy of ``--policy`` on a node with the labels of ``--node-labels``, or every GPU exclusive.

    report: of the agent that runs there; where labels are not given, they are those that it knows. labels:
    of this node, in place of those of ``--node-labels``.
    Raises InputError with all problems.
    """
    from msgspec.structs import replace

    from partage.agent.node_policy import PolicyRefusal, node_policy
    from partage.edges.files.policy_directory import read_policies
    from partage.errors import InputError

    if policy is None and config is not None:
        raise InputError(
            "--config names a configuration of a policy file", "name the file with --policy FILE"
        )
    choice = choice_options(config)
    if labels is not None:
        choice = replace(choice, labels=labels)
    if choice.labels is None and report is not None and (seen := report.planner_input) is not None:
        choice = replace(choice, labels=seen.labels)
    chosen = node_policy(None if policy is None else read_policies(policy), choice)
    if isinstance(chosen, PolicyRefusal):
        raise InputError(chosen.problems)
    if chosen.layouts_problems:
        raise InputError(chosen.layouts_problems)
    return replace(chosen.loaded, policy=chosen.policy(chosen.layouts))


def open_hardware(
    machine: str | None,
    socket: Path | None = None,
    run_dir: str | None = None,
) -> Hardware:
    """The real node, by its driver (``--driver-root``) or by a helper at ``socket``, or the simulated one.

    run_dir: MPS daemons have their directories below it.
    """
    from partage.errors import InputError

    if machine is not None and socket is not None:
        raise InputError("--machine and --hardware-socket exclude each other")
    root = driver_root()
    if root is not None and (machine is not None or socket is not None):
        other = "--machine" if machine is not None else "--hardware-socket"
        raise InputError(f"{other} and --driver-root exclude each other", "only the real driver has a root")
    root = root or Path("/")
    if socket is not None:
        from partage.edges.hardware.helper_client import RemoteHardware

        return RemoteHardware(socket)
    if machine is not None:
        from partage.sim.node.files.load import load_machine
        from partage.sim.node.hardware import SimulatedHardware

        return SimulatedHardware(load_machine(machine))

    from partage.answers.unknown_models import lacks_geometry
    from partage.edges.hardware.driver_pause import read_pause
    from partage.edges.hardware.nvml import NvmlHardware
    from partage.edges.mps.keeper import MpsKeeper

    directory = Path(run_dir or DEFAULT_RUN_DIR)
    keeper, paused = MpsKeeper(directory, root), partial(read_pause, directory)
    return NvmlHardware(root, keeper=keeper, lacks_geometry=lacks_geometry, paused=paused)


def ask(
    question: Callable[[Hardware], Coroutine[Any, Any, T]],
    machine: str | None,
    socket: Path | None = None,
    run_dir: str | None = None,
) -> T:
    """Open the node, ask it once, close it. Raises InputError for a machine that does not exist."""
    with lean_imports():
        import asyncio

    async def once() -> T:
        hardware = open_hardware(machine, socket, run_dir=run_dir)
        try:
            return await question(hardware)
        finally:
            await hardware.close()

    return asyncio.run(once())


def observe(machine: str | None, socket: Path | None = None) -> Inventory:
    """Observe the node once."""
    return ask(lambda hardware: hardware.observe(), machine, socket)


def observe_with_uses(machine: str | None) -> tuple[Inventory, tuple[GpuUse, ...]]:
    """Observe the node and the uses of its GPUs once; no uses without a driver."""
    with lean_imports():
        from partage.agent.observers.once import NodeAccess

    return ask(lambda hardware: NodeAccess(hardware).observe(), machine)


def plan_input(
    machine: str | None,
    policy: Policy,
    socket: Path | None = None,
    *,
    run_dir: str | None = None,
    state_dir: Path | None = None,
) -> PlanInput:
    """Observe the node and resolve the policy on it. Raises what makes that impossible.

    state_dir: has the settings that GPUs had before Partage changed them.
    """
    with lean_imports():
        from partage.agent.observers.once import observe_input
    from partage.edges.files.catalogue import geometry_of
    from partage.edges.files.state import read_state
    from partage.plan.offer.desired import resolve

    directory = state_directory(state_dir, machine)
    saved = None if directory is None else read_state(directory)

    return ask(
        lambda hardware: observe_input(
            hardware,
            lambda inventory: resolve(policy, need_driver(inventory), geometry_of),
            original_in=lambda boot_id: {} if saved is None else saved.original_in(boot_id),
            other_plugin=lambda desired: other_plugin(desired, machine),
        ),
        machine,
        socket,
        run_dir,
    )


def other_plugin(desired: DesiredState, machine: str | None) -> str:
    """Which other device plugin offers GPUs of this node, a sentence; empty for none (``--kubelet-dir``)."""
    directory = kubelet_dir(machine)
    if directory is None:
        return ""
    from partage.edges.kubelet.other_plugins import serving_gpus
    from partage.model.gpu import devices_of
    from partage.model.share import plugin_resources

    plugin = serving_gpus(directory, plugin_resources(desired.offer), devices_of(desired.inventory))
    return "" if plugin is None else str(plugin)


def need_driver(inventory: Inventory) -> Inventory:
    """The inventory, if there is a driver. Raises DriverUnavailable with what to do."""
    from partage.errors import DriverUnavailable
    from partage.model.gpu import NoDriver

    if isinstance(inventory.driver, NoDriver):
        hint = inventory.driver.hint or "install or repair the NVIDIA driver"
        raise DriverUnavailable(
            inventory.driver.reason, f"{hint}; --machine 8xh100-sxm5-80gb simulates a node instead"
        )
    return inventory


def _report_file(machine: str | None, run_dir: str | None) -> Path | None:
    """The place of the report of an agent that runs on this node; None for a simulated node."""
    if run_dir is None and machine is not None:
        return None
    return Path(run_dir or DEFAULT_RUN_DIR) / "report.json"


def agent_report(machine: str | None, run_dir: str | None) -> ReportDocument | None:
    """The last report of the agent on this node; a warning if it cannot be used."""
    found = report_at(_report_file(machine, run_dir), machine)
    if isinstance(found, str):
        print_problems([Problem("", "", "warning", found)])
        return None
    return found


def report_at(path: Path | None, machine: str | None) -> ReportDocument | str | None:
    """The report of the agent that runs on this node; why it cannot be used; None if there is none."""
    if path is None or _is_absent(path):
        return None
    from partage.answers.documents.report import Unreadable, read_report  # imports all of the agent's status

    found = read_report(path)
    if found is None:
        return None
    if isinstance(found, Unreadable):
        return found.reason
    why = _why_not_ours(found, machine)
    return f"{path} is not used: {why}" if why else found


def _is_absent(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # why it cannot be read is said by who reads it
    return False


def _why_not_ours(document: ReportDocument, machine: str | None) -> str:
    """Why the report says nothing about this node now; empty if it does."""
    from partage.answers.documents.report import this_node, why_not_ours
    from partage.edges.host.procfs import runs
    from partage.sim.node.files.load import load_machine

    here = this_node(None if machine is None else load_machine(machine).inventory)
    return why_not_ours(
        document.agent, document.node, here, agent_runs=runs(Path("/proc"), document.agent.pid)
    )


def ctk_found(policy: Policy, inventory: Inventory) -> bool:
    """Whether ``nvidia-ctk`` is on this node where the policy says, or has written a spec for its driver."""
    from partage.model.gpu import Driver

    if inventory.simulated or not isinstance(inventory.driver, Driver):
        return False
    if Path(policy.options.nvidia_ctk).is_file():
        return True
    from partage.edges.cdi.host_spec import DIRECTORIES, host_spec

    return host_spec(DIRECTORIES, inventory.driver.version)[0] is not None

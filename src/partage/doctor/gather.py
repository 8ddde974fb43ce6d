"""Looks at a node and says what was seen, one part after the other. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import field
from msgspec.structs import replace

from partage.doctor.decide.observation import Agent, Clock, Disk, DriverParts, Observation, Unseen
from partage.doctor.gather_agent import (
    agent_seen,
    claim_files_of,
    kubelet_seen_by_agent,
    limit_files_of,
    mps_seen,
    reasons_of,
    why_ended,
)
from partage.doctor.gather_policy import GivenPolicy, Looked, look
from partage.doctor.gather_slurm import slurm_seen
from partage.doctor.host.cdi_files import cdi_files
from partage.doctor.host.machine import clock_seen, device_files, disks_seen, nvidia_gpus
from partage.doctor.host.root import DoctorPlace, driver_root, host
from partage.doctor.host.runtime import container_runtime
from partage.edges.hardware.binding import find_library
from partage.errors import HardwareError, PartageError
from partage.model.gpu import Driver, Inventory, NoDriver
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument
    from partage.edges.hardware.port import Hardware
    from partage.model.node_labels import NodeLabels

_HELPERS = Unseen("only the agent's helper may ask the GPUs: their health is what the agent reports")

T = TypeVar("T")

_VERSION_AFTER = "libnvidia-ml.so."
_CONTAINER_SIGNS = ("/.dockerenv", "/run/.containerenv")
_IN_CONTAINER = Unseen(
    "this is a container with files of its own: mount the node's root and name it, --root /host"
)


class Sources(Frozen):
    """What no directory shows, so that tests have their own. clock: None: this machine's, which says nothing
    about a simulated node. disks: of these directories of the node.
    """

    clock: Callable[[], Clock | Unseen] | None = None
    disks: Callable[..., tuple[Disk, ...]] = disks_seen
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def see(
    place: DoctorPlace,
    given: GivenPolicy,
    labels: NodeLabels | None = None,
    sources: Sources | None = None,
) -> Observation:
    """Look at everything. labels: of the Node, where they are known. Raises InputError for a machine or a
    policy file that cannot be read at all.
    """
    sources = sources or Sources()
    report, report_problem = _report(place)
    looked = _look(place, given, report)
    if _is_container(place, sources.environ) and report is not None:
        looked = _as_the_agent_sees(looked, place, given, report)
    inventory = looked.inventory
    if labels is None and report is not None and (planned := report.planner_input) is not None:
        labels = planned.labels
    without_files = Observation(
        inventory=inventory,
        conditions=looked.conditions,
        policy=looked.policy,
        agent=None if report is None else Agent(locked=True),
        reasons=reasons_of(None, report),
        clock=_clock(place, sources),
        labels=labels,
    )
    if not place.files:
        return without_files
    agent = agent_seen(place, report, report_problem)
    kubelet = kubelet_seen_by_agent(place, agent, report, looked)
    reasons = reasons_of(agent, report)
    seen = replace(without_files, agent=agent, reasons=reasons, kubelet=kubelet)
    return _with_files(seen, place, sources)


def _with_files(seen: Observation, place: DoctorPlace, sources: Sources) -> Observation:
    """With what the files and processes of the node show."""
    root, inventory = place.root, seen.inventory
    contained = _is_container(place, sources.environ)
    works = isinstance(inventory.driver, Driver)
    minors = [gpu.minor for gpu in inventory]
    return replace(
        seen,
        pci_gpus=nvidia_gpus(root),
        driver=_driver_parts(place),
        device_files=_unless(contained, lambda: device_files(root, driver_root(place), minors))
        if works
        else None,
        # Without a kubelet it has nothing to do with pods.
        runtime=None if seen.kubelet is None else _unless(contained, lambda: container_runtime(root)),
        cdi=_unless(contained, lambda: cdi_files(root)),
        claims=None if seen.kubelet is None else _unless(contained, lambda: claim_files_of(place)),
        limits=None if seen.kubelet is None else _unless(contained, lambda: limit_files_of(place)),
        disks=sources.disks(root, (place.state_dir, place.run_dir)),
        mps=mps_seen(place),
        slurm=slurm_seen(place, inventory, sources.environ),
    )


def _look(place: DoctorPlace, given: GivenPolicy, report: ReportDocument | None) -> Looked:
    """The GPUs, and the policy on them. A driver that hangs is a driver that does not work."""
    from partage.answers.process_start import lean_imports

    if place.machine is None and place.elsewhere and find_library(driver_root(place)) is None:
        # Not the library of this container: it belongs to no driver of the node.
        missing = NoDriver("library-missing", f"libnvidia-ml.so.1 is not there, below {driver_root(place)}")
        return look(None, Inventory(missing), place, given, report)
    with lean_imports():
        import asyncio

    async def once() -> Looked:
        hardware = _hardware(place)
        try:
            return await _asked(hardware, place, given, report)
        finally:
            await hardware.close()

    return asyncio.run(once())


async def _asked(
    hardware: Hardware, place: DoctorPlace, given: GivenPolicy, report: ReportDocument | None
) -> Looked:
    try:
        inventory = await hardware.observe()
    except HardwareError as error:
        inventory = Inventory(NoDriver("failed", str(error)))
        return look(None, inventory, place, given, report)
    looked = look(None, inventory, place, given, report)
    if not isinstance(inventory.driver, Driver):
        return looked
    try:
        looked = replace(looked, conditions=await hardware.conditions())
    except PartageError as error:
        looked = replace(looked, conditions=Unseen(str(error)))
    return await looked.planned(hardware, place)


def _as_the_agent_sees(
    looked: Looked, place: DoctorPlace, given: GivenPolicy, report: ReportDocument
) -> Looked:
    """In the agent's own container there is no driver: its helper has it."""
    planned = report.planner_input
    if isinstance(looked.inventory.driver, Driver) or planned is None:
        return looked
    inventory = planned.snapshot.observed.node.inventory
    if not isinstance(inventory.driver, Driver):
        return looked
    return replace(look(None, inventory, place, given, report), conditions=_HELPERS)


def _hardware(place: DoctorPlace) -> Hardware:
    from partage.answers import common_node

    if place.machine is not None or not place.elsewhere:
        return common_node.open_hardware(place.machine, run_dir=None if place.machine else place.run_dir)
    from functools import partial

    from partage.edges.hardware.driver_pause import read_pause
    from partage.edges.hardware.nvml import NvmlHardware

    return NvmlHardware(host=host(place), paused=partial(read_pause, place.run_path))


def _driver_parts(place: DoctorPlace) -> DriverParts:
    root = driver_root(place)
    library = find_library(root)
    name = "" if library is None else library.name
    version = name.removeprefix(_VERSION_AFTER)
    return DriverParts(
        module=host(place).kernel_module_version() or "",
        library="" if library is None else str(library),
        library_version=version if name.startswith(_VERSION_AFTER) and "." in version else "",
        searched=str(root),
    )


def _report(place: DoctorPlace) -> tuple[ReportDocument | None, str]:
    """The report of the agent that runs here, or why there is none that can be used."""
    from partage.answers import common_node

    if not (place.files or place.own_run_dir):
        return None, ""
    found = common_node.report_at(place.run_path / "report.json", place.machine)
    if isinstance(found, str):
        return None, found
    ended = why_ended(place)
    return (None, ended) if ended else (found, "")


def _clock(place: DoctorPlace, sources: Sources) -> Clock | Unseen | None:
    if sources.clock is not None:
        return sources.clock()
    return clock_seen() if place.machine is None else None


def _is_container(place: DoctorPlace, environ: Mapping[str, str]) -> bool:
    if place.elsewhere:
        return False
    return "KUBERNETES_SERVICE_HOST" in environ or any(map(place.root.exists, _CONTAINER_SIGNS))


def _unless(contained: bool, seen: Callable[[], T]) -> T | Unseen:
    return _IN_CONTAINER if contained else seen()

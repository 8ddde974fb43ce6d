"""Slurm on the node: its files, the GPUs in them, and what slurmctld has read."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from partage.doctor.decide.observation import SlurmState, Unseen
from partage.doctor.host.root import DoctorPlace
from partage.errors import ClusterError, InputError, Problem, Unsatisfiable
from partage.model.gpu import Driver, Inventory, devices_of

if TYPE_CHECKING:
    from partage.slurm.host.control import SlurmControl
    from partage.slurm.model import NodeDevices, SlurmVersion
    from partage.slurm.text.conf import ConfFile

_PLACES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_BESIDE = ("gres.conf", "cgroup.conf")


def slurm_seen(
    place: DoctorPlace, inventory: Inventory, environ: Mapping[str, str]
) -> SlurmState | Unseen | None:
    """None: Slurm is not on this node."""
    from partage.slurm.host.job_records import read_records

    conf = _conf(place, environ)
    devices_file, devices, devices_problem = _devices(place)
    if conf is None and not devices_file:
        return None
    gone = _strangers(devices, inventory)
    unreadable = tuple(read_records(place.run_path).unreadable.values())
    if conf is None:
        return SlurmState(
            (), devices_problem, devices_file=devices_file, strangers=gone, unreadable=unreadable
        )
    from partage.slurm.decide.check import check_files
    from partage.slurm.host.conf_files import read_conf_files
    from partage.slurm.host.control import SlurmControl

    control = None if place.elsewhere or place.machine else SlurmControl(place.slurm_bin)
    version = _version(place, control, devices)
    if version is None:
        return Unseen("it is not known which release of Slurm it is: add --slurm-version 24.11")
    there = slurm_files(place, environ)
    try:
        read = read_conf_files(there, version)
    except InputError as error:
        return SlurmState(tuple(there), error.problems)
    node = place.node_name or socket.gethostname().partition(".")[0]
    works = isinstance(inventory.driver, Driver)
    checked = check_files(read, version, inventory if works else None, node)
    live, unseen = _live(control, read, version, node, there)
    return SlurmState(
        tuple(there),
        (*checked.problems, *devices_problem),
        checked.differences,
        live,
        unseen,
        devices_file,
        gone,
        unreadable,
    )


def slurm_files(place: DoctorPlace, environ: Mapping[str, str]) -> list[str]:
    """slurm.conf, gres.conf and cgroup.conf of the node, where they are here; [] without a slurm.conf."""
    conf = _conf(place, environ)
    names = [] if conf is None else [conf, *(str(Path(conf).with_name(name)) for name in _BESIDE)]
    return [str(place.root.at(name)) for name in names if place.root.exists(name)]


def _conf(place: DoctorPlace, environ: Mapping[str, str]) -> str | None:
    named = "" if place.elsewhere else environ.get("SLURM_CONF", "")
    return next((path for path in (*([named] if named else []), *_PLACES) if place.root.exists(path)), None)


def _version(
    place: DoctorPlace, control: SlurmControl | None, devices: NodeDevices | None
) -> SlurmVersion | None:
    """As named, as scontrol says, or as Partage's files were written for. Raises InputError."""
    from partage.slurm.version import version_of

    if place.slurm_version is not None:
        return version_of(place.slurm_version)
    if control is not None and control.installed:
        try:
            return control.version()
        except (ClusterError, Unsatisfiable):
            pass
    return None if devices is None else devices.slurm


def _devices(place: DoctorPlace) -> tuple[str, NodeDevices | None, tuple[Problem, ...]]:
    """Partage's list of devices: where it is, what it says, what is wrong with it."""
    from partage.slurm.host.devices_file import DEFAULT_PATH, read_devices

    if not place.root.exists(DEFAULT_PATH):
        return "", None, ()
    try:
        return DEFAULT_PATH, read_devices(place.root.at(DEFAULT_PATH)), ()
    except InputError as error:
        return DEFAULT_PATH, None, error.problems


def _strangers(devices: NodeDevices | None, inventory: Inventory) -> tuple[str, ...]:
    """Devices of the list that are not on the node; () where the GPUs are not known."""
    if devices is None or not isinstance(inventory.driver, Driver):
        return ()
    known = devices_of(inventory.gpus) | {gpu.uuid for gpu in inventory.lost if gpu.uuid is not None}
    return tuple(device.uuid for device in devices.devices if device.uuid not in known)


def _live(
    control: SlurmControl | None,
    read: tuple[ConfFile, ...],
    version: SlurmVersion,
    node: str,
    files: list[str],
) -> tuple[tuple[Problem, ...], str]:
    """What slurmctld has read differently, and why that is not known."""
    from partage.slurm.decide.against_live import LiveCluster, check_live

    if control is None or not control.installed:
        return (), "slurmctld was not asked: scontrol is not here" if control else "slurmctld was not asked"
    try:
        settings, nodes = control.settings(), control.nodes()
    except (ClusterError, Unsatisfiable) as error:
        return (), f"slurmctld does not answer: {error}"
    written = [Path(file).stat().st_mtime for file in files if "gres" in Path(file).name]
    cluster = LiveCluster(settings, nodes, (node, max(written)) if written else None)
    return check_live(read, cluster, version, node), ""

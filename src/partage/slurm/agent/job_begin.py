"""The prolog of a job: its record, its MPS daemons, and what is wrong with the node. Blocking."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from partage.edges.host.slurm_limits import constrains_devices, why_no_limits
from partage.errors import InputError, PartageError, Unreachable
from partage.model.ids import DeviceUuid
from partage.model.mps import DaemonSpec, DaemonState
from partage.slurm.agent.job_end import end_jobs, end_lost_jobs
from partage.slurm.agent.job_node import LOCK_S, JobNode, NodeBroken
from partage.slurm.decide.job_start import (
    JobRequest,
    NodeFacts,
    daemons_of,
    has_to_be_asked,
    idle_daemons,
    start_job,
    unwanted_daemons,
    with_other_users,
)
from partage.slurm.host.devices_file import read_devices
from partage.slurm.host.job_records import JobRecords, Records
from partage.slurm.model import JobRecord, NodeDevices


def begin_job(node: JobNode, request: JobRequest) -> JobRecord:
    """Let a job begin: its record is written and its daemons run, or the record says why it must not.

    A job that Slurm does not know any more is in nobody's way: its epilog did not run. Before a job is
    refused on account of others, Slurm is asked which of them live; and after a long wait, whether it lives
    itself: a slurmd that was started again meanwhile does not know that a prolog still runs, and its epilog
    came too early. Raises NodeBroken.
    """
    begun_s = time.monotonic()
    try:
        devices = read_devices(node.devices)
    except InputError as error:
        raise NodeBroken(str(error)) from error
    try:
        facts = _facts(node, request, devices)
        with JobRecords(node.run_dir, make=True) as records:
            record, others = _begun(node, request, devices, facts, records)
            if record.refused and end_lost_jobs(node, records, others):
                record, _ = _begun(node, request, devices, facts, records)
            if time.monotonic() - begun_s > node.long_s:
                end_lost_jobs(node, records, Records((record,)))
    except TimeoutError as error:
        raise NodeBroken(str(error)) from error
    except OSError as error:
        where = error.filename or node.run_dir / "jobs"
        raise NodeBroken(f"{where}: {error.strerror or error}") from error
    except (ValueError, PartageError) as error:
        raise NodeBroken(str(error)) from error
    return record


def requeue_job(node: JobNode, record: JobRecord) -> bool:
    """Put a refused job back into the queue; whether Slurm did it. Else its tasks end with the reason, so
    that its owner reads it. Raises NodeBroken: nobody can be asked, and the job would be lost.
    """
    try:
        return node.slurm.requeue(record.job, f"job does not run yet: {record.refused}")
    except PartageError as error:
        with JobRecords(node.run_dir) as records:
            records.remove(record.job)
        raise NodeBroken(f"a job cannot be put back into the queue: {error}") from error


def _facts(node: JobNode, request: JobRequest, devices: NodeDevices) -> NodeFacts:
    """Raises Unsatisfiable: Slurm's programs are not there."""
    held, silent = None, ""
    if has_to_be_asked(request, devices):
        try:
            held = node.slurm.held(request.job)
        except Unreachable as error:
            silent = f"Slurm did not say which GPUs it has: {error}"
    given = request.indexes if held is None else held.indexes
    own = [device for device in devices.devices if device.index in given]
    guarded, limited = any(device.guard for device in own), any(device.limited for device in own)
    return NodeFacts(
        constrained=node.slurm_conf is not None and constrains_devices(node.slurm_conf),
        limits=limited and node.slurm_conf is not None and not why_no_limits(node.slurm_conf),
        guard_dir=_guard_dir(node) if guarded else "",
        held=held,
        silent=silent,
    )


def _guard_dir(node: JobNode) -> str:
    """The directory of the guard's files. Empty: they cannot be written; a share is guaranteed nothing."""
    from partage.agent.endpoints.guard_files import write_guard
    from partage.slurm.host.root_directory import RootDirectory

    try:
        with RootDirectory(node.run_dir / "guard", make=True):
            return str(write_guard(node.run_dir / "guard"))
    except OSError:
        return ""


def _begun(
    node: JobNode, request: JobRequest, devices: NodeDevices, facts: NodeFacts, records: JobRecords
) -> tuple[JobRecord, Records]:
    """The record, as it is on the disk, and those of the other jobs on the node. Raises NodeBroken."""
    with records.locked(LOCK_S):
        others = records.read().without(request.job)
        record = start_job(request, devices, facts, others.jobs)
        if unknown := next(iter(others.unreadable.values()), ""):
            record = replace(record, refused=unknown)
        specs = daemons_of(record, devices)
        record = replace(record, decided=not specs)
        records.put(record)
    try:
        if unwanted := unwanted_daemons(record, devices):
            _stop(node, unwanted)
        if specs:
            return _decided(node, record, _start(node, specs), records)
    except NodeBroken:
        end_jobs(node, records, [request.job])
        raise
    return record, others


def _decided(
    node: JobNode, record: JobRecord, daemons: Sequence[DaemonState], records: JobRecords
) -> tuple[JobRecord, Records]:
    """The record once its daemons run. Of two users who begin at the same time, the first one here has them.

    An epilog may have removed it meanwhile: of a slurmd that was started again, and knows nothing of this
    prolog. Then the job has ended, and needs no daemon.
    """
    with records.locked(LOCK_S):
        now = records.read()
        others = now.without(record.job)
        if now.of(record.job) != record:
            if idle := idle_daemons([running.device for running in daemons], others.jobs):
                _stop(node, idle)
            return record, others
        for daemon in daemons:
            record = with_other_users(record, daemon, others.jobs)
        record = replace(record, decided=True)
        records.put(record)
    return record, others


def _start(node: JobNode, specs: Sequence[DaemonSpec]) -> tuple[DaemonState, ...]:
    from partage.slurm.agent.daemons import start_daemons

    try:
        return start_daemons(node, specs)
    except PartageError as error:
        raise NodeBroken(f"the MPS daemon does not start: {error}") from error


def _stop(node: JobNode, devices: Sequence[DeviceUuid]) -> None:
    from partage.slurm.agent.daemons import stop_daemons

    if wrong := stop_daemons(node, devices):
        raise NodeBroken(wrong[0])

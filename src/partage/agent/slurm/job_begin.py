"""The prolog of a job: its record, its MPS daemons, and what is wrong with the node. Blocking."""

from __future__ import annotations

from partage.agent.slurm.job_node import LOCK_S, JobNode, NodeBroken
from partage.edges.slurm.constrained import constrains_devices
from partage.edges.slurm.devices_file import read_devices
from partage.edges.slurm.job_records import JobRecords
from partage.errors import InputError, PartageError
from partage.model.slurm_devices import NodeDevices
from partage.model.slurm_job import JobRecord
from partage.plan.slurm.job_start import (
    JobRequest,
    JobStart,
    NodeFacts,
    daemons_of,
    has_to_be_asked,
    start_job,
    unwanted_daemons,
    with_other_users,
)


def begin_job(node: JobNode, request: JobRequest) -> JobRecord:
    """Let a job begin: its record is written and its daemons run, or the record says why it must not.

    Raises NodeBroken.
    """
    try:
        devices = read_devices(node.devices)
    except InputError as error:
        raise NodeBroken(str(error)) from error
    facts = _facts(node, request, devices)
    try:
        with JobRecords(node.run_dir, make=True) as records:
            with records.locked(LOCK_S):
                start, others = _start(node, request, devices, facts, records)
                records.put(start.record)
            try:
                record = _with_daemons(node, start.record, devices, others)
            except NodeBroken:
                records.remove(request.job)
                raise
            if record != start.record:
                records.put(record)
    except TimeoutError as error:
        raise NodeBroken(str(error)) from error
    except OSError as error:
        where = error.filename or node.run_dir / "jobs"
        raise NodeBroken(f"{where}: {error.strerror or error}") from error
    except ValueError as error:
        raise NodeBroken(str(error)) from error
    return record


def _facts(node: JobNode, request: JobRequest, devices: NodeDevices) -> NodeFacts:
    indexes = {at for at in request.indexes if at < len(devices.devices)}
    return NodeFacts(
        constrained=node.slurm_conf is not None and constrains_devices(node.slurm_conf),
        guard_dir=_guard_dir(node) if any(devices.devices[at].guard for at in indexes) else "",
        held=node.slurm.held(request.job) if has_to_be_asked(request, devices) else None,
    )


def _guard_dir(node: JobNode) -> str:
    """Where the guard's files are. Empty: they cannot be written, and a share is guaranteed nothing."""
    from partage.agent.endpoints.guard_files import write_guard
    from partage.edges.slurm.root_directory import RootDirectory

    try:
        with RootDirectory(node.run_dir / "guard", make=True):
            return str(write_guard(node.run_dir / "guard"))
    except OSError:
        return ""


def _start(
    node: JobNode, request: JobRequest, devices: NodeDevices, facts: NodeFacts, records: JobRecords
) -> tuple[JobStart, list[JobRecord]]:
    """The start, and the other jobs on the node. A job that Slurm does not know any more is in nobody's way:
    its epilog did not run.
    """
    others = [one for one in records.all() if one.job != request.job]
    start = start_job(request, devices, facts, others)
    if not start.because_of or (living := node.slurm.jobs()) is None:
        return start, others
    for one in others:
        if one.job not in living:
            records.remove(one.job)
    others = [one for one in others if one.job in living]
    return start_job(request, devices, facts, others), others


def _with_daemons(
    node: JobNode, record: JobRecord, devices: NodeDevices, others: list[JobRecord]
) -> JobRecord:
    if unwanted := unwanted_daemons(record, devices):
        from partage.agent.slurm.daemons import stop_daemons

        if wrong := stop_daemons(node, unwanted):
            raise NodeBroken(wrong[0])
    specs = daemons_of(record, devices)
    if not specs:
        return record
    from partage.agent.slurm.daemons import start_daemons

    try:
        states = start_daemons(node, specs)
    except PartageError as error:
        raise NodeBroken(f"the MPS daemon does not start: {error}") from error
    for state in states:
        record = with_other_users(record, state, others)
    return record

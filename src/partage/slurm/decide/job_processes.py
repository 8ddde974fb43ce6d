"""Whose processes are on the GPUs of a Slurm node: job, user and share of each. Pure.

Which job a process belongs to is in its cgroup, which only root can change. What the job holds is in the
record that the prolog wrote, or else in what slurmctld says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from partage.model.cgroup import SlurmStep, parse_cgroup
from partage.model.gpu import Inventory
from partage.model.gpu_use import GpuProcess, JobProcess, ProcessKind
from partage.model.ids import ContainerId, DeviceUuid, JobCgroup
from partage.slurm.model import JobDevice, JobRecord, LiveJob

NOT_ITS_OWN = "not given to this job"
MPS_SERVER = "MPS server"


def job_processes(
    rows: Iterable[GpuProcess],
    inventory: Inventory,
    records: Iterable[JobRecord],
    live: Iterable[LiveJob] = (),
) -> tuple[JobProcess, ...]:
    """By GPU, device and pid."""
    recorded = {cgroup: record for record in records for cgroup in record.cgroups}
    said = {cgroup: job for job in live for cgroup in job.cgroups}
    processes = _found(rows, inventory, recorded, said)
    return tuple(sorted(processes, key=lambda process: (process.gpu, process.device, process.pid)))


def of_jobs(rows: Iterable[GpuProcess]) -> tuple[str, ...]:
    """Those that belong to a job, as a sentence names them. MPS servers outlive the job that needed them, and
    the epilog ends them."""
    steps = ((row, parse_cgroup(row.cgroups).job) for row in rows if row.kind is not ProcessKind.MPS_SERVER)
    return tuple(
        dict.fromkeys(f"{row.name or '?'} (pid {row.pid}) of job {step.job}" for row, step in steps if step)
    )


def unrecorded(rows: Iterable[GpuProcess], records: Iterable[JobRecord]) -> frozenset[str]:
    """Jobs with processes on GPUs of which there is no record."""
    known = {cgroup for record in records for cgroup in record.cgroups}
    steps = (parse_cgroup(row.cgroups).job for row in rows)
    return frozenset(step.job for step in steps if step is not None and _cgroup(step) not in known)


def _cgroup(step: SlurmStep) -> JobCgroup:
    return JobCgroup(ContainerId(step.job))


def _found(
    rows: Iterable[GpuProcess],
    inventory: Inventory,
    recorded: Mapping[JobCgroup, JobRecord],
    said: Mapping[JobCgroup, LiveJob],
) -> Iterator[JobProcess]:
    gpus = {gpu.uuid: gpu for gpu in inventory}
    for row in rows:
        gpu = gpus.get(row.gpu)
        if gpu is None:
            continue
        mig = next((device for device in gpu.mig_devices if device.uuid == row.device), None)
        step = parse_cgroup(row.cgroups).job or SlurmStep("")
        record, job = recorded.get(_cgroup(step)), said.get(_cgroup(step))
        known = [source for source in (record, job) if source is not None]
        yield JobProcess(
            gpu=gpu.index,
            device="" if mig is None else f"{gpu.index}:{mig.index}",
            pid=row.pid,
            name=row.name,
            used_bytes=row.used_bytes,
            job=str(known[0].job) if known else step.job,
            step=step.step,
            uid=row.uid if row.uid is not None or not known else known[0].uid,
            user=_user(row, record, job),
            share=_share(row, row.device or row.gpu, record, job),
        )


def _user(row: GpuProcess, record: JobRecord | None, job: LiveJob | None) -> str:
    """The job's owner, if the process is the owner's."""
    for source in (record, job):
        if source is not None and source.user and row.uid in (None, source.uid):
            return source.user
    return ""


def _share(row: GpuProcess, device: DeviceUuid, record: JobRecord | None, job: LiveJob | None) -> str:
    if row.kind is ProcessKind.MPS_SERVER:
        return MPS_SERVER
    if record is not None:
        own = next((job_device for job_device in record.devices if job_device.uuid == device), None)
        return NOT_ITS_OWN if own is None else _held(own)
    return "" if job is None else job.gres


def _held(device: JobDevice) -> str:
    if not device.units:
        return f"gpu:{device.type}"
    return f"{device.gres}:{device.units} of {device.units_of}"

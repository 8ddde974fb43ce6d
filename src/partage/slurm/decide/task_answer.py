"""What a job's task is told: the lines that the task prolog prints for slurmstepd. Pure.

``export NAME=value``, ``unset NAME`` and ``print text``, one in each line (Slurm's documents, "Prolog and
Epilog Guide"). A line break in a value would begin a line of somebody else's choice: no such value is
written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from partage.model.share import Guarantee, weakest
from partage.slurm.decide.job_start import parse_indexes
from partage.slurm.model import GresName, JobDevice, JobRecord, as_request
from partage.text import one_or_each
from partage.units import MIB
from partage.values import Frozen, grouped

FACTS = (
    "PARTAGE_RESOURCE",
    "PARTAGE_SHARES",
    "PARTAGE_GPUS",
    "PARTAGE_STRATEGY",
    "PARTAGE_REPLICAS",
    "PARTAGE_MEMORY_BYTES",
    "PARTAGE_TOTAL_BYTES",
    "PARTAGE_GUARANTEE",
)
"""As in a container."""

_MPS_PIPE, _MPS_LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_MPS_THREADS, _MPS_MEMORY = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_MPS = (_MPS_PIPE, _MPS_LOG, _MPS_MEMORY)
_INDEXES = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_PYTHONPATH = "PYTHONPATH"
_PER_TASK = re.compile(r"(?:^|,)gres[/:](mps|shard)[:=](\d{1,9})(?=,|$)", re.ASCII)
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", *_INDEXES, "SLURM_GPUS_ON_NODE")
"""Of which Slurm sets some for a task with GPUs. Users set them too, and sbatch takes them along: they say
only that it is worth asking."""
UNTOLD = (
    "partage: this job has GPUs that its prolog was not told of, so it does not run here; submit it again"
)
UNRECORDED = (
    "partage: this job has GPUs of this node, and its prolog has left no record of them, so it does not run "
    "here; submit it again"
)
UNKNOWN = "partage: Slurm does not say whether this job has GPUs of this node; it runs without any"
_LONGEST = 32 * 2**10


class TaskAnswer(Frozen):
    """exports: variables to set. unset: to remove. prints: for its output. code: not 0 ends the task."""

    exports: Mapping[str, str]
    unset: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    code: int = 0

    def text(self) -> str:
        """The lines. A value with a character that is not printable is left out, with its name."""
        lines = [f"print {text}" for text in self.prints if _is_plain(text)]
        lines += [f"unset {name}" for name in self.unset]
        lines += [f"export {name}={value}" for name, value in self.exports.items() if _is_plain(value)]
        return "".join(f"{line}\n" for line in lines)


def _is_plain(text: str) -> bool:
    """Whether it stays in its line. Letters of every language are printable; surrogates are not."""
    return text.isprintable() and len(text) <= _LONGEST


def task_answer(
    record: JobRecord, variables: Mapping[str, str], run_dir: str, *, limits_held: bool = False
) -> TaskAnswer:
    """What a task of the job is told. variables: its own. They choose among what the record has, no more.

    Variables of another job are removed: of that in which this one was submitted. run_dir: where the MPS
    daemons and the guard are. limits_held: the job's memory limits were set, and read back.
    """
    stale = _stale(variables, run_dir)
    if record.refused:
        text = f"partage: this job does not run here: {record.refused}; submit it again"
        return TaskAnswer({}, stale, (text,), 1)
    exports: dict[str, str] = {}
    prints: tuple[str, ...] = ()
    if variables.get("CUDA_VISIBLE_DEVICES"):
        devices = _of_task(record, variables)
        if not devices:
            return TaskAnswer({}, stale, (UNTOLD,), 1)
        held, prints = _of_one_daemon([_of_step(device, variables) for device in devices], variables)
        exports["CUDA_VISIBLE_DEVICES"] = ",".join(device.uuid for device in held)
        exports |= _mps_of(held, f"{run_dir}/mps")
        guarded = any(device.guard for device in held) and _guard(exports, variables, record.guard_dir)
        exports |= _facts(held, guarded=guarded, limits_held=limits_held)
    return TaskAnswer(exports, tuple(name for name in stale if name not in exports), prints)


def unreadable_answer(why: str, variables: Mapping[str, str], run_dir: str) -> TaskAnswer:
    """What a task is told whose job has a record that cannot be read. why: a sentence."""
    return TaskAnswer({}, _stale(variables, run_dir), (f"partage: this job does not run here: {why}",), 1)


def without_record(gpus: bool | None, variables: Mapping[str, str], run_dir: str) -> TaskAnswer:
    """What a task of a job without a record is told. gpus: whether the job has GPUs of this node, by Slurm's
    word; None: that is not known. Then nothing is ended, and no GPU is used beside Partage.
    """
    stale = _stale(variables, run_dir)
    if gpus:
        return TaskAnswer({}, stale, (UNRECORDED,), 1)
    if gpus is None:
        return TaskAnswer({"CUDA_VISIBLE_DEVICES": ""}, stale, (UNKNOWN,))
    return TaskAnswer({}, stale)


def _stale(variables: Mapping[str, str], run_dir: str) -> tuple[str, ...]:
    """What another job may have left. A pipe of the job's own, for a daemon of its own, stays."""
    ours = variables.get(_MPS_PIPE, "").startswith(f"{run_dir}/mps/")
    return (*FACTS, *_MPS) if ours else FACTS


def _of_task(record: JobRecord, variables: Mapping[str, str]) -> list[JobDevice]:
    """Slurm always sets as many CUDA_VISIBLE_DEVICES as the task has. Of which GPUs says SLURM_STEP_GPUS in a
    step, SLURM_JOB_GPUS in a batch script; the other one may be there, too, left from the job in which this
    one was submitted. Empty: they are not all in the record.

    With ``--exclusive`` Slurm tells the batch script all GPUs of the node, and slurmctld has given the job
    the shares alone (24.11.5): it has these.
    """
    count = variables["CUDA_VISIBLE_DEVICES"].count(",") + 1
    own = {device.index: device for device in record.devices}
    said = [indexes for name in _INDEXES if (indexes := _listed(variables.get(name, "")))]
    shares = all(device.units for device in record.devices)
    for indexes in said:
        if len(indexes) == count and (own.keys() >= set(indexes) or (shares and own.keys() < set(indexes))):
            return [own[index] for index in indexes if index in own]
    return list(record.devices) if not said and count == len(record.devices) else []


def _listed(text: str) -> tuple[int, ...]:
    """The indexes; none where it is no list of them."""
    try:
        return parse_indexes("", text)
    except ValueError:
        return ()


def _of_step(device: JobDevice, variables: Mapping[str, str]) -> JobDevice:
    """A step may have less of a share than its job, and with ``--tres-per-task`` each task has its own. The
    driver's limit is that of the job.
    """
    name = _MPS_THREADS if device.gres is GresName.MPS else "SLURM_SHARDS_ON_NODE"
    said = [variables.get(name, "")]
    if _is_step(variables.get("SLURM_STEP_ID", "")):  # the batch script has all of the job
        per_task = _PER_TASK.findall(variables.get("SLURM_TRES_PER_TASK", ""))
        said += [count for gres, count in per_task if gres == device.gres.value]
    counts = [int(word) for word in said if word.isascii() and word.isdecimal() and len(word) <= 9]
    units = min((count for count in counts if 0 < count < device.units), default=0)
    if not units:
        return device
    memory = device.total_bytes * units // device.units_of // MIB * MIB
    guarantee = Guarantee.NONE if device.limited else device.guarantee
    return replace(device, units=units, memory_bytes=memory, guarantee=guarantee)


def _is_step(step: str) -> bool:
    """Not the batch script, which has no number, or one of Slurm's own (slurm.h: above 0xfffffff0)."""
    return step.isascii() and step.isdecimal() and len(step) <= 10 and int(step) < 0xFFFFFFF0


def _of_one_daemon(
    held: Sequence[JobDevice], variables: Mapping[str, str]
) -> tuple[Sequence[JobDevice], tuple[str, ...]]:
    """What a task with these devices can use, and a sentence about the rest. Each GPU has an MPS daemon of
    its own, and a process has one: of ``mps`` of several GPUs a task has one GPU, the tasks of a node take
    turns.
    """
    if len(held) < 2 or any(device.gres is not GresName.MPS for device in held):
        return held, ()
    task = variables.get("SLURM_LOCALID", "")
    turn = int(task) if task.isascii() and task.isdecimal() and len(task) <= 9 else 0
    mine = held[turn % len(held)]
    rest = " and ".join(f"mps:{device.units} of GPU {device.name}" for device in held if device is not mine)
    text = f"this task has mps:{mine.units} of GPU {mine.name}, and not {rest}"
    return [mine], (f"partage: {text}: a process can use mps of one GPU; start one task for each GPU",)


def _mps_of(held: Sequence[JobDevice], mps_dir: str) -> dict[str, str]:
    """By ordinal: the task sees no other device."""
    share = next((device for device in held if device.gres is GresName.MPS), None)
    if share is None:
        return {}
    return {
        _MPS_PIPE: f"{mps_dir}/{share.uuid}/pipe",
        _MPS_LOG: f"{mps_dir}/{share.uuid}/log",
        _MPS_THREADS: str(share.units),
        _MPS_MEMORY: f"0={share.memory_bytes // MIB}M",
    }


def _guard(exports: dict[str, str], variables: Mapping[str, str], guard_dir: str) -> bool:
    """Whether the guard is on the task's PYTHONPATH: before what is there."""
    own = variables.get(_PYTHONPATH, "")
    if not guard_dir or not _is_plain(own):
        return False
    rest = [part for part in own.split(":") if part != guard_dir] if own else []
    exports[_PYTHONPATH] = ":".join((guard_dir, *rest))
    return True


def _facts(held: Sequence[JobDevice], *, guarded: bool, limits_held: bool) -> dict[str, str]:
    by_gpu = grouped((device.gpu, device) for device in held)
    strategies = {job_device.strategy.value for job_device in held}
    names = dict.fromkeys(
        job_device.gres.value if job_device.units else f"gpu:{job_device.type}" for job_device in held
    )
    guarantees = (
        Guarantee.NONE
        if (job_device.guard and not guarded) or (job_device.limited and not limits_held)
        else job_device.guarantee
        for job_device in held
    )
    facts = {
        "PARTAGE_RESOURCE": ",".join(names),
        "PARTAGE_SHARES": as_request(held),
        "PARTAGE_GPUS": ",".join(by_gpu),
        "PARTAGE_STRATEGY": strategies.pop() if len(strategies) == 1 else "mixed",
        "PARTAGE_REPLICAS": one_or_each([_replicas(same[0]) for same in by_gpu.values()]),
        "PARTAGE_MEMORY_BYTES": one_or_each(
            [sum(job_device.memory_bytes for job_device in same) for same in by_gpu.values()]
        ),
        "PARTAGE_GUARANTEE": weakest(guarantees).value,
    }
    if guarded:
        totals = [sum(job_device.total_bytes for job_device in same) for same in by_gpu.values()]
        facts["PARTAGE_TOTAL_BYTES"] = one_or_each(totals)
    return facts


def _replicas(device: JobDevice) -> int:
    """Room for so many shares of this size."""
    return device.units_of // device.units if device.units else 1

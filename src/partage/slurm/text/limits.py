"""The memory limits of a job, as ``limits/partage_limits.c`` reads them: a line that says whose cgroup is
limited, and ``UUID=BYTES`` of each GPU.
"""

from __future__ import annotations

from partage.model.driver_limit import DriverLimit
from partage.model.ids import GpuUuid
from partage.slurm.model import JobRecord

_OF_JOB, _OF_TASK_TOO = "1 job", "1 job task"
"""1: the version of the file. That of the job counts for all of its steps together; that of the task shows
programs how much there is, and only where limits nest is the one of the job kept beside it.
"""


def limits_text(record: JobRecord) -> str:
    """The file's content; empty: the job has no limits, or must not run."""
    limited = [device for device in record.devices if device.limited]
    if record.refused or not limited:
        return ""
    amounts: dict[GpuUuid, int] = {}
    for device in limited:
        amounts[device.gpu] = amounts.get(device.gpu, 0) + device.memory_bytes
    whose = _OF_TASK_TOO if all(device.limits_nest for device in limited) else _OF_JOB
    lines = (whose, *(str(DriverLimit(gpu, amount)) for gpu, amount in amounts.items()))
    return "".join(f"{line}\n" for line in lines)

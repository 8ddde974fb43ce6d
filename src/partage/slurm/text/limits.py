"""The memory limits of a job, as ``limits/partage_limits.c`` reads them: a line that says whose cgroup is
limited, and ``UUID=BYTES`` of each GPU.
"""

from __future__ import annotations

from partage.slurm.model import JobRecord

_OF_JOB, _OF_TASK_TOO = "1 job", "1 job task"
"""1: the version of the file. That of the job counts for all of its steps together; that of the task shows
programs how much there is, and only where limits nest is the one of the job kept beside it.
"""


def limits_text(record: JobRecord) -> str:
    """The file's content; empty: the job has no limits, or must not run."""
    if not record.limits:
        return ""
    whose = _OF_TASK_TOO if all(row.limits_nest for row in record.devices if row.limited) else _OF_JOB
    return "".join(f"{line}\n" for line in (whose, *record.limits))

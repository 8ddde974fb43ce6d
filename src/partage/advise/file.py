"""What ``partage advise`` is asked, as a file: the keys are those of its options."""

from __future__ import annotations

from partage.advise.decide.situation import MOST_TENANTS, Asked, Isolation, Preference, Scheduler, Workload
from partage.codec.fields import Dialect, Field, Notes
from partage.codec.yaml_document import read_document
from partage.edges.files.input_file import read_input
from partage.units import parse_gpu_memory

KEYS = (
    "gpu", "isolation", "tenants", "workload", "virtualised", "licensed", "scheduler", "memory", "prefer",
    "bursty", "driver",
)  # fmt: skip


def read_asked(name: str) -> Asked:
    """The file, standard input for ``-``. Raises InputError with all problems."""
    notes = Notes(read_document(read_input(name), name), name, Dialect())
    table = notes.top().table(KEYS)
    if table is None:
        notes.finish()
        return Asked()
    asked = Asked(
        gpu=table.value("gpu", _names, ()),
        isolation=table.value("isolation", lambda one: one.choice(Isolation), None),
        tenants=table.value("tenants", lambda one: one.integer(1, MOST_TENANTS), None),
        workload=table.value("workload", lambda one: one.choice(Workload), None),
        virtualised=table.value("virtualised", Field.boolean, None),
        licensed=table.value("licensed", Field.boolean, None),
        scheduler=table.value("scheduler", lambda one: one.choice(Scheduler), None),
        memory=table.value("memory", _amounts, ()),
        prefer=table.value("prefer", lambda one: one.choice(Preference), None),
        bursty=table.value("bursty", Field.boolean, None),
        driver=table.value("driver", Field.some_text, None),
    )
    notes.finish()
    return asked


def _names(found: Field) -> tuple[str, ...]:
    return tuple(text for one in found.one_or_many() or () if (text := one.some_text()) is not None)


def _amounts(found: Field) -> tuple[int, ...]:
    each = (one.parsed(parse_gpu_memory, "8Gi") for one in found.one_or_many() or ())
    return tuple(amount for amount in each if amount is not None)

"""What ``partage advise`` is asked, as a file: the keys are those of its options."""

from __future__ import annotations

from partage.advise.decide.situation import MOST_TENANTS, Asked
from partage.codec.fields import Dialect, Field, Notes
from partage.codec.reader import Reader, number, one_or_many, parsed
from partage.codec.yaml_document import read_document
from partage.edges.files.input_file import read_input
from partage.units import parse_gpu_memory

ASKED = Reader(
    Asked,
    reads={
        "gpu": one_or_many(Field.some_text),
        "tenants": number(1, MOST_TENANTS),
        "memory": one_or_many(parsed(parse_gpu_memory, "8Gi")),
        "driver": Field.some_text,
    },
)


def read_asked(name: str) -> Asked:
    """The file, standard input for ``-``. Raises InputError with all problems."""
    notes = Notes(read_document(read_input(name), name), name, Dialect())
    asked = ASKED.read(notes.top())
    notes.finish()
    return asked or Asked()

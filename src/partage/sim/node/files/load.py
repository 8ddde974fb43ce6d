"""A machine from what ``--machine`` says: a name or a file."""

from __future__ import annotations

from pathlib import Path

from partage.errors import InputError, Problem
from partage.sim.node.machine import Machine
from partage.sim.node.machine_names import is_name, parse_machine


def load_machine(text: str) -> Machine:
    """The machine of that name, or of that file. Raises InputError, Unsatisfiable."""
    if is_name(text):
        return parse_machine(text)
    # Here and not above: a machine by name needs no YAML, which takes 30 ms to import.
    from partage.codec.yaml_document import LIMIT_BYTES
    from partage.sim.node.files.machine_file import read_machine

    try:
        with Path(text).open("rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError([Problem(text, "", "error", f"cannot be read: {reason}")]) from error
    return read_machine(data, text)

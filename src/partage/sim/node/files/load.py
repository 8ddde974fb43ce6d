"""A machine from what ``--machine`` says: a name or a file."""

from __future__ import annotations

from partage.sim.node.machine import Machine
from partage.sim.node.machine_names import is_name, parse_machine


def load_machine(text: str) -> Machine:
    """The machine of that name, or of that file. Raises InputError, Unsatisfiable."""
    if is_name(text):
        return parse_machine(text)
    # Here and not above: a machine by name needs no YAML, which takes 30 ms to import.
    from partage.edges.files.input_file import read_input
    from partage.sim.node.files.machine_file import read_machine

    return read_machine(read_input(text), text)

"""Lists of machines on the command line: ``125*8xh100-sxm5-80gb,4*4xl40s``, and files of machines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from partage.answers.common_node import need_driver
from partage.errors import InputError
from partage.model.gpu import Inventory
from partage.sim.node.files.load import load_machine
from partage.sim.node.machine import DRIVER, simulated_inventory
from partage.sim.node.machine import MOST_GPUS as MOST_ON_A_NODE
from partage.sim.node.machine_names import is_file, is_name, named_gpus

MOST_GPUS = 20_000
"""In all machines together."""
_REPEATED = re.compile(r"(\d{1,6})\s*\*\s*(\S.*)", re.ASCII)


def read_machines(machines: Sequence[str]) -> Iterator[tuple[str, int, Inventory]]:
    """What is named, how often, and what it is; equal names are one entry. Raises InputError for more than
    ``MOST_GPUS``, and what makes a machine impossible.
    """
    counts = Counter[str]()
    for text in machines:
        for name, count in _names(text):
            counts[name] += count
    left = MOST_GPUS
    for name, count in counts.items():
        inventory = need_driver(_inventory(name))
        left -= count * max(len(inventory.gpus), 1)
        if left < 0:
            raise InputError(f"the machines have more than {MOST_GPUS} GPUs")
        yield name, count, inventory


def _names(text: str) -> Iterator[tuple[str, int]]:
    """``125*8xh100-sxm5-80gb`` is as many machines; commas join several, where no file is called so."""
    parts = [text] if "," not in text or is_file(Path(text)) else text.split(",")
    for part in parts:
        repeated = _REPEATED.fullmatch(part.strip())
        yield (repeated[2], int(repeated[1])) if repeated else (part.strip(), 1)


def _inventory(name: str) -> Inventory:
    """The node of that name or file. Under a name there may be more GPUs than a simulation takes."""
    if not is_name(name):
        return load_machine(name).inventory
    gpus = named_gpus(name, MOST_GPUS)
    if len(gpus) > MOST_ON_A_NODE:  # no node, but a way to write many GPUs: their links mean nothing
        return Inventory(DRIVER, gpus, simulated=True)
    return simulated_inventory(gpus)

"""NVIDIA's GPU Feature Discovery, label by label: every recorded case goes through our policy and plan."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.gpu import Inventory
from partage.model.node_labels import DOMAIN
from partage.plan.labels import node_labels
from partage.plan.offer.desired import resolve
from partage.sim.node.files.machine_file import read_machine

_FOLDER = Path(__file__).parent / "labels"
_CLIQUE = {"h100": "00000000-0000-0000-0000-000000000001.0", "a100": None}


@cache
def _recording(machine: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_FOLDER / f"{machine}.json").read_text())
    return found


def _node(machine: str) -> Inventory:
    """The recorded machine, with what it lacks: its firmware's name and its fabric."""
    inventory = read_machine(json.dumps(_recording(machine)["machine"]).encode(), machine).inventory
    gpus = tuple(replace(gpu, clique=_CLIQUE[machine]) for gpu in inventory.gpus)
    return replace(inventory, gpus=gpus, machine_type="vm")


_CASES = [
    pytest.param(file.stem, name, id=f"{file.stem}-{name}")
    for file in sorted(_FOLDER.glob("*.json"))
    for name in _recording(file.stem)["labels"]
]


@pytest.mark.parametrize(("machine", "name"), _CASES)
def test_labels_are_those_of_nvidia(machine: str, name: str):
    recording = _recording(machine)
    config = json.dumps(recording["configs"][name]).encode()
    policy = parse_policy(config, "config.yaml").policy
    inventory = _node(machine)
    desired = resolve(policy, inventory, geometry_of)
    labels = node_labels(inventory, desired.offer, policy.options, geometry_of)
    ours = {key: value for key, value in labels.items() if not key.startswith(f"{DOMAIN}/")}
    assert ours == recording["labels"][name]

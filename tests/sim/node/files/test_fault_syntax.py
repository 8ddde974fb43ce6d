"""Faults as machine files and stories write them."""

import pytest

from partage.codec.fields import Dialect, Notes
from partage.codec.yaml_document import Value, YamlDocument
from partage.errors import InputError
from partage.model.gpu import RecoveryAction
from partage.model.gpu_use import UseKind
from partage.model.ids import ContainerId, PodUid
from partage.sim.node.faults import Fault, HideProcesses, LastClientLeaves, Occupy, SetCondition, Vacate
from partage.sim.node.files.fault_syntax import read_fault
from partage.units import GIB


def fault_of(words: Value) -> Fault:
    """Raises InputError."""
    notes = Notes(YamlDocument(words, {}), "story.yaml", Dialect())
    fault = read_fault(notes.top())
    notes.finish()
    assert fault is not None
    return fault


UID, CID = PodUid("0b5a1e0c-6f1e-4d3c-9b42-5c2d7f8e9a10"), ContainerId("3f" * 32)


@pytest.mark.parametrize("action", RecoveryAction)
def test_every_recovery_action_has_its_word(action):
    assert fault_of({"gpu": 1, "recovery": action.word}) == SetCondition(1, recovery=action)


def test_a_process_is_told_in_words():
    words: dict[str, Value] = {
        "gpu": 1,
        "used-by": "train",
        "pid": 4711,
        "memory": "8Gi",
        "container": CID,
        "pod": UID,
        "mps": True,
    }
    assert fault_of(words) == Occupy(
        1, "train", pid=4711, memory_bytes=8 * GIB, container=CID, pod=UID, mps=True
    )
    job: dict[str, Value] = {"gpu": 1, "used-by": "train", "pid": 4711, "job": 17}
    assert fault_of(job) == Occupy(1, "train", pid=4711, job="17")
    with pytest.raises(InputError, match="a process of a Slurm job is in no container"):
        fault_of({**job, "container": CID})
    assert fault_of({"processes-hidden": False}) == HideProcesses(on=False)
    assert fault_of({"gpu": 2, "last-client-leaves": True}) == LastClientLeaves(2)


@pytest.mark.parametrize(
    ("key", "value"), [("container", "main"), ("pod", "train-0"), ("memory", "much"), ("mps", 1)]
)
def test_a_process_that_cannot_be_is_refused(key, value):
    with pytest.raises(InputError, match=rf"{key}: has to be|{key}: .*amount"):
        fault_of({"gpu": 0, "used-by": "x", "pid": 2, key: value})


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ({"gpu": 1, "used-by": "train.py"}, Occupy(1, "train.py")),
        (
            {"gpu": 1, "used-by": "dcgm", "kind": "monitor", "gi": 2, "ci": 0, "pid": 7},
            Occupy(1, "dcgm", UseKind.MONITOR, 2, 0, 7),
        ),
        ({"gpu": 1, "left-by": "dcgm"}, Vacate(1, "dcgm")),
        ({"gpu": 1, "left-by": True}, Vacate(1)),
    ],
)
def test_uses_can_be_written(words, fault):
    assert fault_of(words) == fault


@pytest.mark.parametrize(
    "words",
    [
        {"used-by": "x"},
        {"gpu": 1, "used-by": ""},
        {"gpu": 1, "used-by": "x", "ci": 0},
        {"gpu": 1, "used-by": "x", "kind": "pod"},
        {"gpu": 1, "left-by": 7},
        {"call": "perform", "fail": "no-room", "done": "yes"},
    ],
)
def test_uses_that_make_no_sense_are_refused(words):
    with pytest.raises(InputError, match=r"\w"):
        fault_of(words)

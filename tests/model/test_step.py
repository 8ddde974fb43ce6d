"""Steps on one GPU beside MIG: their text, how far they reach, how they are undone."""

import pytest

from partage.model.gpu import ComputeMode
from partage.model.ids import ContainerId, GpuUuid
from partage.model.step import (
    BlastRadius,
    EndProcess,
    SetComputeMode,
    SetMigMode,
    SetTimeSlice,
    Step,
    blast_radius,
    gpus_of,
    reverse,
    undo,
)
from partage.model.strategy import Interval

GPU_0 = GpuUuid("GPU-0")

MODE = SetComputeMode(GPU_0, ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT)
SLICE = SetTimeSlice(GPU_0, Interval.LONG, Interval.SHORT)
END = EndProcess(GPU_0, 4711, 99, ContainerId("3f" * 32))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (MODE, "set the compute mode to exclusive-process"),
        (SLICE, "set the time slice to long"),
        (END, "end process 4711 of container 3f3f3f3f3f3f"),
    ],
)
def test_a_step_is_a_sentence_without_the_gpu(step, says):
    assert str(step) == says
    assert gpus_of(step) == ("GPU-0",)
    assert blast_radius(step) == BlastRadius()


def test_a_setting_is_taken_back_by_the_one_before():
    assert reverse(MODE) == SetComputeMode(GPU_0, ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS)
    assert reverse(SLICE) == SetTimeSlice(GPU_0, Interval.SHORT, Interval.LONG)
    for step in (MODE, SLICE):
        back = reverse(step)
        assert back is not None
        assert reverse(back) == step


def test_what_was_ended_is_not_begun_again_and_the_rest_is_taken_back_last_first():
    done: list[tuple[Step, None]] = [
        (SetMigMode(GpuUuid("GPU-1"), enabled=True), None),
        (MODE, None),
        (END, None),
        (SLICE, None),
    ]
    assert undo(done) == (reverse(SLICE), reverse(MODE), SetMigMode(GpuUuid("GPU-1"), enabled=False))

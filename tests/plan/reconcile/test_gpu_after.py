"""A GPU as it will be after steps of several GPUs."""

from __future__ import annotations

from msgspec.structs import replace

from partage.model.geometry import Placement
from partage.model.gpu import ComputeMode, MigMode
from partage.model.mps import ClientLimits, DaemonPhase, DaemonSpec, DaemonState
from partage.model.step import (
    CreateCompute,
    DestroyCompute,
    Reset,
    SetComputeMode,
    SetMigMode,
    Step,
    StopDaemon,
)
from partage.model.strategy import Interval
from partage.plan.offer.settings import NO_SETTINGS, GpuSettings
from partage.plan.reconcile.gpu_after import gpu_after, steps_after
from partage.plan.reconcile.settings_steps import OriginalSettings
from tests.plan.offers import gpu
from tests.plan.reconcile.mig_card import geometry

H100 = geometry("h100-sxm5-80gb")
ALONE = ComputeMode.EXCLUSIVE_PROCESS
GPU, OTHER = replace(gpu(0, migs=2), compute_mode=ALONE), gpu(1)
FIRST, SECOND = GPU.mig_devices


def test_steps_of_another_gpu_change_nothing() -> None:
    steps: list[Step] = [
        Reset((OTHER.uuid,), ()),
        SetMigMode(OTHER.uuid, False),
        SetComputeMode(OTHER.uuid, ALONE, ALONE),
    ]
    assert gpu_after(GPU, steps, H100) == GPU


def test_a_reset_takes_instances_and_compute_mode_and_another_mode_too() -> None:
    reset = replace(GPU, mig_devices=(), compute_mode=ComputeMode.DEFAULT)
    assert gpu_after(GPU, [Reset((OTHER.uuid, GPU.uuid), ())], H100) == reset
    off = replace(reset, mig_mode=MigMode(current=False, pending=False))
    assert gpu_after(GPU, [SetMigMode(GPU.uuid, False)], H100) == off


def test_only_the_device_that_is_destroyed_goes_and_a_new_one_takes_its_index() -> None:
    gone = DestroyCompute(GPU.uuid, "1g.10gb", Placement(0, 1), "1g.10gb", uuid=FIRST.uuid)
    assert gpu_after(GPU, [gone], H100).mig_devices == (SECOND,)
    new = CreateCompute(GPU.uuid, "3g.40gb", Placement(4, 4), "1c.3g.40gb")
    first, second, third = gpu_after(GPU, [gone, new, new], H100).mig_devices
    assert (first.index, second, third.index) == (0, SECOND, 2)
    assert first.gi_id == third.gi_id != SECOND.gi_id, "both are in one GPU instance"
    assert (first.ci_id, third.ci_id) == (0, 1)


SPEC = DaemonSpec(OTHER.uuid, OTHER.uuid, 2**30, 25)
MPS = GpuSettings((SPEC,), interval=None)
DAEMON = DaemonState(
    OTHER.uuid, OTHER.uuid, DaemonPhase.SERVING, 7, (), ClientLimits(2**30, 25), multi_user=True
)


def test_a_daemon_that_is_stopped_before_is_not_there_and_another_one_is() -> None:
    known = {"daemons": [DAEMON], "interval": None, "original": OriginalSettings()}
    stop = StopDaemon(OTHER.uuid, OTHER.uuid)
    assert steps_after(OTHER, [], H100, MPS, **known) == ()  # type: ignore[arg-type]
    (start,) = steps_after(OTHER, [stop], H100, MPS, **known)  # type: ignore[arg-type]
    assert "start the MPS daemon" in str(start)
    assert steps_after(OTHER, [stop], H100, NO_SETTINGS, **known) == ()  # type: ignore[arg-type]


def test_a_time_slice_is_lost_with_a_reset_of_this_gpu_alone() -> None:
    want = GpuSettings(interval=Interval.LONG)

    def slices(*first: Reset | SetMigMode | SetComputeMode) -> tuple[object, ...]:
        return steps_after(
            OTHER, first, H100, want, daemons=(), interval=Interval.LONG, original=OriginalSettings()
        )

    assert slices() == slices(Reset((GPU.uuid,), ())) == slices(SetMigMode(GPU.uuid, False)) == ()
    assert slices(SetComputeMode(OTHER.uuid, ALONE, ComputeMode.DEFAULT)) == ()
    assert len(slices(Reset((OTHER.uuid,), ()))) == len(slices(SetMigMode(OTHER.uuid, False))) == 1

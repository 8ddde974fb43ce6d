"""What would have to be done to a node, and what to know before relying on it."""

from dataclasses import replace

import pytest

from partage.model.gpu import ComputeMode
from partage.model.ids import ResourceName
from partage.model.policy import (
    DeviceListStrategy,
    Exclusive,
    Interval,
    Mps,
    Options,
    Policy,
    Strategy,
    TimeSlicing,
)
from partage.plan.offer.assign import Assignment, Target
from partage.plan.offer.caveats import caveats
from partage.plan.reconcile.changes import Act, changes
from tests.plan.offers import gpu, node

NAME = ResourceName("nvidia.com/gpu")


def _assignment(*targets, pending=None):
    strategies = {target.gpu.uuid: target.strategy for target in targets}
    return Assignment(targets, strategies, pending or {})


def _changes(*targets, pending=None):
    return changes(_assignment(*targets, pending=pending), node(gpu(0), gpu(1)))


def _target(of, sharing, strategy=Strategy.MPS):
    return Target(of, None, sharing, strategy, NAME)


def test_exclusive_gpus_need_nothing():
    assert _changes(_target(gpu(0), Exclusive(), Strategy.EXCLUSIVE)) == ()


def test_mps_needs_its_compute_mode_and_a_daemon():
    found = _changes(_target(gpu(0), Mps(4)))
    assert [change.act for change in found] == [Act.COMPUTE_MODE, Act.MPS_DAEMON]


def test_a_daemon_that_speaks_another_version_is_told_apart():
    found = _changes(_target(gpu(0), Mps(4, protocol=3)))
    assert found[-1].detail == "an MPS control daemon for 4 clients, protocol 3"


@pytest.mark.parametrize(
    ("mode", "wanted"), [(ComputeMode.EXCLUSIVE_PROCESS, True), (ComputeMode.DEFAULT, False)]
)
def test_a_compute_mode_that_is_right_or_not_asked_for_stays(mode, wanted):
    target = _target(replace(gpu(0), compute_mode=mode), Mps(4, exclusive_process=wanted))
    assert [change.act for change in _changes(target)] == [Act.MPS_DAEMON]


@pytest.mark.parametrize(("interval", "acts"), [(None, []), (Interval.LONG, [Act.TIME_SLICE])])
def test_a_time_slice_is_set_where_one_is_asked_for(interval, acts):
    target = _target(gpu(0), TimeSlicing(4, interval), Strategy.TIME_SLICING)
    assert [change.act for change in _changes(target)] == acts


def test_what_is_the_same_for_several_devices_of_a_gpu_is_done_once():
    target = _target(gpu(1), TimeSlicing(4, Interval.SHORT), Strategy.MIG)
    first = _target(gpu(0), Mps(2))
    found = _changes(target, target, first, pending={gpu(1).uuid: "a layout has to be made"})
    assert [(change.gpu.index, change.act) for change in found] == [
        (0, Act.COMPUTE_MODE),
        (0, Act.MPS_DAEMON),
        (1, Act.MIG_LAYOUT),
        (1, Act.TIME_SLICE),
    ]


# --- caveats ---

CDI = Policy(options=Options(device_list=(DeviceListStrategy.CDI_CRI,)))


@pytest.mark.parametrize(
    ("policy", "open_to_env", "ctk_found", "said"),
    [
        (Policy(), False, True, []),
        (Policy(), True, True, [("Pods of this node can set", True)]),
        (Policy(), None, True, [("Whether pods of this node", False)]),
        (CDI, None, True, []),
        (CDI, False, False, [("The CDI specification will be incomplete", True)]),
    ],
)
def test_caveats_say_what_weakens_a_plan_and_whether_it_is_certain(policy, open_to_env, ctk_found, said):
    found = caveats(policy, node(gpu(0), open_to_env=open_to_env), {}, ctk_found=ctk_found)
    assert len(found) == len(said)
    for caveat, (beginning, certain) in zip(found, said, strict=True):
        assert caveat.sentence.startswith(beginning)
        assert caveat.certain is certain

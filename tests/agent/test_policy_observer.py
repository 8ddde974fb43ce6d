"""Which policy holds, and when the file is read again."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.agent.observers.policy import UNSETTLED_S, PolicyFile, PolicyObserver
from partage.agent.options import AgentOptions, Intervals
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.state import SavedPolicy
from partage.errors import InputError, Unsatisfiable
from partage.model.gpu import Inventory, NoDriver
from partage.model.policy import MigStrategy
from partage.plan.reconcile.known_node import with_observed
from partage.plan.report import PolicyState
from partage.sim.node.files.load import load_machine
from partage.sim.node.hardware import SimulatedHardware
from tests.kubelet_script import until

NOBODY = with_observed(None, Inventory(NoDriver("driver-missing", "no driver")))
GOOD = "version: partage/v1\ngpus:\n  - {select: all, time-slicing: {replicas: 4}}\n"
WRONG = "version: partage/v1\ngpus: 7\n"
NOT_HERE = "version: partage/v1\ngpus:\n  - {select: {index: [3]}, time-slicing: {replicas: 4}}\n"
LONG_AGO = time.time() - 10 * UNSETTLED_S


def node_of(machine: str = "2xa100-sxm4-40gb"):
    return with_observed(None, asyncio.run(SimulatedHardware(load_machine(machine)).observe()))


def policies(path: Path | None, fallback: SavedPolicy | None = None) -> PolicyObserver:
    settings = AgentOptions(policy=path, intervals=Intervals(policy_s=0.01))
    return PolicyObserver(settings, geometry_of, lambda: None, fallback)


def state(one: PolicyObserver) -> PolicyState:
    return one.report.state


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def write(path: Path, text: str, mtime: float = LONG_AGO) -> None:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (mtime, mtime))


# --- noticing a change -------------------------------------------------------------------------


def test_a_file_at_rest_is_not_read_again(path: Path) -> None:
    write(path, GOOD)
    file = PolicyFile(path, None, {})
    assert [file.changed() for _ in range(4)] == [True, False, False, False]


def test_a_file_that_was_just_written_is_read_again_until_it_has_settled(path: Path) -> None:
    write(path, GOOD, time.time())
    file = PolicyFile(path, None, {})
    assert [file.changed() for _ in range(3)] == [True, True, True]
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert [file.changed() for _ in range(3)] == [True, False, False]


def test_a_new_file_of_the_same_size_and_time_is_noticed(path: Path) -> None:
    write(path, GOOD)
    file = PolicyFile(path, None, {})
    file.changed()
    beside = path.with_name("beside")
    write(beside, GOOD.replace("4", "5"))
    beside.replace(path)
    assert file.changed()


def test_a_file_that_goes_and_comes_is_noticed_both_times(path: Path) -> None:
    write(path, GOOD)
    file = PolicyFile(path, None, {})
    file.changed()
    path.unlink()
    assert [file.changed(), file.changed()] == [True, False]
    write(path, GOOD)
    assert file.changed()


def test_a_directory_or_a_pipe_in_the_files_place_is_refused(path: Path) -> None:
    write(path, GOOD)
    file = PolicyFile(path, None, {})
    file.changed()
    path.unlink()
    path.mkdir()
    assert file.changed()
    with pytest.raises(InputError, match="directory"):
        file.read()
    path.rmdir()
    os.mkfifo(path)
    assert file.changed()
    with pytest.raises(InputError, match="not a regular file"):
        file.read()
    path.unlink()
    write(path, GOOD)
    assert file.changed()


# --- which one holds -----------------------------------------------------------------------------


def test_without_a_file_every_gpu_is_exclusive() -> None:
    one = policies(None)
    one.start()
    one.resolve_on(node_of())
    assert state(one) is PolicyState.BUILT_IN
    assert one.desired is not None
    assert one.saved is None


def test_nvidias_variables_without_a_file_are_honoured() -> None:
    environ = {"MIG_STRATEGY": "single", "PASS_DEVICE_SPECS": "true", "PATH": "/bin"}
    one = PolicyObserver(AgentOptions(environ=environ), geometry_of, lambda: None)
    one.start()
    one.resolve_on(node_of())
    assert one.desired is not None
    options = one.desired.policy.options
    assert (options.mig_strategy, options.device_specs) == (MigStrategy.SINGLE, True)
    assert (state(one), one.report.source, one.saved) == (PolicyState.BUILT_IN, "environment", None)


def test_a_wrong_variable_without_a_file_ends_the_start() -> None:
    one = PolicyObserver(AgentOptions(environ={"MIG_STRATEGY": "sometimes"}), geometry_of, lambda: None)
    with pytest.raises(InputError, match="MIG_STRATEGY"):
        one.start()


def test_a_configuration_without_a_file_is_an_error() -> None:
    one = PolicyObserver(AgentOptions(config="all-balanced"), geometry_of, lambda: None)
    with pytest.raises(InputError, match="--config"):
        one.start()


def test_a_wrong_file_at_the_start_is_an_error_where_nothing_stands_in(path: Path) -> None:
    write(path, WRONG)
    with pytest.raises(InputError):
        policies(path).start()


def test_a_file_that_does_not_fit_the_node_is_an_error_at_the_start(path: Path) -> None:
    write(path, NOT_HERE)
    one = policies(path)
    one.start()
    one.resolve_on(node_of())
    with pytest.raises(Unsatisfiable, match="no GPU 3"):
        one.check_in_force()


@pytest.mark.parametrize("text", [WRONG, NOT_HERE])
def test_the_last_good_policy_stands_in(path: Path, text: str) -> None:
    write(path, text)
    one = policies(path, SavedPolicy(GOOD, "old.yaml"))
    one.start()
    one.resolve_on(node_of())
    one.check_in_force()
    assert state(one) is PolicyState.LAST_GOOD
    assert one.report.problems
    assert one.saved == SavedPolicy(GOOD, "old.yaml")


def test_a_last_good_policy_that_is_not_understood_stands_in_for_nothing(path: Path) -> None:
    write(path, WRONG)
    with pytest.raises(InputError, match="gpus"):
        policies(path, SavedPolicy("nonsense", "old.yaml")).start()


def test_a_last_good_policy_that_does_not_fit_leaves_the_files_error(path: Path) -> None:
    write(path, "version: partage/v1\ngpus:\n  - {select: all, mps: {replicas: 49}}\n")
    one = policies(path, SavedPolicy(NOT_HERE, "old.yaml"))
    one.start()
    one.resolve_on(node_of())
    with pytest.raises(Unsatisfiable):
        one.check_in_force()


def test_nothing_is_judged_without_a_driver(path: Path) -> None:
    write(path, NOT_HERE)
    one = policies(path)
    one.start()
    one.resolve_on(NOBODY)
    one.check_in_force()
    assert state(one) is PolicyState.NONE
    one.resolve_on(node_of())
    assert state(one) is PolicyState.NONE
    assert one.report.problems


def test_a_policy_that_was_refused_for_a_missing_gpu_holds_when_the_gpu_comes(path: Path) -> None:
    write(path, NOT_HERE)
    one = policies(path, SavedPolicy(GOOD, "old.yaml"))
    one.start()
    one.resolve_on(node_of())
    assert state(one) is PolicyState.LAST_GOOD
    one.resolve_on(node_of("4xa100-sxm4-40gb"))
    assert state(one) is PolicyState.FILE
    assert one.report.problems == ()


def test_a_node_that_no_longer_fits_keeps_what_was_wanted(path: Path) -> None:
    write(path, NOT_HERE)
    one = policies(path)
    one.start()
    whole = node_of("4xa100-sxm4-40gb")
    one.resolve_on(whole)
    wanted = one.desired
    one.resolve_on(replace(whole, inventory=replace(whole.inventory, gpus=whole.inventory.gpus[:2])))
    assert one.desired is wanted
    assert one.report.problems
    one.resolve_on(whole)
    assert one.report.problems == ()


async def test_a_reload_counts_once_and_a_repaired_file_holds_again(path: Path) -> None:
    write(path, GOOD)
    one = policies(path)
    one.start()
    node = await asyncio.to_thread(node_of)
    one.resolve_on(node)
    watching = asyncio.create_task(one.watch())
    try:
        write(path, WRONG, time.time())
        await until(lambda: one.problems)
        assert state(one) is PolicyState.LAST_GOOD
        await asyncio.sleep(0.05)
        assert one.reloads_failed == 1
        write(path, GOOD, time.time())

        def repaired() -> bool:
            one.resolve_on(node)
            return not one.problems

        await until(repaired)
        assert state(one) is PolicyState.FILE
    finally:
        watching.cancel()

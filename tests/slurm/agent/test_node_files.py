"""The files of a Slurm node: who writes them, and when slurmd has read them."""

import os
import time

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import InputError
from partage.plan.offer.desired import resolve
from partage.sim.node.files.load import load_machine
from partage.slurm.agent.node_files import NodeFiles, check_own, wanted_of
from partage.slurm.agent.options import SlurmOptions
from partage.slurm.decide.node_files import Files, Writes
from partage.slurm.host.agent_state import read_agent_state, write_agent_state
from partage.slurm.model import LiveNode, SlurmVersion

WHOLE, MPS = "version: partage/v1\n", "version: partage/v1\ngpus: [{select: all, mps: {replicas: 4}}]\n"


def _wanted(options, policy=WHOLE):
    inventory = load_machine("2xh100-sxm5-80gb").inventory
    desired = resolve(parse_policy(policy, "p.yaml").policy, inventory, geometry_of)
    return wanted_of(desired, options)


@pytest.fixture
def options(tmp_path):
    d = tmp_path / "conf"
    return SlurmOptions("g1", SlurmVersion(24, 11, 5), directory=d, devices=tmp_path / "p" / "devices.json")


def _node(started_s):
    return LiveNode("g1", frozenset({"IDLE"}), started_s=None if started_s is None else int(started_s))


def test_slurmd_has_read_what_was_there_when_it_started(options, tmp_path):
    files, wanted, now = NodeFiles.of(options, tmp_path / "s"), _wanted(options), time.time()
    assert files.compare(wanted, _node(now)) is Files.WRONG
    files.write(wanted)
    assert files.compare(wanted, _node(now)) is Files.RIGHT
    assert not files.loaded(wanted, _node(now - 5))
    assert not files.loaded(wanted, _node(None))
    assert not files.loaded(wanted, _node(int(files.state.at_s)))  # in the same second: who knows
    assert 0 <= files.until_readable_s() <= 1
    assert files.loaded(wanted, _node(now + 1.5))


def test_an_agent_that_is_killed_after_writing_knows_that_slurmd_has_still_to_read(options, tmp_path):
    wanted, now = _wanted(options), time.time()
    NodeFiles.of(options, tmp_path / "s").write(wanted)
    for name in options.directory.iterdir():
        os.utime(name, (1, 1))
    assert not NodeFiles.of(options, tmp_path / "s").loaded(wanted, _node(now - 5))


def test_files_that_are_only_touched_have_still_been_read(options, tmp_path):
    files, wanted, now = NodeFiles.of(options, tmp_path / "s"), _wanted(options), time.time()
    files.write(wanted)
    assert files.loaded(wanted, _node(now + 1.5))
    os.utime(options.directory / "gres.conf", (now + 99, now + 99))
    assert NodeFiles.of(options, tmp_path / "s").loaded(wanted, _node(now + 1.5))


def test_without_a_memory_the_time_of_the_files_counts(options, tmp_path):
    wanted = _wanted(options)
    NodeFiles.of(options, tmp_path / "s").write(wanted)
    os.utime(options.directory / "gres.conf", (1000, 1000))
    assert not NodeFiles.of(options, tmp_path / "other").loaded(wanted, _node(1000))
    assert NodeFiles.of(options, tmp_path / "other").loaded(wanted, _node(1001))


def test_a_time_to_come_is_taken_as_now(options, tmp_path):
    """The clock was ahead when the files were written: an RTC in local time. The next start counts."""
    wanted, now = _wanted(options), time.time()
    NodeFiles.of(options, tmp_path / "s").write(wanted)
    os.utime(options.directory / "gres.conf", (now + 7200, now + 7200))
    write_agent_state(tmp_path / "s", replace(read_agent_state(tmp_path / "s"), at_s=now + 7200))
    for state in ("s", "without a memory"):
        files = NodeFiles.of(options, tmp_path / state)
        assert files.until_readable_s() <= 2
        assert not files.loaded(wanted, _node(now - 5))
        assert files.state.at_s <= time.time()
        assert files.until_readable_s() <= 2
        assert files.loaded(wanted, _node(time.time() + 1))


def test_a_start_to_come_says_nothing(options, tmp_path):
    """slurmd, too, may have been started by a clock that was ahead."""
    files, wanted = NodeFiles.of(options, tmp_path / "s"), _wanted(options)
    files.write(wanted)
    assert not files.loaded(wanted, _node(time.time() + 7200))


def test_shared_files_have_to_be_read_by_slurmctld_too(options, tmp_path):
    """Whoever has it read them. Files that were found are not told again."""
    shared = replace(options, writes=Writes.SHARED, settings="CPUs=64")
    wanted, now = _wanted(shared), int(time.time())
    files = NodeFiles.of(shared, tmp_path / "s")
    files.write(wanted)
    assert files.loaded(wanted, _node(now + 2))
    assert not files.told(None)
    assert not files.told(now - 60)
    assert not NodeFiles.of(shared, tmp_path / "s").told(now)
    assert not files.told(now + 7200)
    assert files.told(now + 2)
    assert NodeFiles.of(shared, tmp_path / "s").told(None)
    assert not files.state.reconfigured
    files.write(_wanted(shared, MPS))
    assert not files.told(now - 60)
    files.reconfigured()
    assert files.told(None)
    assert NodeFiles.of(shared, tmp_path / "s").state.reconfigured
    found = NodeFiles.of(shared, tmp_path / "without a memory")
    found.loaded(_wanted(shared, MPS), _node(now))
    assert found.told(None)
    assert not found.state.reconfigured


def test_comments_and_a_missing_devices_json_are_no_reason_to_drain(options, tmp_path):
    files, wanted = NodeFiles.of(options, tmp_path / "s"), _wanted(options)
    files.write(wanted)
    conf = options.directory / "gres.conf"
    conf.write_text(conf.read_text() + "# a remark\n\n")
    assert files.compare(wanted, _node(9)) is Files.REMARKS
    assert {one[:4] for one in files.told_devices()} == {"GPU-"}
    options.devices.unlink()
    assert files.told_devices() == frozenset()
    assert files.compare(wanted, _node(9)) is Files.REMARKS
    options.devices.write_text(wanted.devices.replace("GPU-", "GPU-0"))
    assert files.compare(wanted, _node(9)) is Files.WRONG
    assert files.compare(_wanted(options, MPS), _node(9)) is Files.WRONG


def test_shared_files_are_the_lines_of_this_node_alone(options, tmp_path):
    shared = replace(options, writes=Writes.SHARED, settings="CPUs=64")
    files, wanted = NodeFiles.of(shared, tmp_path / "s"), _wanted(shared, MPS)
    files.write(wanted)
    line = (shared.directory / "g1.slurm.conf").read_text().splitlines()[-1]
    assert line.startswith("NodeName=g1 CPUs=64 Gres=gpu:h100_shared:2,mps:200")
    assert "GresTypes" not in (shared.directory / "g1.slurm.conf").read_text()
    assert files.compare(wanted, _node(9)) is Files.RIGHT


def test_where_somebody_else_writes_slurmd_has_to_be_started_after_the_change(options, tmp_path):
    others = replace(options, writes=Writes.NOTHING)
    files, now = NodeFiles.of(others, tmp_path / "s"), time.time()
    assert files.compare(_wanted(others), _node(now - 5)) is Files.RIGHT  # as it was found
    assert options.devices.exists()
    changed = _wanted(others, MPS)
    assert files.compare(changed, _node(now - 5)) is Files.WRONG
    assert files.by_others
    assert not options.directory.exists()
    assert files.compare(changed, _node(now + 1.5)) is Files.RIGHT


@pytest.mark.parametrize(("writes", "name"), [(Writes.OWN, "gres.conf"), (Writes.SHARED, "g1.slurm.conf")])
def test_a_file_of_somebody_else_is_not_touched(options, writes, name):
    mine = replace(options, writes=writes)
    check_own(mine)
    mine.directory.mkdir()
    (mine.directory / name).write_text("NodeName=g1\n")
    with pytest.raises(InputError, match="Partage did not write it"):
        check_own(mine)
    check_own(replace(mine, writes=Writes.NOTHING))


def test_what_cannot_be_written_changes_nothing(options, tmp_path):
    files, wanted = NodeFiles.of(options, tmp_path / "s"), _wanted(options)
    options.directory.mkdir()
    (options.directory / ".gres.conf.new").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        files.write(wanted)
    assert not (options.directory / "gres.conf").exists()
    state = tmp_path / "s"
    (state / "slurm.json").unlink()
    (state / "slurm.json.new").mkdir()
    (options.directory / ".gres.conf.new").rmdir()
    with pytest.raises(InputError, match="cannot be written"):
        files.write(wanted)
    assert not (options.directory / "gres.conf").exists()

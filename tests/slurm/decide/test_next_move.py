"""What a node of Slurm needs next: single moves, and any order of events on a model of Slurm and a node."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.slurm.decide.next_move import (
    MARK,
    DrainNode,
    LoadFiles,
    MakeLayout,
    MoveInput,
    Rest,
    ResumeNode,
    WriteFiles,
    counts_differ,
    next_move,
    stamp,
)
from partage.slurm.decide.node_files import Files
from partage.slurm.model import JobId, LiveJob, LiveNode, SlurmVersion
from tests.examples import examples

OLD, NEW = SlurmVersion(22, 5, 8), SlurmVersion(24, 11, 5)
UP = LiveNode("g1", frozenset({"IDLE"}), gres="gpu:h100:2")
OURS = LiveNode("g1", frozenset({"IDLE", "DRAIN"}), MARK + "x", "root@1", gres="gpu:h100:2")
THEIRS = replace(OURS, reason="bad fan")
BASE = MoveInput(UP, NEW, jobs=(), wanted="gpu:h100:2")
JOB = LiveJob(JobId(7), "RUNNING", 1000, "anna", (0,), "gpu:h100:1")
UNKNOWN = replace(JOB, gpus=None)
AWAY = replace(OURS, flags=OURS.flags | {"NOT_RESPONDING"})
CPU = LiveJob(JobId(8), "RUNNING", 1000, "anna", ())
INVALID = LiveNode(
    "g1", frozenset({"IDLE", "DRAIN", "INVALID_REG"}),
    "gres/gpu count reported lower than configured (1 < 2)", gres="gpu:h100:2",
)  # fmt: skip
LOW = replace(INVALID, reason="Low RealMemory (reported:24105 < 100.00% of configured:990000)")
UNKNOWN_LOW = replace(LOW, flags=frozenset({"UNKNOWN", "DRAIN", "INVALID_REG"}))
RECONFIGURE, RESTART = LoadFiles(reconfigure=True), LoadFiles(reconfigure=False)


@pytest.mark.parametrize(
    ("now", "move"),
    [
        ({}, Rest()),
        ({"node": None, "change": "c"}, Rest("slurmctld does not answer")),
        ({"change": "c", "ready": True}, DrainNode(MARK + "c")),
        ({"change": "c", "node": OURS, "jobs": None}, Rest("it is not known which jobs run here")),
        ({"change": "c", "ready": True, "node": OURS, "jobs": (JOB, CPU)}, Rest("waits for job 7 of anna")),
        ({"change": "c", "ready": True, "node": OURS, "jobs": (CPU,)}, MakeLayout()),
        ({"change": "c", "ready": True, "node": OURS, "processes": ("p", "q")}, Rest("waits for p, q")),
        ({"change": "c", "node": OURS, "stuck": "process x"}, Rest("c: process x")),
        ({"files": Files.WRONG}, DrainNode(MARK + "gres.conf is not what the node has")),
        ({"files": Files.WRONG, "node": THEIRS}, WriteFiles()),
        ({"files": Files.WRONG, "node": OURS, "jobs": (UNKNOWN,)}, Rest("waits for job 7 of anna")),
        ({"files": Files.REMARKS}, WriteFiles()),
        ({"files": Files.REMARKS, "jobs": (JOB,)}, WriteFiles()),
        ({"loaded": False, "node": OURS}, LoadFiles(reconfigure=True)),
        ({"loaded": False, "node": OURS, "version": OLD}, LoadFiles(reconfigure=False)),
        ({"loaded": False, "node": OURS, "asked": RECONFIGURE}, Rest("slurmd reads gres.conf")),
        ({"loaded": False, "node": OURS, "asked": RECONFIGURE, "refused": "no"}, Rest("no")),
        ({"loaded": False, "node": OURS, "reconfigured": True}, RESTART),
        ({"loaded": False, "node": AWAY}, RESTART),
        ({"loaded": False, "node": AWAY, "asked": RESTART}, Rest("slurmd reads gres.conf")),
        ({"loaded": False, "node": replace(AWAY, reason="bad fan")}, Rest("waits for slurmd to register")),
        ({"told": False, "node": OURS}, RECONFIGURE),
        ({"told": False, "node": OURS, "asked": RESTART}, RECONFIGURE),
        ({"told": False, "node": AWAY}, RESTART),
        ({"told": False, "node": OURS, "jobs": (JOB,)}, Rest("waits for job 7 of anna")),
        ({"node": OURS}, ResumeNode()),
        ({"node": AWAY}, RESTART),
        ({"node": replace(AWAY, flags=UP.flags | {"NOT_RESPONDING"})}, Rest()),
        ({"node": LOW}, Rest(f"drained by somebody else: {LOW.reason}")),
        ({"node": LOW, "loaded": False}, RECONFIGURE),
        ({"node": LOW, "loaded": False, "reconfigured": True}, RESTART),
        ({"node": UNKNOWN_LOW, "loaded": False}, RECONFIGURE),
        ({"node": UNKNOWN_LOW, "loaded": False, "version": OLD}, RESTART),
        ({"node": OURS, "undescribed": "mps and MIG"}, Rest("mps and MIG")),
        ({"undescribed": "mps and MIG"}, Rest("mps and MIG")),
        ({"trouble": 'a\n"b"\té [c]'}, DrainNode(MARK + "a b c")),
        ({"node": OURS, "resumed": stamp(OURS)}, Rest("drained by somebody else: partage agent: x")),
        ({"node": THEIRS}, Rest("drained by somebody else: bad fan")),
        ({"trouble": "GPU 1 does not answer", "node": THEIRS}, Rest("GPU 1 does not answer")),
        ({"trouble": "GPU 1 does not answer", "node": OURS}, DrainNode(MARK + "GPU 1 does not answer")),
    ],
)  # fmt: skip
def test_moves(now, move):
    assert next_move(replace(BASE, **now)) == move


def test_a_node_that_slurm_calls_invalid_is_taken_over_and_repaired():
    now = replace(BASE, node=INVALID)
    move = next_move(now)
    assert isinstance(move, DrainNode)
    assert "reported lower than configured (1 < 2)" in move.reason
    taken = replace(INVALID, reason=move.reason, reason_by="root@2")
    assert next_move(replace(now, node=taken)) == LoadFiles(reconfigure=True)
    assert next_move(replace(now, node=replace(taken, flags=frozenset({"IDLE", "DRAIN"})))) == ResumeNode()


def test_an_invalid_node_that_a_person_drained_is_repaired_and_stays_drained():
    mine = replace(INVALID, reason="bad fan")
    assert next_move(replace(BASE, node=mine)) == LoadFiles(reconfigure=True)
    assert isinstance(next_move(replace(BASE, node=replace(mine, flags=THEIRS.flags))), Rest)


def test_counts_that_slurmctld_has_not_read_are_told_once():
    """slurmd was restarted after the files were written: a reboot did it, or somebody."""
    wrong = replace(OURS, gres="gpu:h100:3")
    invalid = replace(wrong, flags=INVALID.flags)
    for node in (wrong, invalid):
        now = replace(BASE, node=node, writes_counts=True)
        assert next_move(now) == RECONFIGURE
        assert next_move(replace(now, asked=RECONFIGURE, reconfigured=True)) == Rest("slurmd reads gres.conf")
        told = next_move(replace(now, reconfigured=True))
        assert isinstance(told, DrainNode)
        assert told.reason.endswith("does slurm.conf include the node's file")
        assert isinstance(next_move(replace(now, writes_counts=False)), DrainNode)


def test_counts_in_slurm_conf_that_only_a_person_can_change():
    now = replace(BASE, node=OURS, wanted="gpu:h100:3", version=OLD)
    move = next_move(now)
    assert isinstance(move, DrainNode)
    assert "restart slurmctld" in move.reason
    assert next_move(replace(now, node=replace(OURS, reason=move.reason))) == Rest(move.reason[len(MARK) :])
    assert isinstance(next_move(replace(now, node=UP)), Rest)  # nobody is disturbed for that alone


@pytest.mark.parametrize(
    ("says", "wanted", "differ"),
    [
        ("gpu:h100:2,mps:h100:0,mps:h100_shared:200", "gpu:h100:2,mps:200", False),
        ("gpu:h100:2(S:0-1)", "gpu:h100:2", False),
        ("gpu:h100_1g.10gb:2", "gpu:h100_1g.10gb:3", True),
        ("", "gpu:h100:1", True),
        ("gpu:a:1,gpu:b:1", "gpu:b:1,gpu:a:1", False),
    ],
)
def test_counts(says, wanted, differ):
    assert counts_differ(says, wanted) is differ


# --- any order of events ---------------------------------------------------------------------------


@dataclass
class World:
    """A node, its Slurm and an agent that remembers what is on its disk. Layouts are numbers.

    hardware, file, loaded, counts: the layout that each of them has. jobs: job to the layout it began with.
    told, reconfigured: since the file was written. slurmd: it runs. low: a DIMM has failed.
    """

    version: SlurmVersion
    wanted: int = 0
    hardware: int = 0
    file: int = 0
    loaded: int = 0
    counts: int = 0
    reason: str = ""
    given: int = 0
    drained: bool = False
    up: bool = True
    disk_full: bool = False
    resumed: str = ""
    jobs: dict[int, int] = field(default_factory=dict)
    told: bool = True
    reconfigured: bool = False
    slurmd: bool = True
    low: bool = False

    def look(self) -> MoveInput:
        flags = {"UNKNOWN" if self.low else "IDLE", *({"DRAIN"} if self.drained else ())}
        flags |= {"INVALID_REG"} if self.loaded != self.counts or self.low else set()
        flags |= set() if self.slurmd or self.low else {"NOT_RESPONDING"}  # one that is invalid is not pinged
        node = LiveNode("g1", frozenset(flags), self.reason, f"root@{self.given}", f"gpu:t{self.counts}:1")
        return MoveInput(
            node=node if self.up else None,
            version=self.version,
            jobs=tuple(LiveJob(JobId(number), "RUNNING", gpus=(0,)) for number in self.jobs),
            change="the layout changes" if self.hardware != self.wanted else "",
            ready=True,
            files=Files.RIGHT if self.file == self.hardware else Files.WRONG,
            unwritten="no space left" if self.disk_full else "",
            loaded=self.loaded == self.file,
            told=self.told or self.version == OLD,
            reconfigured=self.reconfigured,
            writes_counts=True,
            wanted=f"gpu:t{self.hardware}:1",
            resumed=self.resumed,
        )

    def act(self) -> bool:
        """One look and one move; False: nothing to do."""
        now = self.look()
        move = next_move(now)
        idle = self.drained and not self.jobs
        if isinstance(move, DrainNode):
            assert not self.drained or self.reason == "" or self.reason.startswith((MARK, "gres/"))
            changed = (self.drained, self.reason) != (True, move.reason)
            self.drained, self.reason, self.given = True, move.reason, self.given + 1
            return changed
        if isinstance(move, MakeLayout):
            assert idle
            self.hardware = self.wanted
        elif isinstance(move, WriteFiles):
            assert idle
            assert not self.disk_full
            self.file = self.hardware
            self.told = self.reconfigured = False
        elif isinstance(move, LoadFiles):
            assert idle
            before = (self.loaded, self.counts, self.told, self.slurmd)
            if move.reconfigure:
                assert now.node is not None
                assert not now.node.away
                assert not self.reconfigured  # it starts every daemon of the cluster anew
                self.counts, self.told, self.reconfigured = self.file, True, True
            if self.slurmd or not move.reconfigure:
                self._start_slurmd()
            return before != (self.loaded, self.counts, self.told, self.slurmd)
        elif isinstance(move, ResumeNode):
            assert now.node is not None
            assert self.reason.startswith(MARK)
            assert self.hardware == self.file == self.loaded == self.counts == self.wanted
            self.resumed, self.drained = stamp(now.node), False
        return not isinstance(move, Rest)

    def _start_slurmd(self) -> None:
        self.slurmd, self.loaded = True, self.file
        if self.low and self.version == NEW:
            self.drained, self.reason, self.given = True, LOW.reason, self.given + 1

    def happen(self, event: str, number: int) -> None:
        if event == "policy":
            self.wanted = number
        elif event == "layout" and not self.jobs:
            self.hardware = number  # an administrator, on a node without jobs
        elif event == "job" and self.up and not self.drained:
            self.jobs[number] = self.hardware
        elif event == "end":
            self.jobs.pop(number, None)
        elif event == "drain" and self.up:
            self.drained, self.reason, self.given = True, "bad fan", self.given + 1
        elif event == "resume" and self.up and not self.jobs and self.by_others and not self.low:
            self.drained, self.reason = False, ""
        elif event == "slurmctld":
            self.up = not self.up
        elif event == "slurmd" and not self.jobs:
            if self.slurmd:
                self.slurmd = False
            else:
                self._start_slurmd()
        elif event == "dimm" and not self.jobs and self.up:
            self.low = not self.low
            self._start_slurmd()
        elif event == "disk":
            self.disk_full = not self.disk_full
        elif event == "act":
            self.act()

    @property
    def by_others(self) -> bool:
        return self.drained and self.reason in ("bad fan", LOW.reason)

    def check(self) -> None:
        """What holds at every moment: no list changes under a job."""
        for began in self.jobs.values():
            assert began == self.hardware


EVENTS = (
    "policy",
    "layout",
    "job",
    "end",
    "drain",
    "resume",
    "slurmctld",
    "slurmd",
    "dimm",
    "disk",
    "act",
    "act",
    "act",
)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.sampled_from((OLD, NEW)),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3)), max_size=40),
)
def test_no_list_changes_under_a_job_and_the_node_comes_back(version, events):
    world = World(version)
    for event, number in events:
        world.happen(event, number)
        world.check()
    by_a_person = world.by_others
    world.up, world.disk_full, world.low, world.jobs = True, False, False, {}
    if not world.slurmd:
        world.happen("slurmd", 0)
    for _ in range(30):
        if not world.act() and version == OLD and world.file == world.hardware:
            world.counts = world.file  # somebody follows the advice, and restarts slurmctld
        world.check()
    assert world.hardware == world.wanted
    assert world.drained == by_a_person
    assert world.look().loaded

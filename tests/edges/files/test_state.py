"""The state file: whatever happens, the old or the new state is there, and the agent runs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from partage.edges.files.state import (
    LIMIT_BYTES,
    LoadedState,
    NotSaved,
    SavedPolicy,
    SavedState,
    StateDir,
)
from partage.edges.host.replace_file import KEPT_ASIDE
from partage.errors import InputError
from partage.model.geometry import Placement
from partage.model.gpu import RecoveryAction
from partage.model.health import GpuCondition, Health, Xid, next_health
from partage.model.ids import GpuUuid, ResourceName
from partage.model.share import DeviceOffer, Guarantee
from partage.model.strategy import Interval, Strategy, Via
from partage.plan.reconcile.transition import GpuServing
from tests.examples import examples

GPU_0 = GpuUuid("GPU-0")

OFFERING = DeviceOffer(
    device=GPU_0,
    gpu=GPU_0,
    index="0",
    gpu_index=0,
    resource=ResourceName("nvidia.com/gpu.shared"),
    strategy=Strategy.TIME_SLICING,
    shared=Strategy.TIME_SLICING,
    replicas=4,
    memory_bytes=20 << 30,
    guarantee=Guarantee.NONE,
    count=4,
    interval=Interval.LONG,
    numa_node=1,
    nodes=("/dev/nvidia0",),
    single=True,
)
MIG = replace(
    OFFERING,
    device="MIG-1",
    index="0:1",
    strategy=Strategy.MIG,
    interval=None,
    profile="1g.10gb",
    first=4,
    threads_percent=25,
    placement=Placement(0, 1),
    guard=True,
    limits_in_env=True,
    pipe="gpu/share0",
    by_memory=True,
    spread=True,
    limited=True,
    via=Via.CLAIMS,
)
SICK = next_health(Health(), Xid(GPU_0, 79), 90)
STATE = SavedState(
    boot_id="8f2c",
    policy=SavedPolicy("version: partage/v1\ngpus: [ü]\n", "policy.yaml", "big"),
    serving={
        GPU_0: GpuServing((OFFERING, MIG), leaving=(MIG,), draining=True, draining_since_s=40.0),
        GpuUuid("GPU-1"): GpuServing(()),
    },
    health={
        GPU_0: next_health(next_health(SICK, Xid(GPU_0, 48, gi_id=2), 95), GpuCondition(GPU_0, resets=1), 96)
    },
)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[StateDir]:
    opened = StateDir(tmp_path / "partage")
    yield opened
    opened.close()


def state_file(tmp_path: Path) -> Path:
    return tmp_path / "partage" / "state.json"


def test_the_examples_differ_in_every_field_that_has_a_default() -> None:
    """Else a field that is not written down would come back by luck."""
    for field in fields(DeviceOffer):
        values = {getattr(OFFERING, field.name), getattr(MIG, field.name)}
        assert field.default is NODEFAULT or values != {field.default}, field.name


def test_a_new_directory_is_made_and_holds_no_state(state_dir: StateDir, tmp_path: Path):
    assert state_dir.problem is None
    assert state_dir.load(0) == LoadedState(None)
    assert (tmp_path / "partage").stat().st_mode & 0o777 == 0o700


def test_what_is_saved_is_loaded(state_dir: StateDir):
    assert state_dir.save(STATE, 100) is None
    assert state_dir.load(100) == LoadedState(STATE)


def test_times_go_on_from_where_they_were_on_the_clock_of_the_next_agent(state_dir: StateDir):
    state_dir.save(STATE, 100)
    state = state_dir.load(5000).state
    assert state
    assert state.serving[GPU_0].draining_since_s == 5000 - 60
    assert state.health[GPU_0].gpu.since_s == 5000 - 10
    assert state.health[GPU_0].gpu.needs_proof


def test_a_probation_has_its_full_rest_to_go_after_a_restart(state_dir: StateDir):
    """An hour in which nobody watched is no proof of health."""
    asked = GpuCondition(GPU_0, recovery=RecoveryAction.GPU_RESET)
    fine = GpuCondition(GPU_0, recovery=RecoveryAction.NONE)
    health = next_health(next_health(Health(), asked, 0), fine, 10)
    state_dir.save(SavedState(health={GPU_0: health}), 50)
    loaded = state_dir.load(4000).state
    assert loaded
    health = loaded.health[GPU_0]
    assert not next_health(health, fine, 4019).offered()
    assert next_health(health, fine, 4020).offered()


def test_the_file_is_readable_json_with_a_version(state_dir: StateDir, tmp_path: Path):
    state_dir.save(STATE, 100)
    plain = json.loads(state_file(tmp_path).read_bytes())
    assert plain["version"] == "partage-state/2"
    assert plain["policy"]["sha256"] == STATE.policy.digest if STATE.policy else None
    assert state_file(tmp_path).stat().st_mode & 0o777 == 0o600


# --- files that cannot be used ------------------------------------------------------------------------

UNUSABLE = {
    "empty": b"",
    "binary": bytes(range(256)),
    "half": b'{"version": "partage-state/2", "bootId": "8f',
    "another version": b'{"version": "partage-state/1"}',
    "a list": b"[1, 2]",
    "deep": b"[" * 100_000,
    "a long number": b'{"version": ' + b"9" * 10_000 + b"}",
    "nothing in it": b'{"version": "partage-state/2"}',
    "too long": b" " * (LIMIT_BYTES + 1),
}


@pytest.mark.parametrize("content", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_file_that_cannot_be_used_is_set_aside_and_said(
    state_dir: StateDir, tmp_path: Path, content: bytes
):
    state_file(tmp_path).write_bytes(content)
    loaded = state_dir.load(0)
    assert loaded.state is None
    assert "set aside as state.json.corrupt-1" in loaded.problems[0]
    assert state_file(tmp_path).with_name("state.json.corrupt-1").read_bytes() == content
    assert not state_file(tmp_path).exists()
    assert state_dir.save(STATE, 100) is None


def test_files_set_aside_do_not_fill_the_disk(state_dir: StateDir, tmp_path: Path):
    for n in range(KEPT_ASIDE + 3):
        state_file(tmp_path).write_text(str(n))
        assert state_dir.load(0).state is None
    kept = sorted(path.name for path in state_file(tmp_path).parent.glob("*.corrupt-*"))
    assert kept == [f"state.json.corrupt-{n}" for n in range(1, KEPT_ASIDE + 1)]
    assert state_file(tmp_path).with_name(kept[-1]).read_text() == str(KEPT_ASIDE + 2)


def test_a_policy_that_somebody_edited_in_the_file_is_not_believed(state_dir: StateDir, tmp_path: Path):
    state_dir.save(STATE, 100)
    plain = json.loads(state_file(tmp_path).read_bytes())
    plain["policy"]["text"] = "version: partage/v1\n"
    state_file(tmp_path).write_text(json.dumps(plain))
    assert "digest" in state_dir.load(0).problems[0]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_value(value[path[0]], path[1:], new)
    return copy


WRONG: tuple[Any, ...] = (None, True, -1, 10**30, float("inf"), "x", [], {}, [[]], {"x": 1})


def test_a_wrong_value_anywhere_is_refused_or_harmless(state_dir: StateDir, tmp_path: Path):
    state_dir.save(STATE, 100)
    plain = json.loads(state_file(tmp_path).read_bytes())
    refused = 0
    for path in places(plain):
        for wrong in WRONG:
            state_file(tmp_path).write_text(json.dumps(with_value(plain, path, wrong)))
            loaded = state_dir.load(100)
            refused += loaded.state is None
            assert loaded.state is not None or loaded.problems
    assert refused > 500


# --- a disk that does not take it ----------------------------------------------------------------------


def test_a_directory_that_cannot_be_made_is_said_and_the_agent_runs_without(tmp_path: Path):
    (tmp_path / "file").write_text("")
    opened = StateDir(tmp_path / "file" / "partage")
    assert opened.problem
    assert "cannot make the state directory" in opened.problem
    assert opened.save(STATE, 0) == NotSaved(opened.problem)
    assert opened.load(0).state is None
    opened.close()


def test_a_directory_that_can_be_made_later_is_used_then(tmp_path: Path):
    (tmp_path / "file").write_text("")
    opened = StateDir(tmp_path / "file" / "partage")
    (tmp_path / "file").unlink()
    assert opened.save(STATE, 100) is None
    assert opened.problem is None
    assert opened.load(100) == LoadedState(STATE)
    with pytest.raises(InputError):
        StateDir(tmp_path / "file" / "partage")
    opened.close()


def test_a_directory_in_which_nothing_can_be_written_is_said_and_the_agent_runs_without():
    """The kernel's own directories refuse new files to root too."""
    opened = StateDir(Path("/sys/kernel"))
    assert opened.problem
    assert "cannot lock" in opened.problem
    assert opened.load(0) == LoadedState(None)
    assert isinstance(opened.save(STATE, 0), NotSaved)
    opened.close()


def test_a_write_that_fails_leaves_the_old_state(state_dir: StateDir, tmp_path: Path):
    state_dir.save(STATE, 100)
    in_the_way = state_file(tmp_path).with_name("state.json.new")
    in_the_way.mkdir()
    assert isinstance(state_dir.save(SavedState(boot_id="new"), 100), NotSaved)
    assert state_dir.load(100) == LoadedState(STATE)
    in_the_way.rmdir()
    assert state_dir.save(SavedState(boot_id="new"), 100) is None


def test_a_link_in_the_way_is_not_followed(state_dir: StateDir, tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    state_file(tmp_path).with_name("state.json.new").symlink_to(victim)
    assert isinstance(state_dir.save(STATE, 100), NotSaved)
    assert victim.read_text() == "precious"


FULL_DISK = """
import resource, sys
from pathlib import Path
from partage.edges.files.state import SavedPolicy, SavedState, StateDir
opened = StateDir(Path(sys.argv[1]))
assert opened.save(SavedState(boot_id="old"), 0) is None
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
print(opened.save(SavedState(boot_id="new", policy=SavedPolicy("x" * 100_000, "p")), 0))
print(opened.load(0).state.boot_id, sorted(path.name for path in Path(sys.argv[1]).iterdir()))
"""


def test_a_disk_that_takes_half_of_it_leaves_the_old_state_and_no_half(tmp_path: Path):
    """The kernel ends the write in the middle, as on a full disk."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    said, left = done.stdout.splitlines()
    assert said.startswith("NotSaved(reason='cannot write")
    assert left == "old ['lock', 'state.json']"


def test_a_state_that_is_too_long_is_not_written(state_dir: StateDir):
    state_dir.save(STATE, 100)
    long = SavedState(policy=SavedPolicy("x" * LIMIT_BYTES, "p"))
    assert isinstance(state_dir.save(long, 100), NotSaved)
    assert state_dir.load(100) == LoadedState(STATE)


# --- killed at any moment --------------------------------------------------------------------------------

SAVE_FOR_EVER = """
import sys
from itertools import cycle
from pathlib import Path
from partage.edges.files.state import SavedPolicy, SavedState, StateDir
opened = StateDir(Path(sys.argv[1]))
for letter in cycle("ab"):
    assert opened.save(SavedState(boot_id=letter, policy=SavedPolicy(letter * 300_000, "p")), 0) is None
    print(letter, flush=True)
"""


def saving_agent(directory: Path) -> subprocess.Popen[str]:
    agent = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOR_EVER, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout
    assert agent.stdout.readline() == "a\n"
    return agent


def killed(agent: subprocess.Popen[str]) -> None:
    agent.send_signal(signal.SIGKILL)
    agent.communicate(timeout=10)


def test_an_agent_that_is_killed_at_any_moment_leaves_the_old_or_the_new_state(tmp_path: Path):
    moments = random.Random(7)
    for _ in range(10):
        agent = saving_agent(tmp_path)
        time.sleep(moments.uniform(0, 0.03))  # the moment is the input, not a wait for anything
        killed(agent)
        opened = StateDir(tmp_path)
        loaded = opened.load(0)
        opened.close()
        assert not loaded.problems
        assert loaded.state
        assert loaded.state.policy
        assert loaded.state.policy.text == loaded.state.boot_id * 300_000


def test_a_second_agent_is_refused_and_told_who_the_first_one_is(tmp_path: Path):
    agent = saving_agent(tmp_path)
    try:
        with pytest.raises(InputError, match=rf"process {agent.pid} on .*state directory") as refused:
            StateDir(tmp_path)
        assert refused.value.exit_code == 2
        assert "--state-dir" in str(refused.value)
    finally:
        killed(agent)
    StateDir(tmp_path).close()


def test_a_child_that_outlives_the_agent_does_not_keep_the_lock(tmp_path: Path):
    first = StateDir(tmp_path)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        first.close()
        first.close()
        StateDir(tmp_path).close()
    finally:
        child.kill()
        child.wait()


def test_a_directory_that_another_one_leaves_is_waited_for(tmp_path: Path):
    """Who saw that it was free can find it taken: two agents start at the same time."""
    first = StateDir(tmp_path)
    with ThreadPoolExecutor() as pool:
        second = pool.submit(StateDir, tmp_path, 30.0)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.2)
        first.close()
        second.result().close()


def test_the_lock_says_who_has_it_now(tmp_path: Path):
    (tmp_path / "lock").write_text("1234567 on a-host-with-a-long-name\n")
    opened = StateDir(tmp_path)
    assert (tmp_path / "lock").read_text().startswith(f"{os.getpid()} on ")
    assert (tmp_path / "lock").read_text().count("\n") == 1
    opened.close()


# --- whatever is saved is loaded -----------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.one_of(
            st.builds(
                Xid,
                gpu=st.just("GPU-0"),
                code=st.sampled_from([48, 79, 999]),
                gi_id=st.sampled_from([None, 1, 7]),
            ),
            st.builds(
                GpuCondition,
                gpu=st.just("GPU-0"),
                recovery=st.sampled_from([None, *RecoveryAction]),
                resets=st.sampled_from([None, 0, 1]),
            ),
        ),
    ),
    max_size=10,
)


@settings(max_examples=examples(50), deadline=None)
@given(events=EVENTS, text=st.text(max_size=50), source=st.text(max_size=10))
def test_every_life_and_every_text_comes_back(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, Any]], text: str, source: str
):
    health, now_s = Health(), 1.0
    for wait_s, event in events:
        now_s += wait_s
        health = next_health(health, event, now_s)
    state = SavedState("b", SavedPolicy(text, source), {}, {GPU_0: health})
    opened = StateDir(tmp_path_factory.mktemp("state"))
    assert opened.save(state, now_s) is None
    loaded = opened.load(now_s)
    opened.close()
    assert loaded.problems == ()
    assert loaded.state
    assert loaded.state.policy == state.policy
    # A state that ended before now ends now: nothing that anybody could tell apart.
    fine = GpuCondition(GPU_0, recovery=RecoveryAction.NONE)
    assert next_health(loaded.state.health[GPU_0], fine, now_s) == next_health(health, fine, now_s)


def test_a_state_that_cannot_be_written_as_json_is_not_saved(state_dir: StateDir):
    state_dir.save(STATE, 100)
    endless = {GPU_0: GpuServing((), draining=True, draining_since_s=float("-inf"))}
    assert isinstance(state_dir.save(SavedState(serving=endless), 100), NotSaved)
    assert state_dir.load(100) == LoadedState(STATE)


def test_the_name_of_a_policy_file_may_be_any_bytes(state_dir: StateDir):
    assert state_dir.save(SavedState(policy=SavedPolicy("", "\udcff.yaml")), 100) is None
    state = state_dir.load(100).state
    assert state
    assert state.policy == SavedPolicy("", "\\udcff.yaml")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (
            lambda state: state["serving"]["GPU-0"]["offer"][1].update(colour="red"),
            "$.serving.GPU-0.offer[1]",
        ),
        (lambda state: state["health"]["GPU-0"]["gpu"].pop("reason"), "$.health[...].gpu"),
        (lambda state: state["health"]["GPU-0"]["gpu"].update(forSeconds=-1), "$.health[...].gpu.forSeconds"),
        (lambda state: state["health"]["GPU-0"]["gpu"].update(probationSeconds=1), "probationSeconds"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(state_dir: StateDir, tmp_path: Path, change: Any, place: str):
    state_dir.save(STATE, 100)
    plain = json.loads(state_file(tmp_path).read_bytes())
    change(plain)
    state_file(tmp_path).write_text(json.dumps(plain))
    assert place in state_dir.load(100).problems[0]

"""Which policy holds, and when the file is read again."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from partage.agent.node_policy import PolicyRefusal
from partage.agent.observers.chosen_policy import ChosenPolicy
from partage.agent.observers.policy import PolicyObserver
from partage.agent.options import AgentOptions, Intervals
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy_directory import UNSETTLED_S, PolicyFiles
from partage.edges.files.state import SavedPolicy
from partage.edges.host.waiting import DirectoryChanges
from partage.errors import InputError, Unsatisfiable
from partage.model.gpu import Inventory, NoDriver
from partage.model.node_labels import MIG_CONFIG
from partage.model.policy import MigStrategy
from partage.plan.offer.policy_choice import Fallback
from partage.plan.reconcile.known_node import with_observed
from partage.plan.report import PolicyReason, PolicyState
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


def _in_place(path: Path) -> None:
    path.write_text(WRONG)


def _replaced(path: Path) -> None:
    beside = path.with_name("new")
    beside.write_text(WRONG)
    beside.replace(path)


def _removed_and_written_anew(path: Path) -> None:
    path.unlink()
    path.write_text(WRONG)


def _where_its_link_leads(path: Path) -> None:
    path.resolve().write_text(WRONG)


@pytest.mark.parametrize("change", [_in_place, _replaced, _removed_and_written_anew, _where_its_link_leads])
async def test_a_change_of_a_file_is_told_by_the_kernel(
    path: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    elsewhere = tmp_path / "elsewhere" / "policy.yaml"
    elsewhere.parent.mkdir()
    write(elsewhere if change is _where_its_link_leads else path, GOOD)
    if change is _where_its_link_leads:
        path.symlink_to(elsewhere)
    changes, never = DirectoryChanges(), Intervals(policy_s=1e6, rest_s=1e6)
    chosen = ChosenPolicy(AgentOptions(policy=path, intervals=never), changes)
    chosen.start()
    assert not isinstance(chosen.choice, PolicyRefusal)
    looking = asyncio.create_task(chosen.look())
    await asyncio.sleep(0)
    change(path)
    async with asyncio.timeout(5.0):
        assert await looking
    assert isinstance(chosen.choice, PolicyRefusal)
    changes.close()


def test_a_file_at_rest_is_not_read_again(path: Path) -> None:
    write(path, GOOD)
    file = PolicyFiles(path)
    assert [file.changed() for _ in range(4)] == [True, False, False, False]


def test_a_file_that_was_just_written_is_read_again_until_it_has_settled(path: Path) -> None:
    write(path, GOOD, time.time())
    file = PolicyFiles(path)
    assert [file.changed() for _ in range(3)] == [True, True, True]
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert [file.changed() for _ in range(3)] == [True, False, False]


def test_a_new_file_of_the_same_size_and_time_is_noticed(path: Path) -> None:
    write(path, GOOD)
    file = PolicyFiles(path)
    file.changed()
    beside = path.with_name("beside")
    write(beside, GOOD.replace("4", "5"))
    beside.replace(path)
    assert file.changed()


def test_a_file_that_goes_and_comes_is_noticed_both_times(path: Path) -> None:
    write(path, GOOD)
    file = PolicyFiles(path)
    file.changed()
    path.unlink()
    assert [file.changed(), file.changed()] == [True, False]
    write(path, GOOD)
    assert file.changed()


def test_a_pipe_in_the_files_place_is_refused(path: Path) -> None:
    write(path, GOOD)
    file = PolicyFiles(path)
    file.changed()
    path.unlink()
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


# --- a directory, and labels ---------------------------------------------------------------------

SHARED = GOOD.replace("4", "2")
CHOICE = "nvidia.com/device-plugin.config"
WHEN = (
    "version: partage/v1\ngpus:\n  - {select: all, when: {label: {pool: a}}, time-slicing: {replicas: 3}}\n"
)


class ConfigMap:
    """A directory as the kubelet mounts one: names are symlinks into ``..data``, which is swapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0

    def put(self, **texts: str) -> None:
        self._number += 1
        content = self.path / f"..{self._number}"
        content.mkdir(parents=True)
        for name, text in texts.items():
            (content / name).write_text(text, encoding="utf-8")
        swap = self.path / "..data_tmp"
        swap.symlink_to(content.name)
        swap.replace(self.path / "..data")
        for name in texts:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")
        for link in self.path.iterdir():
            if not link.name.startswith("..") and link.name not in texts:
                link.unlink()


@pytest.fixture
def config_map(tmp_path: Path) -> ConfigMap:
    made = ConfigMap(tmp_path / "policies")
    made.put(default=GOOD, shared=SHARED)
    return made


def of_directory(
    config_map: ConfigMap, saved: SavedPolicy | None = None, rest_s: float = 10.0, **options: Any
) -> PolicyObserver:
    settings = AgentOptions(
        policy=config_map.path,
        intervals=Intervals(policy_s=60.0, rest_s=rest_s),
        awaits_labels=True,
        **options,
    )
    return PolicyObserver(settings, geometry_of, lambda: None, saved, DirectoryChanges())


def replicas(one: PolicyObserver) -> int | None:
    """Of the policy in force; 1 for exclusive."""
    if one.good is None or one.desired is None:
        return None
    found = {offer.replicas for devices in one.desired.offer.values() for offer in devices}
    assert len(found) == 1
    return found.pop()


def test_a_label_chooses_and_chooses_again(config_map: ConfigMap) -> None:
    one, node = of_directory(config_map), node_of()
    one.start()
    one.resolve_on(node)
    assert (state(one), one.report.reason) == (PolicyState.NONE, PolicyReason.LABELS_UNKNOWN)
    seen = []
    for labels in ({}, {CHOICE: "shared"}, {CHOICE: "gone"}, {}, {CHOICE: "shared"}, {CHOICE: "default"}):
        one.know_labels(labels)
        one.resolve_on(node)
        seen.append((replicas(one), one.report.reason.value, one.report.chosen_by))
    label = f"label {CHOICE}"
    assert seen == [
        (4, "in-force", "fallback named"),
        (2, "in-force", label),
        (2, "unknown-name", label),
        (4, "in-force", "fallback named"),
        (2, "in-force", label),
        (4, "in-force", label),
    ]
    assert one.reloads_failed == 1


def test_a_label_that_goes_where_nothing_else_chooses_keeps_what_was_in_force(config_map: ConfigMap) -> None:
    one, node = of_directory(config_map, config=None, environ={}), node_of()
    config_map.put(a=GOOD, b=SHARED)
    one.start()
    one.know_labels({CHOICE: "b"})
    one.resolve_on(node)
    one.know_labels({})
    one.resolve_on(node)
    report = one.report
    assert (replicas(one), report.state, report.reason) == (
        2,
        PolicyState.LAST_GOOD,
        PolicyReason.NONE_CHOSEN,
    )
    assert report.reason.camel == "NoneChosen"
    assert report.message.startswith("b stays in force: ")
    assert "no policy is chosen" in report.message


def test_labels_that_matter_to_nobody_ask_for_nothing(config_map: ConfigMap) -> None:
    asked: list[None] = []
    one = of_directory(config_map)
    one.ask = lambda: asked.append(None)
    one.start()
    one.know_labels({"a": "b"})
    one.resolve_on(node_of())
    assert len(asked) == 1
    one.know_labels({"a": "c", "feature.node.kubernetes.io/x": "true"})
    assert len(asked) == 1


async def test_a_config_map_that_was_edited_is_noticed_at_once_and_a_wrong_one_refused(
    config_map: ConfigMap,
) -> None:
    one, node = of_directory(config_map), await asyncio.to_thread(node_of)
    one.start()
    one.know_labels({CHOICE: "shared"})
    one.resolve_on(node)
    watching = asyncio.create_task(one.watch())  # looks by itself once a minute only

    async def becomes(number: int, reason: PolicyReason) -> None:
        def there() -> bool:
            one.resolve_on(node)
            return replicas(one) == number and one.report.reason is reason

        await until(there)

    async def becomes_other(digest: str) -> None:
        def there() -> bool:
            one.resolve_on(node)
            return one.report.digest != digest

        await until(there)

    try:
        await asyncio.sleep(0)
        config_map.put(default=GOOD, shared=GOOD.replace("4", "7"))
        await becomes(7, PolicyReason.IN_FORCE)
        config_map.put(default=GOOD, shared=WRONG)
        await becomes(7, PolicyReason.WRONG)
        config_map.put(default=GOOD)
        await becomes(7, PolicyReason.UNKNOWN_NAME)
        config_map.put(default=GOOD, shared=SHARED)
        await becomes(2, PolicyReason.IN_FORCE)
        (config_map.path / "shared").unlink()
        (config_map.path / "shared").write_text(GOOD)
        await becomes(4, PolicyReason.IN_FORCE)
        with (config_map.path / "shared").open("a") as stream:  # written to, in its place
            stream.write("# the same\n")
        before = one.report.digest
        await becomes_other(before)
    finally:
        watching.cancel()
        assert one.changes is not None
        one.changes.close()


def test_the_start_serves_the_last_good_policy_until_labels_are_known(config_map: ConfigMap) -> None:
    node = node_of()
    one = of_directory(config_map, SavedPolicy(SHARED, "old/shared"))
    one.start()
    one.resolve_on(node)
    one.check_in_force()
    assert (replicas(one), state(one)) == (2, PolicyState.LAST_GOOD)
    assert one.report.reason is PolicyReason.LABELS_UNKNOWN
    assert one.saved == SavedPolicy(SHARED, "old/shared")
    one.know_labels({CHOICE: "default"})
    one.resolve_on(node)
    assert (replicas(one), state(one)) == (4, PolicyState.FILE)


def test_the_only_policy_needs_no_labels(config_map: ConfigMap) -> None:
    config_map.put(anything=SHARED)
    one = of_directory(config_map)
    one.start()
    one.resolve_on(node_of())
    assert (replicas(one), one.report.chosen_by) == (2, "fallback single")


@pytest.mark.parametrize("text", [WRONG, NOT_HERE])
def test_what_a_label_can_put_right_ends_no_agent(config_map: ConfigMap, text: str) -> None:
    config_map.put(default=text, shared=SHARED)
    one, node = of_directory(config_map), node_of()
    one.start()
    one.know_labels({})
    one.resolve_on(node)
    one.check_in_force()
    assert (state(one), bool(one.report.problems)) == (PolicyState.NONE, True)
    one.know_labels({CHOICE: "shared"})
    one.resolve_on(node)
    assert replicas(one) == 2


@pytest.mark.parametrize("options", [{}, {"node_labels": {CHOICE: "gone"}}])
def test_without_a_cluster_a_choice_that_is_wrong_ends_the_start(
    config_map: ConfigMap, options: dict[str, Any]
) -> None:
    config_map.put(a=GOOD, b=SHARED)
    settings = AgentOptions(policy=config_map.path, **options)
    with pytest.raises(InputError, match="no policy"):
        PolicyObserver(settings, geometry_of, lambda: None).start()


def test_conditions_wait_for_labels_and_are_remembered_with_them(path: Path) -> None:
    write(path, WHEN)
    settings, node = AgentOptions(policy=path, awaits_labels=True), node_of()
    one = PolicyObserver(settings, geometry_of, lambda: None)
    one.start()
    one.resolve_on(node)
    assert (state(one), one.report.reason) == (PolicyState.NONE, PolicyReason.LABELS_UNKNOWN)
    one.know_labels({"pool": "a", "other": "x"})
    one.resolve_on(node)
    assert replicas(one) == 3
    assert one.saved == SavedPolicy(WHEN, str(path), None, {"pool": "a"})

    after = PolicyObserver(settings, geometry_of, lambda: None, one.saved)
    after.start()
    after.resolve_on(node)
    assert (replicas(after), state(after)) == (3, PolicyState.LAST_GOOD)
    after.know_labels({})
    after.resolve_on(node)
    assert (replicas(after), state(after)) == (1, PolicyState.FILE)


def test_conditions_without_a_cluster_end_the_start_unless_labels_are_given(path: Path) -> None:
    write(path, WHEN)
    with pytest.raises(InputError, match="--node-labels"):
        policies(path).start()
    given = AgentOptions(policy=path, node_labels={"pool": "a"})
    one = PolicyObserver(given, geometry_of, lambda: None)
    one.start()
    one.resolve_on(node_of())
    assert replicas(one) == 3


# --- a layout by label -----------------------------------------------------------------------------


HALVES = """\
version: v1
mig-configs:
  halves: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}]
"""


def layouts(one: PolicyObserver) -> str | None:
    """The name of the label's layout that is in force."""
    assert one.desired is not None
    return one.desired.policy.layouts.name if one.desired.policy.layouts else None


def test_a_label_that_is_refused_keeps_the_layout_and_the_policy(config_map: ConfigMap) -> None:
    config_map.put(default=GOOD, mig=HALVES)
    one, node = of_directory(config_map), node_of()
    one.start()
    seen = []
    for value in ("", "halves", "quarters", "all-1g.80gb", "all-1g.5gb", "all-disabled", ""):
        one.know_labels({MIG_CONFIG: value} if value else {})
        one.resolve_on(node)
        seen.append((layouts(one), bool(one.layouts_problems)))
        assert (state(one), one.problems) == (PolicyState.FILE, ())
    assert seen == [
        (None, False),
        ("halves", False),
        ("halves", True),
        ("halves", True),
        ("all-1g.5gb", False),
        ("all-disabled", False),
        (None, False),
    ]


def test_a_layout_is_remembered_with_the_file_in_which_it_stands(config_map: ConfigMap) -> None:
    config_map.put(default=GOOD, mig=HALVES)
    one, node = of_directory(config_map), node_of()
    one.start()
    one.know_labels({MIG_CONFIG: "halves"})
    one.resolve_on(node)
    saved = one.saved
    assert saved is not None
    assert (saved.labels, saved.layouts) == ({MIG_CONFIG: "halves"}, HALVES)

    config_map.put(default=GOOD)
    after = of_directory(config_map, saved)
    after.start()
    after.resolve_on(node)
    assert (layouts(after), state(after)) == ("halves", PolicyState.FILE)
    assert after.saved == saved.__class__(GOOD, str(config_map.path / "default"), None, saved.labels, HALVES,
                                          saved.layouts_source)  # fmt: skip
    after.know_labels({MIG_CONFIG: "halves"})  # which is not in the directory any more
    after.resolve_on(node)
    assert (layouts(after), bool(after.layouts_problems)) == ("halves", True)


def test_a_layout_without_a_policy_is_remembered_too() -> None:
    settings, node = AgentOptions(awaits_labels=True), node_of()
    one = PolicyObserver(settings, geometry_of, lambda: None)
    one.start()
    one.know_labels({MIG_CONFIG: "all-balanced"})
    one.resolve_on(node)
    after = PolicyObserver(settings, geometry_of, lambda: None, one.saved)
    after.start()
    after.resolve_on(node)
    assert layouts(after) == "all-balanced"


def test_a_wrong_label_where_the_policy_is_the_file_of_layouts_keeps_the_layout(
    config_map: ConfigMap,
) -> None:
    """As users of mig-manager have it: one file, and the label says which of its configurations."""
    config_map.put(mig=HALVES + "  off: [{devices: all, mig-enabled: false}]\n")
    one, node = of_directory(config_map), node_of()
    one.start()
    one.know_labels({MIG_CONFIG: "halves"})
    one.resolve_on(node)
    assert (layouts(one), state(one), one.layouts_problems) == ("halves", PolicyState.FILE, ())
    one.know_labels({MIG_CONFIG: "thirds"})
    one.resolve_on(node)
    assert (layouts(one), state(one)) == ("halves", PolicyState.LAST_GOOD)
    assert "thirds" in str(one.layouts_problems[0])
    one.know_labels({MIG_CONFIG: "off"})
    one.resolve_on(node)
    assert (layouts(one), state(one), one.layouts_problems) == ("off", PolicyState.FILE, ())


# --- a ConfigMap that is deleted -----------------------------------------------------------------

EVERY_FALLBACK = [(), (Fallback.NAMED, Fallback.SINGLE), (Fallback.EMPTY,), tuple(Fallback)]


@pytest.mark.parametrize("fallback", EVERY_FALLBACK)
def test_a_config_map_that_is_deleted_while_it_is_in_use_changes_no_gpu(
    config_map: ConfigMap, fallback: tuple[Fallback, ...]
) -> None:
    """The kubelet empties the directory of one that may be missing."""
    one, node = of_directory(config_map, rest_s=0.01, fallback=fallback), node_of()
    one.start()
    one.know_labels({CHOICE: "shared"})
    one.resolve_on(node)
    assert replicas(one) == 2
    saved = one.saved
    config_map.put()
    asyncio.run(one_look(one))
    for labels in ({CHOICE: "shared"}, {}):
        one.know_labels(labels)
        one.resolve_on(node)
        assert (replicas(one), state(one), one.saved) == (2, PolicyState.LAST_GOOD, saved)
        assert one.report.problems[0].severity == "error"

    after = of_directory(config_map, saved, rest_s=0.01, fallback=fallback)
    after.start()
    after.resolve_on(node)
    assert (replicas(after), state(after)) == (2, PolicyState.LAST_GOOD), (
        "the agent's next pod, before labels"
    )
    after.know_labels({})
    after.resolve_on(node)
    assert (replicas(after), after.saved) == (2, saved)
    config_map.put(default=GOOD)
    asyncio.run(one_look(after))
    after.know_labels({CHOICE: "default"})
    after.resolve_on(node)
    assert (replicas(after), after.report.reason) == (4, PolicyReason.IN_FORCE)


async def one_look(one: PolicyObserver) -> None:
    """Until another policy is chosen."""
    seen = asyncio.Event()
    one.ask = seen.set
    watch = asyncio.create_task(one.watch())
    try:
        await asyncio.wait_for(seen.wait(), 10)
    finally:
        watch.cancel()
        await asyncio.wait([watch])


@pytest.mark.parametrize("awaits_labels", [True, False])
def test_a_config_map_that_is_not_there_yet_is_waited_for(tmp_path: Path, *, awaits_labels: bool) -> None:
    config_map = ConfigMap(tmp_path / "policies")
    config_map.put()
    settings = AgentOptions(policy=config_map.path, awaits_labels=awaits_labels)
    one = PolicyObserver(settings, geometry_of, lambda: None, None, DirectoryChanges())
    one.start()
    one.know_labels({})
    one.resolve_on(node_of())
    assert (replicas(one), one.report.reason) == (None, PolicyReason.NONE_CHOSEN)


def test_without_any_policy_of_before_the_fallback_empty_is_taken(tmp_path: Path) -> None:
    config_map = ConfigMap(tmp_path / "policies")
    config_map.put()
    one = of_directory(config_map, fallback=(Fallback.EMPTY,))
    one.start()
    one.know_labels({})
    one.resolve_on(node_of())
    assert (replicas(one), one.report.reason) == (1, PolicyReason.IN_FORCE)

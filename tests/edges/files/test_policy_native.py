"""Partage's own format: what it says, and every way to say it wrong."""

from __future__ import annotations

import json

import pytest

from partage.edges.files.policy import parse_policy
from partage.errors import InputError, Problem
from partage.model.ids import ResourceName
from partage.model.layout import LayoutItem
from partage.model.policy import (
    AllDevices,
    AllocationPolicy,
    DesiredMig,
    DeviceIdStrategy,
    DeviceListStrategy,
    Drain,
    Exclusive,
    GpuCriteria,
    GpuEntry,
    MemoryUnits,
    MigStrategy,
    Mps,
    Options,
    Policy,
    RemainingGpus,
    SharingClient,
    SparedPods,
    TimeSlicing,
    WatchAction,
)
from partage.model.strategy import Interval, Via
from partage.units import GIB
from tests.edges.files.policy_texts import NATIVE

DESIGN = """
version: partage/v1
gpus:
  - select: {index: [0, 1, 2, 3]}
    mps: {replicas: 4}
  - select: {index: [4, 5]}
    mig: {layout: [3g.40gb, 2g.20gb, 1g.10gb, 1g.10gb], time-slicing: {replicas: 4}}
  - select: {index: [6]}
    name: nvidia.com/gpu.notebooks
    time-slicing: {replicas: 10, interval: short}
  - select: rest
    exclusive: {}
resources:
  {rename-shared: true, fail-requests-greater-than-one: true, mig-strategy: mixed, allocation: distributed}
"""


def problems(text: str) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        parse_policy(text, "p.yaml")
    return list(caught.value.problems)


def only_problem(entry: str) -> Problem:
    """The one problem of a policy with this one entry."""
    (problem,) = problems(f"version: partage/v1\ngpus:\n- {entry}")
    return problem


def entry(text: str) -> GpuEntry:
    (one,) = parse_policy(f"version: partage/v1\ngpus:\n- {text}", "p.yaml").policy.entries
    assert isinstance(one, GpuEntry)
    return one


def test_the_policy_of_the_documentation_means_what_it_says() -> None:
    loaded = parse_policy(DESIGN, "p.yaml")
    layout = tuple(map(LayoutItem.parse, ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")))
    assert loaded.policy == Policy(
        entries=(
            GpuEntry("gpus[0]", GpuCriteria(index=(0, 1, 2, 3)), Mps(4)),
            GpuEntry("gpus[1]", GpuCriteria(index=(4, 5)), TimeSlicing(4), DesiredMig(layout)),
            GpuEntry(
                "gpus[2]",
                GpuCriteria(index=(6,)),
                TimeSlicing(10, Interval.SHORT),
                name=ResourceName("nvidia.com/gpu.notebooks"),
            ),
            GpuEntry("gpus[3]", RemainingGpus(), Exclusive()),
        ),
        options=Options(),
        source="p.yaml",
        format="partage/v1",
    )
    assert loaded.warnings == ()
    assert loaded.text == DESIGN
    assert len(loaded.digest) == 64


def test_every_key_is_read() -> None:
    policy = parse_policy(json.dumps(NATIVE), "p.json").policy
    assert policy.options == Options(
        rename_shared=False,
        fail_requests_greater_than_one=False,
        mig_strategy=MigStrategy.MIXED,
        allocation=AllocationPolicy.PACKED,
        device_list=(DeviceListStrategy.ENVVAR, DeviceListStrategy.CDI_CRI),
        device_ids=DeviceIdStrategy.INDEX,
        device_specs=True,
        driver_root="/run/nvidia/driver",
        dev_root="/run/nvidia/driver",
    )
    second, fifth = policy.entries[1], policy.entries[4]
    assert isinstance(second, GpuEntry)
    assert isinstance(fifth, GpuEntry)
    assert second.select == GpuCriteria(
        index=(2,), uuid=("GPU-x",), model=("A100*",), pci=("00000000:07:00.0",)
    )
    assert second.sharing == Mps(
        2, (SharingClient("big", 8 * GIB, 20), SharingClient("nvidia.com/small", 4 * GIB, None)), protocol=3
    )
    assert (fifth.guard, fifth.watch) == (True, WatchAction.KILL)


def test_nothing_but_a_version_is_a_policy() -> None:
    assert parse_policy("version: partage/v1", "p").policy == Policy(source="p")


def test_all_stands_for_every_gpu() -> None:
    assert entry("{select: all, exclusive: {}}").select == AllDevices()


def test_watch_off_is_a_word_and_no_boolean() -> None:
    assert entry("{select: all, exclusive: {}, watch: off}").watch is WatchAction.OFF


@pytest.mark.parametrize(
    ("change", "drain"),
    [
        ("wait", None),
        ("drain", Drain(600)),
        ("{drain: 30m}", Drain(1800)),
        ("{drain: 5m, also: bare}", Drain(300, (SparedPods.BARE,))),
        ("{drain: 5m, also: [system-critical, bare, bare]}", Drain(300, tuple(SparedPods))),
    ],
)
def test_a_drain_says_how_long_it_lasts_and_whom_else_it_takes(change: str, drain: Drain | None) -> None:
    assert entry(f"{{select: all, exclusive: {{}}, change: {change}}}").drain == drain


def test_equal_clients_need_no_names() -> None:
    one = entry("{select: all, mps: {clients: [{memory: 8Gi}, {memory: 8Gi}, {name: x, memory: 1Gi}]}}")
    assert one.sharing == Mps(
        3, (SharingClient(None, 8 * GIB), SharingClient(None, 8 * GIB), SharingClient("x", GIB))
    )


def test_time_slices_have_clients_and_units_as_mps_has() -> None:
    clients = (SharingClient("big", 8 * GIB), SharingClient("small", None))
    text = "clients: [{name: big, memory: 8Gi}, {name: small}], memory: hard"
    assert entry(f"{{select: all, time-slicing: {{{text}}}}}").sharing == TimeSlicing(
        2, clients=clients, limited=True
    )
    units = MemoryUnits(2 * GIB)
    assert entry("{select: all, time-slicing: {unit: 2Gi, memory: hard}}").sharing == TimeSlicing(
        0, units=units, limited=True
    )
    assert entry("{select: all, time-slicing: {replicas: 2, memory: none}}").sharing == TimeSlicing(2)


def test_a_number_listed_twice_is_a_warning() -> None:
    loaded = parse_policy("version: partage/v1\ngpus: [{select: {index: [1, 1]}, exclusive: {}}]", "p")
    assert [(w.severity, w.path) for w in loaded.warnings] == [("warning", "gpus[0].select.index")]


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("{exclusive: {}}", "gpus[0]", "'select' is missing"),
        ("{select: all}", "gpus[0]", "no strategy"),
        (
            "{select: all, exclusive: {}, mps: {replicas: 2}}",
            "gpus[0]",
            "exclusive and mps exclude each other",
        ),
        ("{select: all, exclusive: {}, color: red}", "gpus[0].color", "unknown key"),
        ("{select: some, exclusive: {}}", "gpus[0].select", "'some' is not a selector"),
        ("{select: {}, exclusive: {}}", "gpus[0].select", "there is no criterion"),
        ("{select: [0], exclusive: {}}", "gpus[0].select", "has to be a mapping, not a list"),
        ("{select: {index: []}, exclusive: {}}", "gpus[0].select.index", "lists nothing"),
        ("{select: {index: -1}, exclusive: {}}", "gpus[0].select.index", "has to be 0 or more, not -1"),
        ("{select: {index: '1'}, exclusive: {}}", "gpus[0].select.index", 'not the text "1"'),
        ("{select: {index: [true]}, exclusive: {}}", "gpus[0].select.index[0]", "a whole number, not true"),
        ("{select: {uuid: MIG-1}, exclusive: {}}", "gpus[0].select.uuid", "is a MIG device"),
        ("{select: {uuid: 1234}, exclusive: {}}", "gpus[0].select.uuid", "has to be text, not 1234"),
        ("{select: {uuid: x}, exclusive: {}}", "gpus[0].select.uuid", "begins with GPU-"),
        ("{select: {pci: '7'}, exclusive: {}}", "gpus[0].select.pci", "not a PCI address"),
        ("{select: {model: ' '}, exclusive: {}}", "gpus[0].select.model", "has to name a product"),
        ("{select: all, exclusive: }", "gpus[0].exclusive", "has no value"),
        ("{select: all, exclusive: true}", "gpus[0].exclusive", "has to be a mapping, not true"),
        ("{select: all, exclusive: {replicas: 2}}", "gpus[0].exclusive.replicas", "unknown key"),
        ("{select: all, time-slicing: {}}", "gpus[0].time-slicing", "neither replicas nor clients nor unit"),
        (
            "{select: all, time-slicing: {replicas: 2, unit: 1Gi}}",
            "gpus[0].time-slicing",
            "replicas and unit exclude each other",
        ),
        (
            "{select: all, time-slicing: {clients: [{}, {threads: 20%}]}}",
            "gpus[0].time-slicing.clients[1].threads",
            "unknown key",
        ),
        (
            "{select: all, time-slicing: {replicas: 2, memory: 8Gi}}",
            "gpus[0].time-slicing.memory",
            "has to be none or hard",
        ),
        ("{select: all, mps: {replicas: 2, memory: hard}}", "gpus[0].mps.memory", "unknown key"),
        (
            "{select: all, mig: {layout: [1g.10gb], time-slicing: {replicas: 2, memory: hard}}}",
            "gpus[0].mig.time-slicing",
            "the driver takes no limits for MIG devices",
        ),
        ("{select: all, time-slicing: {replicas: 1}}", "gpus[0].time-slicing.replicas", "2 or more, not 1"),
        ("{select: all, time-slicing: {replicas: 0}}", "gpus[0].time-slicing.replicas", "2 or more, not 0"),
        ("{select: all, time-slicing: {replicas: -1}}", "gpus[0].time-slicing.replicas", "2 or more, not -1"),
        ("{select: all, time-slicing: {replicas: 4.0}}", "gpus[0].time-slicing.replicas", "not 4.0"),
        ("{select: all, time-slicing: {replicas: '4'}}", "gpus[0].time-slicing.replicas", 'the text "4"'),
        ("{select: all, time-slicing: {replicas: true}}", "gpus[0].time-slicing.replicas", "not true"),
        (
            "{select: all, time-slicing: {replicas: 2, interval: tiny}}",
            "gpus[0].time-slicing.interval",
            "has to be default, short, medium or long",
        ),
        ("{select: all, mps: {}}", "gpus[0].mps", "neither replicas nor clients"),
        ("{select: all, mps: {replicas: 2, clients: [{}, {}]}}", "gpus[0].mps", "exclude each other"),
        ("{select: all, mps: {clients: [{}]}}", "gpus[0].mps.clients", "2 clients or more"),
        ("{select: all, mps: {clients: [{}, {memory: 8}]}}", "gpus[0].mps.clients[1].memory", "such as 8Gi"),
        ("{select: all, mps: {clients: [{}, {memory: 8KB}]}}", "gpus[0].mps.clients[1].memory", "8KB"),
        (
            "{select: all, mps: {clients: [{}, {memory: 1Ki}]}}",
            "gpus[0].mps.clients[1].memory",
            "less than 1Mi",
        ),
        (
            "{select: all, mps: {clients: [{}, {threads: 20}]}}",
            "gpus[0].mps.clients[1].threads",
            "such as 20%",
        ),
        (
            "{select: all, mps: {clients: [{}, {threads: 0%}]}}",
            "gpus[0].mps.clients[1].threads",
            "1% to 100%",
        ),
        (
            "{select: all, mps: {clients: [{}, {name: Big}]}}",
            "gpus[0].mps.clients[1].name",
            "not a resource name",
        ),
        ("{select: all, mps: {replicas: 2, exclusive-process: 1}}", "gpus[0].mps.exclusive-process", "not 1"),
        ("{select: all, mps: {replicas: 2, protocol: 4}}", "gpus[0].mps.protocol", "has to be 2 or 3, not 4"),
        ("{select: all, mps: {replicas: 2, protocol: v3}}", "gpus[0].mps.protocol", "a whole number"),
        (
            "{select: all, mps: {replicas: 2, protocol: 3, users: single}}",
            "gpus[0].mps.users",
            "single excludes protocol 3",
        ),
        ("{select: all, mig: {}}", "gpus[0].mig", "'layout' is missing"),
        ("{select: all, mig: {layout: []}}", "gpus[0].mig.layout", "is empty"),
        ("{select: all, mig: {layout: 1g.10gb}}", "gpus[0].mig.layout", "not the name of a layout"),
        ("{select: all, mig: {layout: all-balancd}}", "gpus[0].mig.layout", "did you mean all-balanced?"),
        ("{select: all, mig: {layout: all-1g}}", "gpus[0].mig.layout", "not the name of a layout"),
        ("{select: all, mig: {layout: 7}}", "gpus[0].mig.layout", "has to be a list"),
        ("{select: all, mig: {layout: [3g]}}", "gpus[0].mig.layout[0]", "not a MIG profile"),
        ("{select: all, mig: {layout: [1g.10gb@x]}}", "gpus[0].mig.layout[0]", "'@' must be followed"),
        (
            "{select: all, mig: {layout: [1g.10gb], mps: {replicas: 2}, time-slicing: {replicas: 2}}}",
            "gpus[0].mig",
            "exclude each other",
        ),
        ("{select: all, exclusive: {}, name: Foo}", "gpus[0].name", "not a resource name"),
        ("{select: all, exclusive: {}, guard: maybe}", "gpus[0].guard", "true or false"),
        ("{select: all, exclusive: {}, guard: yes}", "gpus[0].guard", "true or false"),
        ("{select: all, exclusive: {}, watch: shout}", "gpus[0].watch", "off, warn or kill"),
        ("{select: all, exclusive: {}, change: now}", "gpus[0].change", "has to be wait or drain"),
        ("{select: all, exclusive: {}, change: {drain: 5}}", "gpus[0].change.drain", "10m"),
        ("{select: all, exclusive: {}, change: {drain: 0s}}", "gpus[0].change.drain", "not a time such as"),
        ("{select: all, exclusive: {}, change: {}}", "gpus[0].change", "'drain' is missing"),
        ("{select: all, exclusive: {}, change: {also: bare}}", "gpus[0].change", "'drain' is missing"),
        (
            "{select: all, exclusive: {}, change: {drain: 5m, also: []}}",
            "gpus[0].change.also",
            "names no pods",
        ),
        (
            "{select: all, exclusive: {}, change: {drain: 5m, also: [bear]}}",
            "gpus[0].change.also[0]",
            "has to be bare or system-critical",
        ),
    ],
)
def test_one_fault_is_one_problem_in_its_place(text: str, path: str, said: str) -> None:
    problem = only_problem(text)
    assert (problem.path, problem.severity, problem.file) == (path, "error", "p.yaml")
    assert said in problem.message
    assert problem.message.startswith("line 3: ")


@pytest.mark.parametrize(
    ("entries", "path", "said"),
    [
        ("[{select: all, exclusive: {}}, {select: rest, exclusive: {}}]", "gpus[1]", "all GPUs already"),
        ("[{select: all, exclusive: {}}, {select: all, exclusive: {}}]", "gpus[1]", "all GPUs already"),
        (
            "[{select: {index: 0}, exclusive: {}}, {select: all, exclusive: {}}]",
            "gpus[0]",
            "all GPUs already",
        ),
        (
            "[{select: rest, exclusive: {}}, {select: rest, exclusive: {}}]",
            "gpus[1]",
            "rest is selected by gpus[0]",
        ),
        (
            "[{select: {index: [0, 1]}, exclusive: {}}, {select: {index: 1}, exclusive: {}}]",
            "gpus[1]",
            "index 1 is selected by gpus[0]",
        ),
        (
            "[{select: {pci: 07:00.0}, exclusive: {}}, {select: {pci: 0000:07:00.0}, exclusive: {}}]",
            "gpus[1]",
            "pci 00000000:07:00.0 is selected by gpus[0]",
        ),
    ],
)
def test_a_contradiction_between_entries_needs_no_node_to_be_seen(entries: str, path: str, said: str) -> None:
    (problem,) = problems(f"version: partage/v1\ngpus: {entries}")
    assert problem.path == path
    assert said in problem.message


def test_criteria_that_may_exclude_each_other_are_left_to_the_node() -> None:
    text = (
        "[{select: {index: 0, model: A100}, exclusive: {}}, {select: {index: 0, model: H100}, exclusive: {}}]"
    )
    assert len(parse_policy(f"version: partage/v1\ngpus: {text}", "p").policy.entries) == 2


@pytest.mark.parametrize(
    "clients",
    ["[{memory: 8Gi}, {memory: 4Gi}]", "[{name: a, memory: 8Gi}, {name: a}]", "[{}, {threads: 10%}]"],
)
def test_unequal_clients_need_names_of_their_own(clients: str) -> None:
    problem = only_problem(f"{{select: all, mps: {{clients: {clients}}}}}")
    assert problem.path == "gpus[0].mps.clients[1]"
    assert "differs from gpus[0].mps.clients[0]" in problem.message
    assert "'name'" in problem.hint


def test_a_layout_where_mig_devices_are_not_offered_is_a_contradiction() -> None:
    text = (
        "version: partage/v1\ngpus: [{select: all, mig: {layout: [1g.5gb]}}]\nresources: {mig-strategy: none}"
    )
    (problem,) = problems(text)
    assert "mig-strategy none" in problem.message


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("gpu: []", "did you mean 'gpus'?"),
        ("GPUS: []", "did you mean 'gpus'?"),
        ("rename-shared: true", "'rename-shared' belongs under 'resources', at the top"),
        ("renameShared: true", "'rename-shared' belongs under 'resources', at the top"),
        ("mps: {}", "'mps' belongs under an entry of 'gpus'"),
        ("zzzzzz: 1", "known here: version, gpus, resources"),
    ],
)
def test_an_unknown_key_gets_the_advice_that_helps(written: str, hint: str) -> None:
    (problem,) = problems(f"version: partage/v1\n{written}")
    assert (problem.message, problem.hint) == ("line 2: unknown key", hint)


@pytest.mark.parametrize(
    ("resources", "path", "said"),
    [
        ("", "resources", "has no value"),
        ("{mig-strategy: Mixed}", "resources.mig-strategy", "none, single or mixed"),
        ("{allocation: x}", "resources.allocation", "distributed or packed"),
        ("{device-list-strategy: []}", "resources.device-list-strategy", "at least one"),
        ("{device-list-strategy: [envvar, x]}", "resources.device-list-strategy[1]", "volume-mounts"),
        ("{device-list-strategy: 'envvar,cdi-cri'}", "resources.device-list-strategy", "volume-mounts"),
        ("{device-id-strategy: name}", "resources.device-id-strategy", "uuid or index"),
        ("{driver-root: run}", "resources.driver-root", "absolute path"),
        ("{nvidia-ctk-path: ''}", "resources.nvidia-ctk-path", "absolute path"),
        ("{cdi-annotation-prefix: ''}", "resources.cdi-annotation-prefix", "cdi.k8s.io/"),
        ('{driver-root: "/a\\0b"}', "resources.driver-root", "one line"),
    ],
)
def test_resources_are_checked(resources: str, path: str, said: str) -> None:
    (problem,) = problems(f"version: partage/v1\nresources: {resources}")
    assert problem.path == path
    assert said in problem.message


def test_a_hundred_problems_are_listed_and_the_others_counted() -> None:
    found = problems("version: partage/v1\n" + "".join(f"key{n}: 1\n" for n in range(5000)))
    assert len(found) == 101
    assert found[-1].message == "and 4900 more problems"


def test_a_policy_without_version_is_told_what_is_missing() -> None:
    found = problems("verison: partage/v1\ngpus: []")
    assert [problem.path for problem in found] == ["verison", ""]
    assert found[0].hint == "did you mean 'version'?"
    assert "'version' is missing" in found[1].message


def test_a_version_to_come_is_refused() -> None:
    (problem,) = problems("version: partage/v2")
    assert problem.path == "version"
    assert "has to be partage/v1, not 'partage/v2'" in problem.message


def test_too_many_entries_are_refused_before_they_are_compared() -> None:
    rows = ", ".join(f"{{select: {{index: {n}}}, exclusive: {{}}}}" for n in range(600))
    (problem,) = problems(f"version: partage/v1\ngpus: [{rows}]")
    assert "has 600 items, and at most 512" in problem.message


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("{select: 0, exclusive: {}}", "write select: {index: [0]}"),
        ("{select: 3, exclusive: {}}", "write select: {index: [3]}"),
        ("{select: [0, 1], exclusive: {}}", "write select: {index: [0, 1]}"),
        ("{select: A100, exclusive: {}}", "{model: A100}"),
        ("{select: GPU-1234, exclusive: {}}", "{uuid: GPU-1234}"),
        ("{select: al, exclusive: {}}", "did you mean 'all'?"),
        ("{select: {index: all}, exclusive: {}}", "write select: all"),
        ("{select: {index: 2-4}, exclusive: {}}", "write [2, 3, 4]"),
        ("{select: all, exclusive: true}", "write exclusive: {}"),
        ("{select: all, exclusive: }", "write exclusive: {}"),
        ("{select: all, mig: 3g.20gb}", "write mig: {layout: [3g.20gb]}"),
        ("{select: all, mig: {layout: {3g.40gb: 2}}}", "one item for each MIG device: [3g.40gb, 3g.40gb]"),
        ("{select: all, mps: 8}", "write mps: {replicas: 8}"),
        ("{select: all, time-slicing: 3}", "write time-slicing: {replicas: 3}"),
        ("{select: all, mps: {clients: [{}, {memory: 8}]}}", "write 8Gi"),
        ("{select: all, mps: {clients: [{}, {threads: 30}]}}", "write 30%"),
        ("{select: all, mig: all-balanced}", "write mig: {layout: all-balanced}"),
        ("{select: all, mig: [3g.40gb]}", "write mig: {layout: [3g.40gb]}"),
        ("{select: all, mig: {3g.40gb: 2}}", "known here: layout"),
        ("{select: all, mig: {layout: 3g.20gb}}", "write a list: [3g.20gb]"),
        ("{select: all, mig: {layout: '3g.40gb, 2g.20gb'}}", "write a list: [3g.40gb, 2g.20gb]"),
        ("{select: all, mig: {layout: {3g.40gb: 1, 1g.10gb+me: 1}}}", "[3g.40gb, 1g.10gb+me]"),
        ("{select: all, mig: {layout: [{2g.20gb: 2}, 3g.40gb]}}", "[2g.20gb, 2g.20gb, 3g.40gb]"),
        ("{select: all, mig: {layout: {weird: 1}}}", "[3g.40gb, 3g.40gb]"),
    ],
)
def test_a_shape_that_people_try_is_told_how_it_is_written(entry: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_policy(f"version: partage/v1\ngpus: [{entry}]", "p.yaml")
    assert any(hint in problem.hint for problem in caught.value.problems), caught.value


def test_entries_that_are_no_list_are_told_how_a_list_is_written() -> None:
    with pytest.raises(InputError, match="write each entry as an item: '- select"):
        parse_policy("version: partage/v1\ngpus: {select: all, exclusive: {}}", "p.yaml")


def test_pods_ask_by_claim_where_the_entry_says_so() -> None:
    assert entry("{select: all, via: claims, mps: {unit: 1Gi}}").via is Via.CLAIMS
    assert entry("{select: all, exclusive: {}}").via is Via.DEVICE_PLUGIN


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "{select: all, via: claims, name: nvidia.com/x, exclusive: {}}",
            "by a DeviceClass, not by this name",
        ),
        (
            "{select: all, via: claims, mps: {clients: [{name: a, memory: 8Gi}, {name: b}]}}",
            "one of unequal clients",
        ),
        ("{select: all, via: claims, mig: {layout: [1g.10gb], mps: {replicas: 2}}}", "MIG device as a whole"),
        ("{select: all, via: claim, exclusive: {}}", "has to be device-plugin or claims"),
    ],
)
def test_what_a_claim_cannot_ask_for_is_a_mistake(text: str, said: str) -> None:
    assert said in only_problem(text).message

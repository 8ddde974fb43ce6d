"""mig-parted's files: accepted unchanged, refused as strictly as mig-parted refuses them."""

from __future__ import annotations

import json

import pytest

from partage.edges.files.policy import parse_policy
from partage.errors import InputError, Problem
from partage.model.layout import LayoutItem
from partage.model.policy import AllDevices, DesiredMig, GpuCriteria, GpuEntry, Options, Policy
from tests.edges.files.policy_texts import MIG_PARTED


def problems(text: str, config: str | None = None) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        parse_policy(text, "m.yaml", config)
    return list(caught.value.problems)


def of_entry(entry: str) -> list[Problem]:
    return problems(f"version: v1\nmig-configs: {{c: [{entry}]}}")


def test_a_named_configuration_is_read() -> None:
    policy = parse_policy(json.dumps(MIG_PARTED), "m.json", "mixed").policy
    wanted = tuple(map(LayoutItem.parse, ("1g.10gb", "1g.10gb", "1c.3g.40gb")))
    assert policy == Policy(
        entries=(
            GpuEntry(
                "mig-configs.mixed[0]",
                GpuCriteria(index=(0, 1), device_filter=("0x20b010de", "0x233010de:0x16c110de")),
                mig=DesiredMig(wanted),
            ),
            GpuEntry(
                "mig-configs.mixed[1]",
                GpuCriteria(index=(2,), device_filter=("0x20b210de",)),
                mig=DesiredMig(()),
            ),
        ),
        options=Options(),
        source="m.json",
        format="mig-parted/v1",
        later_wins=True,
    )


def test_the_only_configuration_needs_no_name() -> None:
    text = "version: v1\nmig-configs: {all-disabled: [{devices: all, mig-enabled: false}]}"
    (entry,) = parse_policy(text, "m").policy.entries
    assert entry == GpuEntry("mig-configs.all-disabled[0]", AllDevices(), mig=DesiredMig(enabled=False))
    assert parse_policy(text, "m", "all-disabled").policy.entries == (entry,)


def test_several_configurations_need_a_name_and_are_listed() -> None:
    (problem,) = problems(json.dumps(MIG_PARTED))
    assert "holds 2 configurations" in problem.message
    assert problem.hint == "--config takes one of: all-disabled, mixed"


def test_an_unknown_name_gets_the_nearest() -> None:
    (problem,) = problems(json.dumps(MIG_PARTED), "all-disable")
    assert problem.hint == "did you mean 'all-disabled'? it has: all-disabled, mixed"


def test_a_name_for_a_file_without_configurations_is_refused() -> None:
    (problem,) = problems("version: partage/v1", "mixed")
    assert "no configuration 'mixed'" in problem.message


def test_faults_of_configurations_that_are_not_chosen_count() -> None:
    text = "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}], b: []}"
    (problem,) = problems(text, "a")
    assert problem.path == "mig-configs.b"


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("mig-configs: {c: [{devices: all, mig-enabled: false}]}", "", "'version' is missing"),
        ("version: v1\nmig-configs: {}", "mig-configs", "is empty"),
        ("version: v1\nmig-configs: {c: []}", "mig-configs.c", "is empty"),
        ("version: v1\nmig-configs: {c: {}}", "mig-configs.c", "has to be a list"),
        ("version: v1\nmig-configs: []", "mig-configs", "has to be a mapping"),
        (
            "version: v1\nsharing: {}\nmig-configs: {c: [{devices: all, mig-enabled: false}]}",
            "sharing",
            "unknown key",
        ),
    ],
)
def test_the_frame_is_strict(text: str, path: str, said: str) -> None:
    (problem,) = problems(text)
    assert problem.path == path
    assert said in problem.message


@pytest.mark.parametrize(
    ("entry", "path", "said"),
    [
        ("{mig-enabled: false}", "", "'devices' is missing"),
        ("{devices: all}", "", "'mig-enabled' is missing"),
        ("{devices: all, mig-enabled: true}", "", "'mig-devices' is missing"),
        ("{devices: all, mig-enabled: yes}", ".mig-enabled", "true or false"),
        ("{devices: some, mig-enabled: false}", ".devices", "all or a list"),
        ("{devices: [], mig-enabled: false}", ".devices", "lists no GPU"),
        ("{devices: ['0'], mig-enabled: false}", ".devices[0]", "whole number"),
        ("{devices: 0, mig-enabled: false}", ".devices", "all or a list"),
        (
            "{devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}}",
            ".mig-devices",
            "mig-enabled is false",
        ),
        ("{devices: all, mig-enabled: true, mig-devices: {1g: 1}}", ".mig-devices.1g", "not a MIG profile"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}}", '.mig-devices["1g.5gb"]', "not -1"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: '1'}}", '.mig-devices["1g.5gb"]', "number"),
        (
            "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}}",
            ".mig-devices",
            "asks for no MIG device",
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 10000000}}",
            '.mig-devices["1g.5gb"]',
            "10000000 MIG devices on one GPU",
        ),
        ("{devices: all, mig-enabled: true, mig-devices: [1g.5gb]}", ".mig-devices", "has to be a mapping"),
        (
            "{devices: all, mig-enabled: false, device-filter: [0x20B010DE]}",
            ".device-filter[0]",
            "has to be text",
        ),
        ("{devices: all, mig-enabled: false, extra: 1}", ".extra", "unknown key"),
    ],
)
def test_an_entry_is_strict(entry: str, path: str, said: str) -> None:
    (problem,) = of_entry(entry)
    assert problem.path == f"mig-configs.c[0]{path}"
    assert said in problem.message


ONLY_THIS_BOARD = "0x233010de:0x16c110de"


@pytest.mark.parametrize(
    ("filters", "selected"),
    [
        ('"0x233010DE"', "0x233010de"),
        ('"0X233010de"', "0x233010de"),
        ('"0x2330_10DE"', "0x233010de"),
        ('"0x0233010DE"', "0x233010de"),
        ('"590352606"', "0x233010de"),
        ('"04314010336"', "0x233010de"),
        ('"0b100011001100000001000011011110"', "0x233010de"),
        ('"0x233010DE:0x16C110DE"', ONLY_THIS_BOARD),
        ('"0x233010DE:381751518"', ONLY_THIS_BOARD),
        ('""', None),
        ("null", None),
        ("[]", None),
    ],
)
def test_a_filter_selects_the_boards_that_mig_parted_selects(filters: str, selected: str | None) -> None:
    """Each was tried with nvidia-mig-parted 0.15.0, on one PCI device 0x2330 of board 0x16c1."""
    loaded = parse_policy(
        f"version: v1\nmig-configs: {{c: [{{devices: all, device-filter: {filters}, mig-enabled: false}}]}}",
        "m.yaml",
    )
    (entry,) = loaded.policy.entries
    assert isinstance(entry, GpuEntry)
    assert entry.select == (GpuCriteria(device_filter=(selected,)) if selected else AllDevices())
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    "text",
    [
        "MODEL",
        "H100-SXM5-80GB",
        "",
        " 0x233010DE",
        "0x233010DE:MODEL",
        "0x233010DE:0x16C110DE:0",
        "0x1233010DE",
        "1e3",
    ],
)
def test_a_filter_that_is_no_device_id_is_read_and_matches_nothing_as_in_mig_parted(text: str) -> None:
    """nvidia-mig-parted 0.15.0 passes over every GPU, and both its apply and its assert end with 0."""
    loaded = parse_policy(
        "version: v1\nmig-configs:\n"
        f"  c: [{{devices: all, mig-enabled: false, device-filter: [{json.dumps(text)}, '0x20B010DE']}}]",
        "m.yaml",
    )
    (entry,) = loaded.policy.entries
    assert isinstance(entry, GpuEntry)
    assert entry.select == GpuCriteria(device_filter=(text, "0x20b010de"))
    (warning,) = loaded.warnings
    assert (warning.path, warning.severity) == ("mig-configs.c[0].device-filter[0]", "warning")
    assert warning.message.startswith(f"line 3: {text!r} is no PCI device id")
    assert "it selects no GPU" in warning.message
    assert "select: {model: ...}" in warning.hint

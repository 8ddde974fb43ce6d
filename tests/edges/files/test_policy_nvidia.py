"""NVIDIA's format: the same verdicts as NVIDIA's plugin, and what it throws away honoured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.edges.files.policy import built_in, parse_policy
from partage.errors import InputError, Problem
from partage.model.ids import ResourceName
from partage.model.policy import (
    AllDevices,
    AllocationPolicy,
    DeviceIdStrategy,
    DeviceListStrategy,
    ListedDevices,
    LowestIndexes,
    MigStrategy,
    Mps,
    NamePattern,
    Options,
    ResourceEntry,
    TimeSlicing,
)
from tests.edges.files.policy_texts import NVIDIA

GOLDEN = Path(__file__).parents[2] / "golden" / "device-plugin"
GPU = ResourceName("nvidia.com/gpu")
DEVIATIONS = {"ts-and-mps"}
"""What NVIDIA's plugin takes and we refuse: docs/adr/0005."""


def problems(document: Any, env: dict[str, str] | None = None) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        parse_policy(json.dumps(document), "n.yaml", env=env)
    return list(caught.value.problems)


def sharing(kind: str = "timeSlicing", **item: Any) -> dict[str, Any]:
    whole = {"name": "nvidia.com/gpu", "replicas": 4, **item}
    return {"version": "v1", "sharing": {kind: {"resources": [whole]}}}


def recorded() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{file.stem}-{name}", case)
        for file in sorted(GOLDEN.glob("*.json"))
        for name, case in json.loads(file.read_text())["cases"].items()
    ]


@pytest.mark.parametrize("case", [case for _, case in recorded()], ids=[name for name, _ in recorded()])
def test_the_verdict_is_that_of_nvidias_plugin(case: dict[str, Any], request: pytest.FixtureRequest) -> None:
    deviates = any(request.node.callspec.id.endswith(name) for name in DEVIATIONS)
    if case["exit"] is None and not deviates:
        assert parse_policy(json.dumps(case["config"]), "n", env=case["env"]).policy.format == "nvidia/v1"
    else:
        problems(case["config"], case["env"])


def test_the_defaults_are_nvidias() -> None:
    policy = parse_policy("version: v1", "n").policy
    assert policy.options == Options(
        rename_shared=False, fail_requests_greater_than_one=False, mig_strategy=MigStrategy.NONE
    )
    assert policy.entries == ()


def test_every_key_is_read() -> None:
    policy = parse_policy(json.dumps(NVIDIA), "n").policy
    assert policy.options == Options(
        rename_shared=False,
        fail_requests_greater_than_one=False,
        mig_strategy=MigStrategy.SINGLE,
        allocation=AllocationPolicy.PACKED,
        device_list=(DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS),
        device_ids=DeviceIdStrategy.INDEX,
        device_specs=True,
        cdi_annotation_prefix="cdi.example/",
        nvidia_ctk="/opt/nvidia-ctk",
        driver_root="/run/nvidia/driver",
        dev_root="/run/dev",
        gdrcopy=True,
        gds=True,
        mofed=True,
        imex_channels=(0,),
        fail_on_init_error=False,
        gpu_names=(NamePattern("*A100*", ResourceName("nvidia.com/a100")),),
        mig_names=(NamePattern("1g.*", ResourceName("nvidia.com/small")),),
    )
    time_sliced = "sharing.timeSlicing.resources"
    assert policy.entries == (
        ResourceEntry(
            f"{time_sliced}[0]",
            GPU,
            ListedDevices(index=(0, 1), mig_index=((0, 1),), uuid=("GPU-x", "MIG-y")),
            TimeSlicing(4),
            shared_suffix=True,
            fail_requests_greater_than_one=True,
        ),
        ResourceEntry(
            f"{time_sliced}[1]",
            GPU,
            ListedDevices(index=(5,)),
            TimeSlicing(2),
            rename=ResourceName("nvidia.com/gpu.two"),
            shared_suffix=True,
            fail_requests_greater_than_one=True,
        ),
        ResourceEntry(
            f"{time_sliced}[2]",
            ResourceName("nvidia.com/a100"),
            LowestIndexes(2),
            TimeSlicing(3),
            shared_suffix=True,
            fail_requests_greater_than_one=True,
        ),
        ResourceEntry("sharing.mps.resources[0]", ResourceName("nvidia.com/small"), AllDevices(), Mps(2)),
    )


def test_a_request_for_several_shares_is_refused_by_default_under_mps_only() -> None:
    def fails(kind: str) -> bool:
        (entry,) = parse_policy(json.dumps(sharing(kind)), "n").policy.entries
        assert isinstance(entry, ResourceEntry)
        return entry.fail_requests_greater_than_one

    assert (fails("timeSlicing"), fails("mps")) == (False, True)


def test_keys_match_in_any_case_where_gos_decoder_matches_them() -> None:
    text = (
        "VERSION: v1\nFlags: {MIGSTRATEGY: mixed}\n"
        "Sharing: {timeslicing: {renameByDefault: yes, resources: [{name: gpu, replicas: 2}]}}"
    )
    loaded = parse_policy(text, "n")
    (entry,) = loaded.policy.entries
    assert isinstance(entry, ResourceEntry)
    assert (entry.resource, entry.shared_suffix, loaded.warnings) == (GPU, True, ())
    assert loaded.policy.options.mig_strategy is MigStrategy.MIXED


@pytest.mark.parametrize("key", ["renamebydefault", "FailRequestsGreaterThanOne"])
def test_a_switch_of_sharing_in_the_wrong_case_has_no_effect_and_is_named(key: str) -> None:
    """NVIDIA's plugin looks these up by their exact names: honoured, they would change names and answers."""
    document = sharing()
    document["sharing"]["timeSlicing"][key] = True
    loaded = parse_policy(json.dumps(document), "n")
    (entry,) = loaded.policy.entries
    assert isinstance(entry, ResourceEntry)
    assert (entry.shared_suffix, entry.fail_requests_greater_than_one) == (False, False)
    (warning,) = loaded.warnings
    assert warning.path == f"sharing.timeSlicing.{key}"
    assert warning.hint.casefold() == f"did you mean '{key}'?".casefold()


@pytest.mark.parametrize(
    ("document", "missing"),
    [
        (
            {"sharing": {"timeSlicing": {"Resources": [{"name": "gpu", "replicas": 2}]}}},
            "no resources specified",
        ),
        ({"sharing": {"mps": {"resources": [{"Name": "gpu", "replicas": 2}]}}}, "'name' is missing"),
        ({"sharing": {"mps": {"resources": [{"name": "gpu", "REPLICAS": 2}]}}}, "'replicas' is missing"),
        ({"resources": {"gpus": [{"Pattern": "*", "name": "gpu"}]}}, "'pattern' is missing"),
    ],
)
def test_what_sharing_needs_is_missing_in_the_wrong_case(document: dict[str, Any], missing: str) -> None:
    errors = [problem for problem in problems({"version": "v1", **document}) if problem.severity == "error"]
    assert [problem.message.rpartition(": ")[2] for problem in errors] == [missing]


def test_a_whole_number_may_have_a_point() -> None:
    text = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4.0, devices: [0.0, 1]}]}}"
    loaded = parse_policy(text, "n")
    (entry,) = loaded.policy.entries
    assert isinstance(entry, ResourceEntry)
    assert (entry.sharing, entry.devices) == (TimeSlicing(4), ListedDevices((0, 1)))
    assert [warning.message.rpartition(": ")[2] for warning in loaded.warnings] == [
        "4.0 is read as 4",
        "0.0 is read as 0",
    ]
    (problem,) = problems(sharing(replicas=2.5))
    assert "whole number" in problem.message


def test_the_last_of_two_equal_keys_counts_with_a_warning() -> None:
    loaded = parse_policy("version: v1\nflags:\n  migStrategy: single\n  migStrategy: mixed\n", "n")
    assert loaded.policy.options.mig_strategy is MigStrategy.MIXED
    (warning,) = loaded.warnings
    assert (warning.severity, warning.path) == ("warning", "flags")
    assert (
        "line 4, column 3: duplicate key 'migStrategy', first on line 3; the last one counts"
        in warning.message
    )


@pytest.mark.parametrize(
    "text", ["version: partage/v1\nresources: {}\nresources: {}", "mig-configs: {a: [], a: []}"]
)
def test_other_formats_refuse_equal_keys(text: str) -> None:
    with pytest.raises(InputError, match="duplicate key"):
        parse_policy(text, "n")


@pytest.mark.parametrize("flags", [("migStrategy", "MIGSTRATEGY"), ("MIGSTRATEGY", "migStrategy")])
def test_of_a_key_in_two_spellings_the_last_in_the_alphabet_counts_with_a_warning(
    flags: tuple[str, str],
) -> None:
    """Go's decoder reads keys in that order, whatever the order of the file."""
    written = {key: "single" if key.isupper() else "mixed" for key in flags}
    loaded = parse_policy(json.dumps({"Version": "v2", "version": "v1", "flags": written}), "n")
    assert loaded.policy.options.mig_strategy is MigStrategy.MIXED
    assert ["flags.migStrategy counts" in warning.message for warning in loaded.warnings] == [False, True]


def test_a_mapping_in_two_spellings_is_refused() -> None:
    (problem,) = problems({"version": "v1", "flags": {}, "Flags": {}})
    assert "stands here twice" in problem.message


@pytest.mark.parametrize(
    ("document", "path", "hint"),
    [
        ({"flags": {"migStrategyy": "x"}}, "flags.migStrategyy", "did you mean 'migStrategy'?"),
        (
            {"flags": {"renameByDefault": True}},
            "flags.renameByDefault",
            "'renameByDefault' belongs under sharing.timeSlicing or sharing.mps",
        ),
        (
            {"flags": {"deviceListStrategy": "envvar"}},
            "flags.deviceListStrategy",
            "'deviceListStrategy' belongs under flags.plugin",
        ),
    ],
)
def test_an_unknown_key_is_a_warning_with_advice(document: dict[str, Any], path: str, hint: str) -> None:
    (warning,) = parse_policy(json.dumps({"version": "v1", **document}), "n").warnings
    assert (warning.severity, warning.path, warning.hint) == ("warning", path, hint)


@pytest.mark.parametrize("version", ['version: ""', "version:", ""])
def test_a_missing_version_is_v1_where_the_keys_are_nvidias(version: str) -> None:
    assert parse_policy(f"{version}\nflags: {{migStrategy: mixed}}", "n").policy.format == "nvidia/v1"


@pytest.mark.parametrize(
    ("env", "option", "value"),
    [
        ({"MIG_STRATEGY": "mixed"}, "mig_strategy", MigStrategy.MIXED),
        ({"SHARED_DEVICES_ALLOCATION_POLICY": "distributed"}, "allocation", AllocationPolicy.DISTRIBUTED),
        (
            {"DEVICE_LIST_STRATEGY": "cdi-cri, envvar"},
            "device_list",
            (DeviceListStrategy.CDI_CRI, DeviceListStrategy.ENVVAR),
        ),
        ({"DEVICE_ID_STRATEGY": "uuid"}, "device_ids", DeviceIdStrategy.UUID),
        ({"PASS_DEVICE_SPECS": "0"}, "device_specs", False),
        ({"FAIL_ON_INIT_ERROR": "t"}, "fail_on_init_error", True),
        ({"NVIDIA_DRIVER_ROOT": "/d"}, "driver_root", "/d"),
        ({"NVIDIA_DEV_ROOT": "/d"}, "dev_root", "/d"),
        ({"CDI_ANNOTATION_PREFIX": "x/"}, "cdi_annotation_prefix", "x/"),
        ({"NVIDIA_CTK_PATH": "/b"}, "nvidia_ctk", "/b"),
        ({"NVIDIA_CTK_PATH": "/b", "NVIDIA_CDI_HOOK_PATH": "/a"}, "nvidia_ctk", "/a"),
        ({"GDRCOPY_ENABLED": "false"}, "gdrcopy", False),
        ({"GDS_ENABLED": "F"}, "gds", False),
        ({"MOFED_ENABLED": "False"}, "mofed", False),
        ({"IMEX_CHANNEL_IDS": "0"}, "imex_channels", (0,)),
        ({"IMEX_REQUIRED": "true"}, "imex_required", True),
        ({"MIG_STRATEGY": ""}, "mig_strategy", MigStrategy.SINGLE),
        ({"UNRELATED": "x"}, "mig_strategy", MigStrategy.SINGLE),
    ],
)
def test_a_variable_outranks_the_file_and_the_file_the_default(
    env: dict[str, str], option: str, value: object
) -> None:
    without_mps = {**NVIDIA, "sharing": {}}
    options = parse_policy(json.dumps(without_mps), "n", env=env).policy.options
    assert getattr(options, option) == value


@pytest.mark.parametrize("name", ["DEVICE_ID_STRATEGY", "GDS_ENABLED", "MPS_ROOT"])
def test_an_empty_variable_counts_as_not_set_and_is_named(name: str) -> None:
    loaded = parse_policy("version: v1", "n", env={name: ""})
    assert loaded.policy.options == parse_policy("version: v1", "n").policy.options
    (warning,) = loaded.warnings
    assert (warning.file, warning.path) == ("environment", name)


def test_without_a_file_variables_mean_what_they_mean_to_nvidias_plugin() -> None:
    env = {"DEVICE_LIST_STRATEGY": "volume-mounts", "MIG_STRATEGY": "single", "PATH": "/bin"}
    alone = built_in(env)
    assert alone.policy.options == parse_policy("version: v1", "n", env=env).policy.options
    assert alone.policy.options.device_list == (DeviceListStrategy.VOLUME_MOUNTS,)
    assert (alone.policy.source, alone.text, alone.warnings) == ("environment", "", ())


@pytest.mark.parametrize(
    ("case", "env"),
    [
        ("none-volume", {"DEVICE_LIST_STRATEGY": "volume-mounts"}),
        ("none-index", {"DEVICE_ID_STRATEGY": "index"}),
        ("none-specs", {"PASS_DEVICE_SPECS": "true"}),
        ("mig-mixed-nomig", {"MIG_STRATEGY": "mixed"}),
    ],
)
def test_a_variable_without_a_file_is_the_flag_of_the_recorded_file(case: str, env: dict[str, str]) -> None:
    (config,) = (found["config"] for name, found in recorded() if name == f"h100-{case}")
    recorded_policy = parse_policy(json.dumps(config), "n").policy
    assert built_in(env).policy.options == recorded_policy.options != Options()
    assert built_in(env).policy.entries == recorded_policy.entries == ()


def test_without_a_file_a_wrong_variable_is_an_error() -> None:
    with pytest.raises(InputError, match="MIG_STRATEGY"):
        built_in({"MIG_STRATEGY": "sometimes"})


@pytest.mark.parametrize(
    ("env", "path"), [({"PASS_DEVICE_SPECS": "true"}, ""), ({"CONFIG_FILE": "/config.yaml"}, "CONFIG_FILE")]
)
def test_without_a_file_what_is_easily_missed_is_named(env: dict[str, str], path: str) -> None:
    """One variable brings NVIDIA's strategy for MIG; and no variable names a file."""
    (warning,) = built_in(env).warnings
    assert (warning.file, warning.path) == ("environment", path)


def test_variables_do_not_reach_the_other_formats() -> None:
    env = {"MIG_STRATEGY": "nonsense"}
    assert parse_policy("version: partage/v1", "p", env=env).policy.options.mig_strategy is MigStrategy.MIXED


def test_a_variable_mends_a_value_that_is_wrong_in_the_file_but_not_its_type() -> None:
    loaded = parse_policy("version: v1\nflags: {migStrategy: x}", "n", env={"MIG_STRATEGY": "single"})
    assert loaded.policy.options.mig_strategy is MigStrategy.SINGLE
    (problem,) = problems({"version": "v1", "flags": {"migStrategy": 4}}, {"MIG_STRATEGY": "single"})
    assert problem.path == "flags.migStrategy"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MIG_STRATEGY", "x", "none, single or mixed"),
        ("FAIL_ON_INIT_ERROR", "yes", "true or false"),
        ("DEVICE_LIST_STRATEGY", "envvar,x", "volume-mounts"),
        ("IMEX_CHANNEL_IDS", "1", "must be [] or [0]"),
        ("IMEX_CHANNEL_IDS", "a", "whole number"),
        ("SHARED_DEVICES_ALLOCATION_POLICY", "x", "distributed or packed"),
        ("DEVICE_DISCOVERY_STRATEGY", "vfio", "auto, nvml or tegra"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, said: str) -> None:
    (problem,) = problems({"version": "v1"}, {name: value})
    assert (problem.file, problem.path.partition("[")[0]) == ("environment", name)
    assert said in problem.message


def test_the_dev_root_follows_the_driver_root() -> None:
    options = parse_policy("version: v1", "n", env={"NVIDIA_DRIVER_ROOT": "/d"}).policy.options
    assert (options.driver_root, options.dev_root) == ("/d", "/d")


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ({"migStrategy": "sometimes"}, "flags.migStrategy"),
        ({"failOnInitError": "true"}, "flags.failOnInitError"),
        ({"deviceDiscoveryStrategy": "vfio"}, "flags.deviceDiscoveryStrategy"),
        ({"plugin": {"deviceListStrategy": "x"}}, "flags.plugin.deviceListStrategy"),
        ({"plugin": {"deviceListStrategy": ["x"]}}, "flags.plugin.deviceListStrategy[0]"),
        ({"plugin": {"deviceListStrategy": 4}}, "flags.plugin.deviceListStrategy"),
        ({"plugin": {"deviceIDStrategy": "name"}}, "flags.plugin.deviceIDStrategy"),
        ({"plugin": {"sharedDevicesAllocationPolicy": "x"}}, "flags.plugin.sharedDevicesAllocationPolicy"),
        ({"plugin": {"passDeviceSpecs": 1}}, "flags.plugin.passDeviceSpecs"),
        ({"plugin": []}, "flags.plugin"),
        ({"gfd": {"sleepInterval": "60"}}, "flags.gfd.sleepInterval"),
        ({"gfd": {"sleepInterval": [1]}}, "flags.gfd.sleepInterval"),
        ({"gfd": {"oneshot": "no"}}, "flags.gfd.oneshot"),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, Any], path: str) -> None:
    (problem,) = problems({"version": "v1", "flags": flags})
    assert problem.path == path


def test_a_list_in_one_string_gets_the_advice_to_write_a_list() -> None:
    found = problems({"version": "v1", "flags": {"plugin": {"deviceListStrategy": "envvar,cdi-cri"}}})
    assert "write a list: [envvar, cdi-cri]" in [problem.hint for problem in found]


@pytest.mark.parametrize(
    "interval", ["60s", "1h30m", "1.5h", "infinite", 60_000_000_000, "0", "-1s", "100ms"]
)
def test_durations_are_gos(interval: object) -> None:
    document = {"version": "v1", "flags": {"gfd": {"sleepInterval": interval}}}
    assert parse_policy(json.dumps(document), "n").warnings == ()


@pytest.mark.parametrize(
    ("document", "path", "said"),
    [
        (sharing(replicas=1), ".resources[0].replicas", "2 or more, not 1"),
        (sharing(replicas=0), ".resources[0].replicas", "2 or more, not 0"),
        (sharing(replicas=-1), ".resources[0].replicas", "2 or more, not -1"),
        (sharing(replicas="4"), ".resources[0].replicas", "whole number"),
        (sharing(replicas=None), ".resources[0]", "'replicas' is missing"),
        (sharing(name=None), ".resources[0]", "'name' is missing"),
        (sharing(name="foo.com/x"), ".resources[0].name", "not in nvidia.com"),
        (sharing(name="GPU"), ".resources[0].name", "not a resource name"),
        (sharing(name="x" * 60), ".resources[0].name", "longer than 63"),
        (sharing(rename="GPU"), ".resources[0].rename", "not a resource name"),
        (sharing(devices="some"), ".resources[0].devices", "unrecognized devices"),
        (sharing(devices=0), ".resources[0].devices", "a count of devices must be > 0"),
        (sharing(devices=-1), ".resources[0].devices", "a count of devices must be > 0"),
        (sharing(devices=2.5), ".resources[0].devices", "unrecognized devices"),
        (sharing(devices=True), ".resources[0].devices", "unrecognized devices"),
        (sharing(devices=None), ".resources[0].devices", "unrecognized devices"),
        (sharing(devices={}), ".resources[0].devices", "unrecognized devices"),
        (sharing(devices=[-1]), ".resources[0].devices[0]", "unsupported device"),
        (sharing(devices=["a"]), ".resources[0].devices[0]", "unsupported device"),
        (sharing(devices=["0:"]), ".resources[0].devices[0]", "unsupported device"),
        (sharing(devices=["0:1:2"]), ".resources[0].devices[0]", "unsupported device"),
        (sharing(devices=[True]), ".resources[0].devices[0]", "unsupported device"),
        (sharing(devices=[[0]]), ".resources[0].devices[0]", "unsupported device"),
        ({"sharing": {"timeSlicing": None}}, "", "no resources specified"),
        ({"sharing": {"timeSlicing": {}}}, "", "no resources specified"),
        ({"sharing": {"timeSlicing": {"resources": []}}}, ".resources", "no resources specified"),
        ({"sharing": {"timeSlicing": {"resources": {}}}}, ".resources", "has to be a list"),
        ({"sharing": {"timeSlicing": {"resources": [None]}}}, ".resources[0]", "has to be a mapping"),
    ],
)
def test_wrong_sharing_is_refused(document: dict[str, Any], path: str, said: str) -> None:
    (problem,) = problems({"version": "v1", **document})
    assert problem.path == f"sharing.timeSlicing{path}"
    assert said in problem.message


def test_mps_of_null_is_no_mps() -> None:
    assert parse_policy("version: v1\nsharing: {mps: null}", "n").policy.entries == ()


def test_a_name_that_the_suffix_makes_too_long_is_refused() -> None:
    document = sharing(name="x" * 50)
    document["sharing"]["timeSlicing"]["renameByDefault"] = True
    (problem,) = problems(document)
    assert "with .shared it is longer than 63" in problem.message


def test_mps_with_mig_strategy_mixed_is_refused_wherever_the_strategy_comes_from() -> None:
    for document, env in (
        ({**sharing("mps"), "flags": {"migStrategy": "mixed"}}, {}),
        (sharing("mps"), {"MIG_STRATEGY": "mixed"}),
    ):
        errors = [problem for problem in problems(document, env) if problem.severity == "error"]
        assert ["not supported with MPS" in problem.message for problem in errors] == [True]


def test_mps_without_its_root_is_a_warning_because_our_directories_are_our_own() -> None:
    (warning,) = parse_policy(json.dumps(sharing("mps")), "n").warnings
    assert "--run-dir" in warning.hint
    assert parse_policy(json.dumps(sharing("mps")), "n", env={"MPS_ROOT": "/run/nvidia/mps"}).warnings == ()


def both(time_slicing: Any, mps: Any) -> dict[str, Any]:
    """Time-slicing and MPS in one file, for these devices."""
    return {
        "version": "v1",
        "flags": {"mpsRoot": "/r"},
        "sharing": {
            "timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": time_slicing}]},
            "mps": {"resources": [{"name": "gpu", "replicas": 2, "devices": mps}]},
        },
    }


@pytest.mark.parametrize(
    ("time_slicing", "mps"),
    [
        ("all", "all"),
        ("all", [0]),
        ([0], "all"),
        (2, 2),
        ([1], 2),
        (2, [1]),
        ([0], [1, 0]),
        (["GPU-a"], ["GPU-a"]),
    ],
)
def test_time_slicing_and_mps_for_one_gpu_is_an_error(time_slicing: object, mps: object) -> None:
    (problem,) = problems(both(time_slicing, mps))
    assert problem.path == "sharing.mps.resources[0]"
    assert "one GPU cannot be shared by time-slicing and MPS" in problem.message


@pytest.mark.parametrize(("time_slicing", "mps"), [([0], [1]), (2, [2, 3]), ([0], ["GPU-a"]), (["0:1"], [0])])
def test_time_slicing_and_mps_for_different_gpus_is_fine(time_slicing: object, mps: object) -> None:
    assert len(parse_policy(json.dumps(both(time_slicing, mps)), "n").policy.entries) == 2


def items(*rows: object) -> dict[str, Any]:
    return {"version": "v1", "sharing": {"timeSlicing": {"resources": list(rows)}}}


@pytest.mark.parametrize("numbers", [(2, 4), (4, 2), (4, 4), (2, 4, 3)])
def test_of_two_items_for_one_resource_the_larger_number_counts(numbers: tuple[int, ...]) -> None:
    """NVIDIA's plugin makes the ids of both, and equal ones are one."""
    loaded = parse_policy(json.dumps(items(*({"name": "gpu", "replicas": n} for n in numbers))), "n")
    (entry,) = loaded.policy.entries
    assert isinstance(entry, ResourceEntry)
    assert entry.sharing == TimeSlicing(4)
    assert [warning.path for warning in loaded.warnings] == [
        f"sharing.timeSlicing.resources[{n}]" for n in range(1, len(numbers))
    ]


def test_two_items_for_one_listed_device_are_an_error_and_for_two_resources_are_not() -> None:
    one = {"name": "gpu", "replicas": 2, "devices": [0]}
    other = {"name": "mig-1g.10gb", "replicas": 3}
    (problem,) = problems(items(one, {**one, "replicas": 3}))
    assert "one device has one sharing" in problem.message
    assert len(parse_policy(json.dumps(items(one, other)), "n").policy.entries) == 2


def test_mps_shares_for_one_container_come_from_one_gpu_and_that_is_said() -> None:
    document = sharing("mps")
    document["sharing"]["mps"]["failRequestsGreaterThanOne"] = False
    (warning,) = parse_policy(json.dumps(document), "n", env={"MPS_ROOT": "/r"}).warnings
    assert warning.path == "sharing.mps.failRequestsGreaterThanOne"
    assert "MPS shares of one GPU only" in warning.message


@pytest.mark.parametrize(
    ("resources", "path"),
    [
        ({"gpus": [{"name": "a"}]}, "resources.gpus[0]"),
        ({"gpus": [{"pattern": "a"}]}, "resources.gpus[0]"),
        ({"mig": [{"pattern": "a", "name": "a/b"}]}, "resources.mig[0].name"),
        ({"mig": {}}, "resources.mig"),
    ],
)
def test_wrong_patterns_are_refused(resources: object, path: str) -> None:
    (problem,) = problems({"version": "v1", "resources": resources})
    assert problem.path == path


@pytest.mark.parametrize("channels", [[1], [0, 0], ["0"], 0, [0, 1]])
def test_imex_channels_are_none_or_zero(channels: object) -> None:
    (problem,) = problems({"version": "v1", "imex": {"channelIDs": channels}})
    assert problem.path.startswith("imex.channelIDs")


_SELECTORS = (
    st.just("all")
    | st.integers(1, 4)
    | st.lists(st.integers(0, 5) | st.sampled_from(["0:0", "1:0", "GPU-a", "GPU-b"]), max_size=3)
)


def _named(devices: Any) -> set[object]:
    """The devices of a node of six GPUs that an item certainly means."""
    if devices == "all":
        return {*range(6), "0:0", "1:0", "GPU-a", "GPU-b"}
    return set(range(devices)) if isinstance(devices, int) else set(devices)


@given(st.lists(_SELECTORS, min_size=2, max_size=5))
def test_overlaps_are_found_without_a_node_exactly_where_they_are_certain(selectors: list[Any]) -> None:
    """Items for all devices are taken together, so that only the first of them overlaps with others."""
    rows = [{"name": "gpu", "replicas": 2, "devices": devices} for devices in selectors]
    repeated = [devices == "all" and "all" in selectors[:n] for n, devices in enumerate(selectors)]
    document = {"version": "v1", "sharing": {"timeSlicing": {"resources": rows}}}
    overlapping = {
        f"sharing.timeSlicing.resources[{n}]"
        for n, devices in enumerate(selectors)
        if not repeated[n] and any(_named(devices) & _named(earlier) for earlier in selectors[:n])
    }
    if not overlapping:
        assert len(parse_policy(json.dumps(document), "n").policy.entries) == repeated.count(False)
        return
    errors = [problem for problem in problems(document) if problem.severity == "error"]
    assert {problem.path for problem in errors} == overlapping


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: v1\ngpus:\n  - {select: all, mps: {replicas: 2}}\n", "write version: partage/v1"),
        ("version: v1\nGpus: []\n", "write version: partage/v1"),
        ("version: v1\nsharring: {timeSlicing: {}}\n", "nothing here is a key of it: sharring"),
        ("version: v1\nmigStrategy: mixed\n", "nothing here is a key of it: migStrategy"),
        ("version: v1\nhooks: {apply-exit: []}\n", "name the file with mig-configs"),
        ("version: v1\nsystemd-services: [a]\n", "stop those that use a GPU yourself"),
    ],
)
def test_a_file_of_which_nvidias_plugin_reads_nothing_is_an_error(text, words):
    """As a warning it made every GPU exclusive."""
    with pytest.raises(InputError) as found:
        parse_policy(text, "policy.yaml")
    (problem,) = found.value.problems
    assert words in f"{problem.message} ({problem.hint})"


def test_a_version_alone_is_a_file_of_nvidia():
    assert parse_policy("version: v1\n", "policy.yaml").policy.entries == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flags: {plugins: {passDeviceSpecs: true, gfd: {}}}", "passDeviceSpecs, gfd"),
        ("flags: {migStrategi: mixed}", 'the text "mixed"'),
    ],
)
def test_a_warning_of_a_key_that_is_ignored_says_what_is_lost(text, words):
    (warning,) = parse_policy(f"version: v1\n{text}\n", "policy.yaml").warnings
    assert f"which NVIDIA's plugin ignores: {words} has no effect" in warning.message


@pytest.mark.parametrize(
    "text",
    [
        "sharing: {time-slicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}",
        "sharing: {ts: {replicas: 4}, mps2: {}}",
    ],
)
def test_sharing_without_a_known_key_says_that_every_gpu_is_given_out_whole(text):
    """It stays a warning, because NVIDIA's plugin starts with such a file; it offers whole GPUs then."""
    last = parse_policy(f"version: v1\n{text}\n", "policy.yaml").warnings[-1]
    assert last.path == "sharing"
    assert "no GPU is shared: every GPU is given out whole" in last.message
    assert "timeSlicing" in last.hint


@pytest.mark.parametrize(
    "text",
    [
        "sharing: {}",
        "sharing: {ts: {}, timeslicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}",
        "sharing: {mps: null}",
    ],
)
def test_sharing_that_loses_not_everything_has_no_such_warning(text):
    warnings = parse_policy(f"version: v1\n{text}\n", "policy.yaml").warnings
    assert not [one for one in warnings if "given out whole" in one.message]

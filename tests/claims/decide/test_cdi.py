"""The CDI spec of a claim: what the containers of each kind get."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from partage.claims.decide.allocation import grant
from partage.claims.decide.cdi import ClaimCdi, claim_cdi
from partage.claims.model.claim import Claim, ClaimConfig, ClaimResult, ConfigSource
from partage.claims.model.grant import Granted
from partage.claims.model.names import OWN_NAMES
from partage.edges.cdi.spec import spec_error
from partage.model.claim import ClaimRef
from partage.model.policy import DeviceIdStrategy, DeviceListStrategy, Options
from partage.model.share import AllocationRefused, DeviceOffer, Resource
from partage.model.strategy import Strategy
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.claim_offer import options_for_claims
from partage.plan.serve.limit_edits import LimitTerms, limit_terms
from partage.units import GIB
from tests.claims.offers import amounts, devices, machine, mig, replicas, slices, whole

DRIVER = OWN_NAMES.driver

UID = "3f0e8a52-7f0b-4c57-9f0e-5d3a9d0a1b2c"
NODE = "k8s.device-plugin.nvidia.com/gpu"
GUARD = "/run/partage/guard/1"


def result(
    row: DeviceOffer, request: str = "req", share: str | None = None, /, **consumed: int
) -> ClaimResult:
    names = {one.device: name for name, one in devices(row).rows.items()}
    return ClaimResult(request, "node-a-partage", names[row.device], DRIVER, share, consumed)


HOOK = limit_terms("/var/lib/partage/bin/partage-limit-hook", "/", "", nvidia=True)


def cdi(
    rows: list[DeviceOffer],
    *results: ClaimResult,
    options: Options | None = None,
    config: str = "",
    limits: LimitTerms = HOOK,
) -> ClaimCdi:
    node = devices(*rows)
    configs = (ClaimConfig(ConfigSource.CLAIM, (), DRIVER, config.encode()),) if config else ()
    claim = Claim(ClaimRef("team-a", "a", UID), allocated=True, results=results, configs=configs)
    granted = grant(claim, claim.ref, node)
    assert isinstance(granted, Granted), granted

    def responding(resource: Resource) -> AllocateResponder:
        inventory, how = machine(*rows), options_for_claims(options or Options())
        return AllocateResponder(
            resource, inventory, how, "/run/partage", guard_dir=GUARD, read_only_pipe=True, limits=limits
        )

    found = claim_cdi(granted, node, responding, guard=True, limits=limits)
    check(found)
    return found


def check(found: ClaimCdi) -> None:
    """What CDI loaders ask of a spec, and that the first name of each share is in it."""
    assert json.loads(json.dumps(found.spec)) == found.spec
    assert spec_error(found.spec, "gpu.partage.dev/claim") == ""
    assert found.spec.keys() == {"cdiVersion", "kind", "devices"}
    names = [device["name"] for device in found.spec["devices"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*[A-Za-z0-9]", name) for name in names)
    assert {ids[0] for ids in found.ids} == {f"gpu.partage.dev/claim={name}" for name in names}
    for device in found.spec["devices"]:
        assert device["containerEdits"].keys() <= {"env", "mounts", "hooks"}
        assert all(mount.keys() == {"hostPath", "containerPath", "options"} for mount in mounts(device))


def env(device: dict[str, Any]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in device["containerEdits"]["env"])


def mounts(device: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = device["containerEdits"].get("mounts", [])
    return found


def test_a_whole_gpu_has_its_libraries_and_device_files_by_the_nodes_own_name() -> None:
    row = whole(1)
    found = cdi([row], result(row))
    assert found.ids == ((f"gpu.partage.dev/claim={UID}-gpu-00000001", f"{NODE}={row.device}"),)
    assert found.spec["cdiVersion"] == "0.5.0"
    (device,) = found.spec["devices"]
    assert mounts(device) == []
    assert env(device) == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "PARTAGE_RESOURCE": "gpu.partage.dev",
        "PARTAGE_SHARES": row.device,
        "PARTAGE_GPUS": row.gpu,
        "PARTAGE_STRATEGY": "exclusive",
        "PARTAGE_REPLICAS": "1",
        "PARTAGE_MEMORY_BYTES": str(80 * GIB),
        "PARTAGE_GUARANTEE": "hard",
    }


def test_an_amount_under_mps_has_a_pipe_of_its_own_which_knows_its_cores() -> None:
    row = amounts(0, 79)
    found = cdi([row], result(row, "req", "s1", memory=10 * GIB, cores=25))
    (device,) = found.spec["devices"]
    assert device["name"] == f"{UID}-gpu-00000000-s1"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in env(device)
    assert env(device)["PARTAGE_MEMORY_BYTES"] == str(10 * GIB)
    pipe, shm = mounts(device)
    assert pipe == {
        "hostPath": f"/run/partage/mps/{row.device}/pipe/gpu/slot0",
        "containerPath": env(device)["CUDA_MPS_PIPE_DIRECTORY"],
        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
    }
    assert (shm["containerPath"], shm["options"][0]) == ("/dev/shm", "rw")


@pytest.mark.parametrize("cores", [0, 25])
def test_without_namespaces_cores_are_a_variable(cores: int) -> None:
    row = replace(amounts(0, 79), pipe="", limits_in_env=True)
    (device,) = cdi([row], result(row, "req", "s1", memory=GIB, cores=cores)).spec["devices"]
    assert env(device).get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "0") == str(cores)


def test_several_even_shares_although_the_device_plugin_gives_one_at_a_time() -> None:
    row = replicas(0, 4, Strategy.MPS)
    assert row.single
    (device,) = cdi([row], result(row, "req", "s1", shares=2, memory=0)).spec["devices"]
    assert env(device)["PARTAGE_MEMORY_BYTES"] == str(40 * GIB)


def test_a_mig_device() -> None:
    row = mig(0, 1)
    found = cdi([mig(0, 0), row], result(row))
    assert found.ids[0][1] == f"{NODE}={row.device}"


def test_two_shares_of_one_gpu_in_one_claim_are_two_devices() -> None:
    row = slices(0, 79)
    found = cdi([row], result(row, "a", "s1", memory=GIB), result(row, "b", "s2", memory=2 * GIB))
    assert [device["name"][-3:] for device in found.spec["devices"]] == ["-s1", "-s2"]
    assert [env(device)["PARTAGE_MEMORY_BYTES"] for device in found.spec["devices"]] == [
        str(GIB),
        str(2 * GIB),
    ]


@pytest.mark.parametrize("rows", [[whole(0), whole(1)], [slices(0, 8), slices(1, 8)]])
def test_two_gpus_of_one_request_say_both(rows: list[DeviceOffer]) -> None:
    found = cdi(rows, *(result(row, "req", "s" if row.by_memory else None) for row in rows))
    first, second = map(env, found.spec["devices"])
    assert first == second
    assert first["PARTAGE_GPUS"] == f"{rows[0].gpu},{rows[1].gpu}"
    assert first["PARTAGE_SHARES"].split(",") == [id_ for row in rows for id_ in row.share_ids]
    assert not [key for key in first if key.startswith("ALIYUN")]
    assert [ids[1] for ids in found.ids] == [f"{NODE}={row.device}" for row in rows]


def test_requests_apart_say_their_own() -> None:
    rows = [whole(0), whole(1)]
    found = cdi(rows, result(rows[0], "a"), result(rows[1], "b"))
    assert [env(device)["PARTAGE_GPUS"] for device in found.spec["devices"]] == [row.gpu for row in rows]


def test_the_guard_comes_with_a_claim_that_asks_for_it() -> None:
    rows = [slices(0, 8), slices(1, 8)]
    config = '{"apiVersion": "partage.dev/v1", "kind": "ShareConfig", "guard": true}'
    found = cdi(rows, *(result(row, "req", "s", memory=2 * GIB) for row in rows), config=config)
    for device in found.spec["devices"]:
        assert (mounts(device)[0]["hostPath"], mounts(device)[0]["options"][0]) == (GUARD, "ro")
        assert env(device)["PYTHONPATH"] == "/opt/partage/guard"
        assert env(device)["PARTAGE_GUARANTEE"] == "advisory"
        assert env(device)["PARTAGE_TOTAL_BYTES"] == str(80 * GIB)


def test_admin_access_brings_the_device_and_no_share() -> None:
    row = amounts(0, 8)
    looks = replace(result(row, "look", "s9"), admin_access=True)
    found = cdi([row], looks, replace(looks, request="again", share_id=None))
    assert [device["containerEdits"] for device in found.spec["devices"]] == [
        {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    ] * 2
    assert found.ids[0][1] == f"{NODE}={row.device}"


def test_a_claim_gets_its_devices_by_cdi_and_uuid_whatever_the_policy_says() -> None:
    """Device files, environment and indexes are for the device plugin's containers."""
    options = Options(
        device_list=(DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS),
        device_ids=DeviceIdStrategy.INDEX,
        device_specs=True,
        imex_channels=(0,),
    )
    row = whole(0)
    found = cdi([row], result(row), options=options)
    assert found.ids[0][1:] == (f"{NODE}={row.device}", "k8s.device-plugin.nvidia.com/imex-channel=0")
    assert env(found.spec["devices"][0])["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_share_of_more_units_than_a_variable_holds() -> None:
    row = slices(0, 600)
    (device,) = cdi([row], result(row, "req", "s1")).spec["devices"]
    assert "PARTAGE_SHARES" not in env(device)
    assert env(device)["PARTAGE_MEMORY_BYTES"] == str(600 * GIB)


def limited(index: int) -> DeviceOffer:
    return replace(slices(index, 79), limited=True)


def hooks(found: ClaimCdi) -> list[list[str]]:
    """The arguments of each hook, in the order of the devices."""
    every = (device["containerEdits"].get("hooks", []) for device in found.spec["devices"])
    return [hook["args"] for of_device in every for hook in of_device]


def test_an_amount_of_memory_is_the_drivers_limit_before_a_container_starts() -> None:
    row = limited(0)
    found = cdi([row], result(row, "req", "s1", memory=10 * GIB))
    assert hooks(found) == [["partage-limit-hook", "set", f"{row.gpu}={10 * GIB}"]]


def test_the_shares_of_a_request_have_one_hook_with_their_sum_on_each_gpu() -> None:
    """They come together, and each run of the hook costs a start of NVML."""
    first, second = limited(0), limited(1)
    given = [
        result(first, "req", "s1", memory=10 * GIB),
        result(first, "req", "s2", memory=5 * GIB),
        result(second, "req", "s3", memory=GIB),
    ]
    words = sorted([f"{first.gpu}={15 * GIB}", f"{second.gpu}={GIB}"])
    assert hooks(cdi([first, second], *given)) == [["partage-limit-hook", "set", *words]]


def test_each_request_has_a_hook_of_its_own() -> None:
    first, second = limited(0), limited(1)
    found = cdi([first, second], result(first, "a", "s1", memory=GIB), result(second, "b", "s2", memory=GIB))
    assert [words[2:] for words in hooks(found)] == [[f"{first.gpu}={GIB}"], [f"{second.gpu}={GIB}"]]


def test_without_limits_there_is_no_hook() -> None:
    row = slices(0, 79)
    assert hooks(cdi([row], result(row, "req", "s1", memory=GIB))) == []


def test_nvidias_hook_has_the_claims_amount_and_one_for_all_gpus() -> None:
    nvidia = limit_terms("/p", "/", "noexec", nvidia=True)
    first, second = limited(0), limited(1)
    found = cdi([first], result(first, "req", "s1", memory=10 * GIB), limits=nvidia)
    (device,) = found.spec["devices"]
    assert hooks(found) == []
    assert env(device)["NVIDIA_GPU_MEMORY_REQUEST"] == "0"
    assert env(device)["NVIDIA_GPU_MEMORY_LIMIT"] == "10240"
    two = [result(first, "req", "s1", memory=GIB), result(second, "req", "s2", memory=2 * GIB)]
    with pytest.raises(AllocationRefused, match="different memory limits"):
        cdi([first, second], *two, limits=nvidia)


def test_a_claim_whose_limit_cannot_be_set_is_refused() -> None:
    row = limited(0)
    none = limit_terms("/p", "/", "noexec", nvidia=False)
    with pytest.raises(AllocationRefused, match="cannot be set before it starts: noexec"):
        cdi([row], result(row, "req", "s1", memory=GIB), limits=none)

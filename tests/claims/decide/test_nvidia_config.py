"""Configurations as manifests for NVIDIA's driver have them: what they mean here, and what is refused."""

from __future__ import annotations

import json

import pytest

from partage.claims.decide.allocation import grant
from partage.claims.decide.cdi import claim_cdi
from partage.claims.model.claim import Claim, ClaimConfig, ClaimResult, ConfigSource
from partage.claims.model.grant import Granted, RefusedClaim, ShareConfig
from partage.claims.model.names import NVIDIA_NAMES, OWN_NAMES, ClaimNames
from partage.model.claim import ClaimRef
from partage.model.policy import Options
from partage.model.share import DeviceOffer, Guarantee, Resource
from partage.model.strategy import Interval, Strategy
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.claim_offer import options_for_claims
from partage.units import GIB
from tests.claims.offers import amounts, devices, machine, mig, replicas, slices, whole

REF = ClaimRef("team-a", "a", "uid-a")
CLASS, CLAIM = ConfigSource.CLASS, ConfigSource.CLAIM


def kind(name: str = "GpuConfig", version: str = "resource.nvidia.com/v1beta1", **keys: object) -> str:
    return json.dumps({"apiVersion": version, "kind": name, **keys})


def sharing(strategy: object = "MPS", **parts: object) -> str:
    return kind(sharing={"strategy": strategy, **parts})


def mps(**keys: object) -> str:
    return sharing(mpsConfig=keys)


def config(
    parameters: str, source: ConfigSource = CLAIM, *requests: str, names: ClaimNames = NVIDIA_NAMES
) -> ClaimConfig:
    return ClaimConfig(source, requests, names.driver, parameters.encode())


def asked(
    *configs: ClaimConfig, rows: tuple[DeviceOffer, ...] = (amounts(0),), names: ClaimNames = NVIDIA_NAMES
) -> Granted | RefusedClaim:
    """A claim for all of each of these rows, in requests a, b, ..."""
    node = devices(*rows, names=names)
    results = tuple(
        ClaimResult(
            request,
            node.pool,
            name,
            names.driver,
            f"share-{request}" if row.traits.in_shares else None,
            {"shares": 1} if row.traits.in_shares and not row.by_memory else {},
        )
        for request, (name, row) in zip("abc", node.rows.items(), strict=False)
    )
    return grant(Claim(REF, allocated=True, results=results, configs=configs), REF, node)


def of_first(*configs: ClaimConfig, rows: tuple[DeviceOffer, ...] = (amounts(0),)) -> ShareConfig:
    found = asked(*configs, rows=rows)
    assert isinstance(found, Granted), found
    return found.shares[0].config


def refusal(*configs: ClaimConfig, rows: tuple[DeviceOffer, ...] = (amounts(0),), **more) -> str:
    found = asked(*configs, rows=rows, **more)
    assert isinstance(found, RefusedClaim), found
    assert found.reason == "config"
    assert found.text.isprintable()
    return found.text


@pytest.mark.parametrize(
    ("parameters", "row", "means"),
    [
        (kind(), whole(0), ShareConfig()),
        (kind(sharing=None), whole(0), ShareConfig()),
        (sharing("TimeSlicing"), replicas(0), ShareConfig(strategy=Strategy.TIME_SLICING)),
        (
            sharing("TimeSlicing", timeSlicingConfig={"interval": "Short"}),
            whole(0),
            ShareConfig(Interval.SHORT, strategy=Strategy.TIME_SLICING),
        ),
        (
            sharing("TimeSlicing", timeSlicingConfig={"interval": "Default"}),
            slices(0),
            ShareConfig(Interval.DEFAULT, strategy=Strategy.TIME_SLICING),
        ),
        (sharing("TimeSlicing", timeSlicingConfig={}), whole(0), ShareConfig(strategy=Strategy.TIME_SLICING)),
        (sharing(), amounts(0), ShareConfig(strategy=Strategy.MPS)),
        (
            mps(multiUser=True, defaultActiveThreadPercentage=0),
            amounts(0),
            ShareConfig(strategy=Strategy.MPS),
        ),
        (
            mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi"),
            replicas(0, shared=Strategy.MPS),
            ShareConfig(
                strategy=Strategy.MPS, client_threads_percent=50, client_memory_bytes=10 * GIB
            ),
        ),
        (
            mps(defaultPinnedDeviceMemoryLimit="10Gi", defaultPerDevicePinnedMemoryLimit={"0": "4294967295"}),
            amounts(0),
            ShareConfig(strategy=Strategy.MPS, client_memory_bytes=4095 << 20),
        ),
        (
            mps(defaultPerDevicePinnedMemoryLimit={amounts(0).device: "1Gi"}),
            amounts(0),
            ShareConfig(strategy=Strategy.MPS, client_memory_bytes=GIB),
        ),
        (kind("MigDeviceConfig", sharing={"strategy": "TimeSlicing"}), mig(0, 0), ShareConfig()),
        (kind("MigDeviceConfig"), mig(0, 0), ShareConfig()),
    ],
)  # fmt: skip
def test_what_a_configuration_means(parameters: str, row: DeviceOffer, means: ShareConfig) -> None:
    assert of_first(config(parameters), rows=(row,)) == means


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (sharing("mps"), "'mps'"),
        (kind(sharing={}), "strategy"),
        (kind(sharing={"strategy": "MPS", "mps": {}}), "unknown field `mps`"),
        (kind(colour="red"), "unknown field `colour`"),
        (sharing("TimeSlicing", timeSlicingConfig={"interval": "short"}), "'short'"),
        (sharing("TimeSlicing", mpsConfig={}), "mpsConfig with the strategy TimeSlicing"),
        (sharing("MPS", timeSlicingConfig={}), "timeSlicingConfig with the strategy MPS"),
        (mps(defaultActiveThreadPercentage=101), "100"),
        (mps(defaultPinnedDeviceMemoryLimit="1Ki"), "less than 1 MiB"),
        (mps(defaultPinnedDeviceMemoryLimit="much"), "much"),
        (mps(defaultPerDevicePinnedMemoryLimit={"1": "1Gi"}), "'1', and it is for 1 device"),
        (mps(defaultPerDevicePinnedMemoryLimit={"GPU-9": "1Gi"}), "'GPU-9'"),
        (mps(defaultPerDevicePinnedMemoryLimit={"": "1Gi"}), "is empty"),
        (kind("VfioDeviceConfig"), "its kind is VfioDeviceConfig"),
        (kind(version="resource.nvidia.com/v1"), "its apiVersion resource.nvidia.com/v1"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(parameters: str, said: str) -> None:
    assert said in refusal(config(parameters))


@pytest.mark.parametrize(
    ("parameters", "row", "said"),
    [
        (sharing(), whole(0), "asks for MPS in its configuration, and GPU 0"),
        (sharing(), replicas(0), "is used without MPS"),
        (kind("MigDeviceConfig", sharing={"strategy": "MPS"}), mig(0, 0), "asks for MPS"),
        (sharing("TimeSlicing"), amounts(0), "is used through MPS"),
    ],
)
def test_how_a_gpu_is_shared_is_the_policys_and_no_claim_changes_it(
    parameters: str, row: DeviceOffer, said: str
) -> None:
    assert said in refusal(config(parameters), rows=(row,))


def test_the_last_entry_holds_as_a_whole_and_those_of_the_claim_after_those_of_the_class() -> None:
    of_class = config(mps(defaultActiveThreadPercentage=50), CLASS)
    of_claim = config(mps(defaultPinnedDeviceMemoryLimit="1Gi"))
    found = of_first(of_claim, of_class)
    assert (found.client_threads_percent, found.client_memory_bytes) == (None, GIB)
    assert of_first(of_class, config(kind())) == ShareConfig()


def test_an_entry_for_all_requests_passes_over_devices_of_the_other_type() -> None:
    """One that names the request is refused, as by NVIDIA's driver."""
    for_gpus = mps(defaultActiveThreadPercentage=50)
    assert of_first(config(for_gpus), rows=(mig(0, 0),)) == ShareConfig()
    assert "GpuConfig for it, and it was given a MIG device" in refusal(
        config(for_gpus, CLAIM, "a"), rows=(mig(0, 0),)
    )
    assert "MigDeviceConfig for it, and it was given a GPU" in refusal(
        config(kind("MigDeviceConfig"), CLASS, "a"), rows=(whole(0),)
    )


def test_places_are_among_the_sorted_uuids_of_the_devices_that_an_entry_is_for() -> None:
    rows = (amounts(0), amounts(1), amounts(2))
    limits = mps(defaultPerDevicePinnedMemoryLimit={"0": "1Gi", "1": "2Gi"})
    found = asked(config(limits, CLAIM, "b", "c"), rows=rows)
    assert isinstance(found, Granted)
    assert [share.config.client_memory_bytes for share in found.shares] == [None, GIB, 2 * GIB]


def test_partages_own_kind_is_read_beside_nvidias_and_not_the_other_way_round() -> None:
    own = json.dumps({"apiVersion": "partage.dev/v1", "kind": "ShareConfig", "need": "guarded"})
    found = of_first(config(own), config(sharing()))
    assert (found.need, found.strategy) == (Guarantee.GUARDED, Strategy.MPS)
    said = refusal(config(kind(), names=OWN_NAMES), names=OWN_NAMES)
    assert "its kind is GpuConfig" in said
    assert "possible is ShareConfig of partage.dev/v1" in said


@pytest.mark.parametrize(
    ("parameters", "threads", "memory"),
    [
        (mps(), None, None),
        (mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi"), "50", "0=10240M"),
        (mps(defaultPinnedDeviceMemoryLimit="100Gi"), None, "0=80896M"),
    ],
)
def test_limits_of_each_process_are_variables_and_never_more_than_the_share(
    parameters: str, threads: str | None, memory: str | None
) -> None:
    row = amounts(0)
    granted = asked(config(parameters))
    assert isinstance(granted, Granted)

    def responding(resource: Resource) -> AllocateResponder:
        return AllocateResponder(resource, machine(row), options_for_claims(Options()), "/run/partage")

    cdi = claim_cdi(granted, devices(row, names=NVIDIA_NAMES), responding, guard=False)
    edits = cdi.spec["devices"][0]["containerEdits"]
    variables = dict(one.split("=", 1) for one in edits["env"])
    assert variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == threads
    assert variables.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == memory
    assert variables["PARTAGE_RESOURCE"] == "gpu.nvidia.com"

"""Checks on values that no directory shows, and what holds for all checks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from partage.agent.status import readiness
from partage.doctor.decide.agent import OF_DRIVER, REASONS
from partage.doctor.decide.diagnose import CHECKS, diagnose
from partage.doctor.decide.observation import (
    Agent,
    AgentReason,
    ContainerRuntime,
    Disk,
    Kubelet,
    MpsProcess,
    MpsState,
    Observation,
    ObservedPolicy,
    PciGpu,
    RuntimeHandler,
    Unseen,
)
from partage.model.gpu import Driver, Inventory, LostGpu, NoDriver, ToolkitConfig
from partage.model.health import GpuCondition
from partage.model.policy import AllDevices, DeviceListStrategy, GpuEntry, Options, Policy, TimeSlicing
from tests.answers.nodes import gpu

WELL = Inventory(Driver("580.95.05", "13.0"), (gpu(0), gpu(1)))
GONE = Unseen("only root may read it")


def _codes(**seen: Any) -> list[str]:
    return [one.code for one in diagnose(Observation(**{"inventory": WELL, **seen})).findings]


def test_a_socket_that_the_kubelet_keeps_is_found_and_says_why() -> None:
    kept = "/k/nvidia-gpu_partage-0a1b2c.sock"
    (found,) = diagnose(Observation(inventory=WELL, kubelet=Kubelet("/k", kept_sockets=(kept,)))).findings
    assert (found.code, found.severity) == ("kubelet-keeps-socket", "warning")
    assert f"it keeps {kept}" in found.evidence
    assert "Restart the kubelet" in found.fix


def test_an_older_library_says_what_is_not_known_without_its_functions() -> None:
    old = Inventory(Driver("535.261.03", "12.2", ("nvmlDeviceGetGpuFabricInfoV",)), (gpu(0),))
    (found,) = diagnose(Observation(inventory=old)).findings
    assert (found.code, found.severity) == ("driver-lacks", "warning")
    assert (
        "nvmlDeviceGetGpuFabricInfoV: without it Partage does not know whether a GPU has joined"
        in found.evidence[0]
    )


def _policy(*ways: DeviceListStrategy, **more: Any) -> ObservedPolicy:
    return ObservedPolicy("p", Policy(options=Options(device_list=ways, **more)))


def test_a_check_that_could_not_look_is_not_one_that_found_nothing() -> None:
    """Every field that a check needs, in turn."""
    for check in CHECKS:
        for name in check.needs:
            others = dict.fromkeys(check.needs)
            found = diagnose(Observation(inventory=WELL, **{**others, name: GONE}), [check])
            assert (found.findings, found.looked) == ((), 0)
            if check.needs[0] == name:
                (row,) = found.not_looked
                assert (row.why, row.checks, row.what) == (GONE.why, (check.code,), (check.what,))


def test_every_reason_of_a_probe_is_a_finding() -> None:
    source = Path(readiness.__file__).read_text()
    codes = set(re.findall(r'"([a-z]+(?:-[a-z]+)+|starting)"', source)) | set(OF_DRIVER)
    assert codes == {*REASONS, *OF_DRIVER}
    for code in codes:
        assert _codes(reasons=(AgentReason(code, "because"),)) == [f"agent:{code}"]


def test_what_the_agent_says_of_a_lost_gpu_is_said_once() -> None:
    lost = Inventory(WELL.driver, (gpu(0),), (LostGpu(1, None, None, "gone"),))
    told = (
        AgentReason("gpu-unhealthy", "GPU 1 (GPU-1): lost"),
        AgentReason("gpu-unhealthy", "GPU 0 (GPU-0): xid"),
    )
    found = diagnose(Observation(inventory=lost, reasons=told))
    assert [(one.code, one.evidence) for one in found.findings] == [
        ("gpu-lost", ("GPU 1: gone",)),
        ("agent:gpu-unhealthy", ("GPU 0 (GPU-0): xid",)),
    ]


@pytest.mark.parametrize(
    ("toolkit", "ways", "code"),
    [
        (ToolkitConfig("/c", False, True, True), (DeviceListStrategy.ENVVAR,), ["toolkit-refuses"]),
        (ToolkitConfig("/c", False, True, True), (DeviceListStrategy.VOLUME_MOUNTS,), []),
        (ToolkitConfig("/c", False, True, False), (DeviceListStrategy.CDI_CRI,), []),
        (ToolkitConfig("/c", True, False, False), (DeviceListStrategy.ENVVAR,), ["toolkit-open"]),
    ],
)
def test_the_container_toolkit(
    toolkit: ToolkitConfig, ways: tuple[DeviceListStrategy, ...], code: list[str]
) -> None:
    inventory = Inventory(WELL.driver, WELL.gpus, toolkit=toolkit, open_to_env=toolkit.accepts_env)
    assert _codes(inventory=inventory, policy=_policy(*ways)) == code


@pytest.mark.parametrize(("cdi", "codes"), [(False, ["cdi-off"]), (True, []), (None, [])])
def test_cdi_in_the_runtime(cdi: bool | None, codes: list[str]) -> None:
    runtime = ContainerRuntime("containerd", "/c", cdi=cdi)
    found = diagnose(Observation(inventory=WELL, runtime=runtime, policy=_policy(DeviceListStrategy.CDI_CRI)))
    assert [one.code for one in found.findings] == codes
    assert bool(found.not_looked) == (cdi is None)


def test_a_runtime_without_cdi_starts_containers_without_their_limits() -> None:
    runtime = ContainerRuntime("containerd", "/c", cdi=False)
    for limited in (False, True):
        entry = GpuEntry("gpus[0]", AllDevices(), sharing=TimeSlicing(4, limited=limited))
        options = Options(device_list=(DeviceListStrategy.ENVVAR,), device_specs=True)
        policy = ObservedPolicy("p", Policy(entries=(entry,), options=options))
        found = diagnose(Observation(inventory=WELL, runtime=runtime, policy=policy)).findings
        assert ["would start without limits" in one.message for one in found] == [True] * limited


def test_a_handler_that_is_not_the_default_is_said() -> None:
    runtime = ContainerRuntime(
        "containerd", "/c", handlers=(RuntimeHandler("nvidia", "nvidia"),), default="runc"
    )
    found = diagnose(Observation(inventory=WELL, runtime=runtime, policy=_policy(DeviceListStrategy.ENVVAR)))
    assert found.findings == ()
    assert "runtimeClassName nvidia" in found.not_looked[0].why


def test_conditions_of_gpus() -> None:
    conditions = (
        GpuCondition(WELL.gpus[0].uuid, rows_failed=True, fabric_ok=False),
        GpuCondition(WELL.gpus[1].uuid, rows_pending=True, fabric_ok=False, mig_mode=True),
    )
    found = diagnose(Observation(inventory=WELL, conditions=conditions))
    assert [(one.code, one.evidence) for one in found.findings] == [
        ("gpu-needs-reset", ("GPU 1: remapped memory rows wait for a reset",)),
        ("memory-rows-failed", ("NVML: remapping a memory row has failed on GPU 0",)),
        ("fabric-not-ready", ("NVML: the state of the fabric is not 'completed' on GPU 0",)),
    ]


def test_a_card_of_a_virtual_machine_is_no_fault() -> None:
    assert _codes(pci_gpus=(PciGpu("0", "nvidia"), PciGpu("1", "vfio-pci"))) == []
    assert _codes(pci_gpus=(PciGpu("0", "nvidia"), PciGpu("1", "nouveau"))) == ["gpu-without-driver"]


def test_a_daemon_that_serves_the_gpu_needs_its_compute_mode() -> None:
    from msgspec.structs import replace

    from partage.model.gpu import ComputeMode

    inventory = replace(WELL, gpus=(replace(gpu(0), compute_mode=ComputeMode.EXCLUSIVE_PROCESS), gpu(1)))
    below = "/run/partage/mps"
    ours = MpsState(below, (MpsProcess(5, "nvidia-cuda-mps-control", f"{below}/GPU-0/pipe"),))
    assert _codes(inventory=inventory, mps=ours) == []
    assert _codes(inventory=inventory, mps=MpsState(below)) == ["compute-mode-left"]
    wanted = ObservedPolicy("p", Policy(), mps=(inventory.gpus[0].uuid,))
    assert _codes(inventory=inventory, mps=MpsState(below), policy=wanted) == []


@pytest.mark.parametrize(
    ("disk", "codes"),
    [
        (Disk("/s", 10**10, 10**4, False), []),
        (Disk("/s", 10**10, None, False), []),
        (Disk("/s", 10**6, None, False), ["disk-full"]),
        (Disk("/s", 10**10, 3, False), ["disk-full"]),
        (Disk("/s", 10**10, 10**4, True), ["disk-full"]),
    ],
)
def test_disks(disk: Disk, codes: list[str]) -> None:
    assert _codes(disks=(disk,)) == codes


def test_a_directory_that_a_running_agent_misses() -> None:
    agent, told = Agent(locked=True, missing=("/var/lib/partage",)), AgentReason("state-not-saved", "no")
    found = diagnose(Observation(inventory=WELL, agent=agent, reasons=(told,)))
    assert [one.code for one in found.findings] == ["directory-missing"]
    assert [one.path for one in found.repairs] == ["/var/lib/partage"]
    assert [one.finding.code for one in found.explained] == ["agent:state-not-saved"]


def test_errors_come_before_warnings() -> None:
    from msgspec.structs import replace

    cold = replace(WELL, gpus=(replace(gpu(0), persistence=False),))
    assert _codes(inventory=cold, kubelet=Kubelet("/k", listens=False)) == [
        "kubelet-silent",
        "persistence-off",
    ]


def test_no_driver_on_a_simulated_node_is_one_finding() -> None:
    gone = Inventory(NoDriver("driver-missing", "the NVIDIA driver is not loaded"))
    assert _codes(inventory=gone) == ["driver-missing"]
    assert _codes(inventory=Inventory(NoDriver("failed", "x"))) == ["driver-failed"]


def test_every_finding_is_described() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "doctor.md"
    text = page.read_text()
    codes = {check.code for check in CHECKS if not check.code.startswith("agent:")}
    assert {code for code in codes if f"`{code}`" not in text} == set()
    assert set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text.partition("## What it looks for")[2])) <= codes


def test_texts_have_no_words_of_this_code() -> None:
    """For people: no names of classes, fields or codes."""
    for row in REASONS.values():
        for text in (row.message, row.fix):
            assert text[0].isupper() or text.startswith("partage ")
            assert not text.endswith(".")
            assert "_" not in text

"""NVML's return codes in our words."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml
import pytest

from partage.edges.hardware.binding import ERRORS, translate
from partage.edges.hardware.host import Host
from partage.edges.hardware.nvml import NvmlHardware
from partage.edges.hardware.nvml_queries import Nvml
from partage.errors import (
    DriverUnavailable,
    GpuLost,
    HardwareError,
    HardwareTimeout,
    NotPermitted,
    Unsupported,
)
from partage.model.gpu import NoDriver
from tests.edges.hardware.stub import StubNode

CODES = {name: value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}


@pytest.mark.parametrize("name", CODES)
def test_every_code_of_the_library_has_its_place_in_the_tree(name: str) -> None:
    assert CODES[name] in ERRORS
    error = translate(CODES[name], "nvmlDeviceGetUUID")
    assert isinstance(error, HardwareError)
    assert "nvmlDeviceGetUUID" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_UNINITIALIZED, DriverUnavailable),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, Unsupported),
        (pynvml.NVML_ERROR_NO_PERMISSION, NotPermitted),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, DriverUnavailable),
        (pynvml.NVML_ERROR_TIMEOUT, HardwareTimeout),
        (pynvml.NVML_ERROR_GPU_IS_LOST, GpuLost),
        (pynvml.NVML_ERROR_RESET_REQUIRED, GpuLost),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, DriverUnavailable),
        (424242, HardwareError),
    ],
)
def test_codes_that_matter_are_told_apart(code: int, kind: type[HardwareError]) -> None:
    assert type(translate(code, "x")) is kind


@pytest.mark.parametrize("code", sorted(set(CODES.values()) - {pynvml.NVML_ERROR_TIMEOUT}))
def test_a_code_crosses_the_real_binding_as_its_error(node: StubNode, code: int) -> None:
    nvml = Nvml(node.host)
    assert nvml.open() is None
    node.write(**{"fail.nvmlDeviceGetCount_v2": code})
    with pytest.raises(ERRORS[code][0]) as caught:
        nvml.count()
    assert type(caught.value) is ERRORS[code][0]
    nvml.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver-missing"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "library-missing"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no-permission"),
        (pynvml.NVML_ERROR_OPERATING_SYSTEM, "no-permission"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "version-mismatch"),
        (pynvml.NVML_ERROR_UNKNOWN, "failed"),
        (424242, "failed"),
    ],
)
async def test_a_driver_that_cannot_be_used_is_a_typed_and_explained_state(
    node: StubNode, code: int, kind: str
) -> None:
    node.write(init=code)
    hardware = NvmlHardware(host=node.host)
    driver = (await hardware.observe()).driver
    assert isinstance(driver, NoDriver)
    assert driver.kind == kind
    assert driver.reason
    assert driver.hint
    await hardware.close()


async def test_a_version_mismatch_names_both_versions(node: StubNode) -> None:
    node.write(init=18, nvml="13.580.95.05")
    node.file(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8\nGCC version: 12\n",
    )
    driver = Nvml(node.host).open()
    assert driver is not None
    assert "library 580.95.05, kernel module 550.163.01" in driver.reason


def test_a_missing_library_is_a_typed_and_explained_state(tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        state = Nvml(Host(driver=tmp_path)).open()
        assert state is not None
        assert state.kind == "library-missing"
        assert str(tmp_path) in state.reason
        assert "--driver-root" in state.hint
    else:
        pytest.skip("this machine has the library in the loader's path")


def test_a_library_that_is_no_library_is_a_typed_and_explained_state(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_text("not an ELF file")
    state = Nvml(Host(driver=tmp_path)).open()
    assert state is not None
    assert state.kind == "failed"
    assert str(library) in state.reason


def test_a_call_without_a_session_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(DriverUnavailable, match="not initialised"):
        Nvml(Host(driver=tmp_path)).count()


def test_the_library_is_looked_for_where_distributions_put_it(node: StubNode) -> None:
    elsewhere = node.root / "usr/lib/x86_64-linux-gnu"
    elsewhere.mkdir(parents=True)
    for file in node.library.parent.iterdir():
        file.rename(elsewhere / file.name)
    nvml = Nvml(node.host)
    assert nvml.open() is None
    nvml.close()

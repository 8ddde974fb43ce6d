"""The driver's libraries from the spec that the node's own toolkit has written."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from msgspec.structs import replace

from partage.edges.cdi.host_spec import host_spec
from partage.edges.cdi.spec_writer import CdiSpecWriter
from partage.model.gpu import Driver, Inventory
from partage.model.policy import DeviceIdStrategy, Options
from tests.edges.cdi.conftest import inventory_of
from tests.edges.cdi.schema import CDI_SPEC
from tests.edges.hardware.stub import StubNode
from tests.plan.offers import gpu, node

VERSION = "550.163.01"
OURS = "k8s.device-plugin.nvidia.com-gpu.json"
NONE = Options(nvidia_ctk="/nowhere/nvidia-ctk")


def _theirs(
    *names: str, version: str = VERSION, kind: str = "nvidia.com/gpu", **device: Any
) -> dict[str, Any]:
    library = f"/usr/lib64/libcuda.so.{version}"
    return {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/of-{name}"}], **device}}
            for name in names or ("all",)
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "mounts": [{"hostPath": library, "containerPath": library, "options": ["ro"]}],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["x"]}],
        },
    }


def _writer(static: Path, dynamic: Path) -> CdiSpecWriter:
    return CdiSpecWriter(dynamic, static=static)


def _node() -> Inventory:
    return replace(node(gpu(0), gpu(1, migs=1)), driver=Driver(VERSION, "12.4"))


def _written(dynamic: Path) -> Any:
    spec = json.loads((dynamic / OURS).read_text())
    jsonschema.validate(spec, CDI_SPEC)
    return spec


async def test_our_devices_get_the_libraries_of_their_spec(static: Path, dynamic: Path) -> None:
    (dynamic / "nvidia.yaml").write_text(yaml.safe_dump(_theirs("0", "1", "all")))
    kept = await _writer(static, dynamic).update(_node(), NONE, now_s=0)
    assert (kept.complete, kept.reason, kept.bare) == (True, "", False)
    spec = _written(dynamic)
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert [device["name"] for device in spec["devices"]] == [
        gpu(0).uuid,
        gpu(1).uuid,
        gpu(1, migs=1).mig_devices[0].uuid,
    ]
    assert spec["containerEdits"]["mounts"] == _theirs()["containerEdits"]["mounts"]
    assert spec["containerEdits"]["hooks"] == _theirs()["containerEdits"]["hooks"]
    assert spec["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


async def test_a_device_of_theirs_counts_if_it_has_our_device_files(static: Path, dynamic: Path) -> None:
    """It may have more: a render node, links. One whose files are of another GPU is out of date."""
    nodes = [{"path": "/dev/nvidia10"}, {"path": "/dev/dri/renderD128"}]
    (static / "nvidia.json").write_text(json.dumps(_theirs("0", "1", deviceNodes=nodes)))
    await _writer(static, dynamic).update(_node(), replace(NONE, device_ids=DeviceIdStrategy.INDEX), now_s=0)
    paths = {
        device["name"]: [one["path"] for one in device["containerEdits"]["deviceNodes"]]
        for device in _written(dynamic)["devices"]
    }
    assert paths["0"] == ["/dev/nvidia10", "/dev/dri/renderD128"]
    assert paths["1"] == ["/dev/nvidia11"]


BROKEN = {
    "another kind": (
        json.dumps(_theirs(kind="example.com/gpu")),
        "no CDI spec of nvidia.com/gpu is on the node",
    ),
    "another driver": (
        json.dumps(_theirs(version="535.261.03")),
        "it is for driver 535.261.03, and 550.163.01 is",
    ),
    "no libraries": (json.dumps({**_theirs(), "containerEdits": {}}), "it names no libcuda.so"),
    "no devices": (json.dumps({**_theirs(), "devices": []}), "it has no devices"),
    "edits of another shape": (
        json.dumps({**_theirs(), "containerEdits": {"mounts": "x"}}),
        "it names no libcuda",
    ),
    "no JSON": ("{", "no CDI spec of nvidia.com/gpu is on the node"),
    "a list": ("[]", "no CDI spec of nvidia.com/gpu is on the node"),
    "too deep": ("[" * 100_000, "no CDI spec of nvidia.com/gpu is on the node"),
}


@pytest.mark.parametrize(("text", "why"), BROKEN.values(), ids=BROKEN)
async def test_without_libraries_that_fit_the_spec_is_bare(
    static: Path, dynamic: Path, text: str, why: str
) -> None:
    (static / "nvidia.json").write_text(text)
    kept = await _writer(static, dynamic).update(_node(), NONE, now_s=0)
    assert kept.bare
    assert kept.reason.startswith(
        "device nodes only, none of the driver's libraries: /nowhere/nvidia-ctk is not"
    )
    assert why in kept.reason


def test_a_pipe_in_place_of_a_spec_is_passed_over(static: Path, dynamic: Path) -> None:
    os.mkfifo(static / "nvidia.json")
    (dynamic / "nvidia.json").write_text(json.dumps(_theirs()))
    found, why = host_spec((static, dynamic), VERSION)
    assert (found, why) == (_theirs(), "")


async def test_a_spec_that_is_written_later_is_taken_at_the_next_look(static: Path, dynamic: Path) -> None:
    writer = _writer(static, dynamic)
    assert (await writer.update(_node(), NONE, now_s=0)).bare
    (dynamic / "nvidia.json").write_text(json.dumps(_theirs()))
    assert (await writer.update(_node(), NONE, now_s=60)).complete
    before = (dynamic / OURS).stat()
    assert (await _writer(static, dynamic).update(_node(), NONE, now_s=61)).complete
    assert (dynamic / OURS).stat().st_ino == before.st_ino, "a new agent keeps it"
    (dynamic / "nvidia.json").unlink()
    assert (await writer.update(_node(), NONE, now_s=120)).bare


# --- NVIDIA's own toolkit ------------------------------------------------------------------------------


@pytest.mark.parametrize("by", [DeviceIdStrategy.UUID, DeviceIdStrategy.INDEX])
async def test_what_the_nodes_own_toolkit_wrote_is_taken(
    root: StubNode, environment: Path, static: Path, dynamic: Path, by: DeviceIdStrategy
) -> None:
    """As nvidia-cdi-refresh writes it; the agent has no toolkit."""
    roots = [f"--driver-root={root.root}", f"--dev-root={root.root}"]
    command = [
        str(environment / "nvidia-ctk"),
        "cdi",
        "generate",
        "--mode=nvml",
        f"--output={dynamic}/nvidia.yaml",
    ]
    subprocess.run([*command, *roots], check=True, capture_output=True)
    options = replace(NONE, device_ids=by, driver_root=str(root.root), dev_root=str(root.root))
    inventory = await inventory_of(root)
    kept = await _writer(static, dynamic).update(inventory, options, now_s=0)
    assert (kept.complete, kept.reason) == (True, "")
    spec = _written(dynamic)
    names: set[str] = {gpu.uuid for gpu in inventory}  # by which claims ask, whatever the policy says
    if by is DeviceIdStrategy.INDEX:
        names |= {str(gpu.index) for gpu in inventory}
    assert {device["name"] for device in spec["devices"]} == names
    mounted = {mount["containerPath"] for mount in spec["containerEdits"]["mounts"]}
    assert "/usr/lib64/libcuda.so.550.163.01" in mounted
    assert {hook["path"] for hook in spec["containerEdits"]["hooks"]} == {
        str(environment / "nvidia-cdi-hook")
    }


async def test_our_own_run_of_nvidia_ctk_has_the_names_of_allocate(
    root: StubNode, environment: Path, static: Path, dynamic: Path
) -> None:
    options = Options(
        nvidia_ctk=str(environment / "nvidia-ctk"), driver_root=str(root.root), dev_root=str(root.root)
    )
    inventory = await inventory_of(root)
    kept = await _writer(static, dynamic).update(inventory, options, now_s=0)
    assert (kept.complete, kept.reason) == (True, "")
    spec = _written(dynamic)
    assert {gpu.uuid for gpu in inventory} <= {device["name"] for device in spec["devices"]}
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/gpu"


async def test_a_run_of_nvidia_ctk_that_finds_no_libraries_is_bare(
    root: StubNode, environment: Path, static: Path, dynamic: Path
) -> None:
    """It fails then."""
    for library in (root.root / "usr/lib64").glob("libcuda*"):
        library.unlink()
    options = Options(
        nvidia_ctk=str(environment / "nvidia-ctk"), driver_root=str(root.root), dev_root=str(root.root)
    )
    kept = await _writer(static, dynamic).update(await inventory_of(root), options, now_s=0)
    assert kept.bare
    assert "nvidia-ctk failed (1): " in kept.reason
    assert "failed to get libcuda.so parent directory" in kept.reason

"""CDI specs on disk, with an nvidia-ctk that works, fails, hangs, writes nonsense, or is not there."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from partage.edges.cdi.spec_writer import RETRY_S, CdiSpecWriter
from partage.errors import HardwareError
from partage.model.gpu import Driver, Inventory
from partage.model.policy import DeviceIdStrategy, Options
from tests.edges.cdi.schema import CDI_SPEC
from tests.plan.offers import gpu, node

GPU_FILE = "k8s.device-plugin.nvidia.com-gpu.json"
DIGEST_FILE = "k8s.device-plugin.nvidia.com-gpu.digest"

_CTK = """#!/bin/sh
# Behaves as nvidia-ctk cdi generate does: one spec of that vendor and class, into that file.
echo "$@" >> "{log}"
for argument; do
  case "$argument" in
    --output=*) output="${{argument#*=}}";;
    --vendor=*) vendor="${{argument#*=}}";;
    --class=*) class="${{argument#*=}}";;
  esac
done
{then}
"""
_WRITE = """
cat > "$output" <<END
{{"cdiVersion": "{version}", "kind": "$vendor/$class",
 "devices": [{devices}],
 "containerEdits": {{"env": ["NVIDIA_VISIBLE_DEVICES=all", "X=1"],
   "mounts": [{{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1", "options": ["ro"]}}],
   "hooks": [{{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk"]}}]}}}}
END
"""


class _Toolkit:
    """A folder with an executable called nvidia-ctk, and what it was asked."""

    def __init__(self, folder: Path, then: str) -> None:
        self.path = folder / "nvidia-ctk"
        self._log = folder / "asked"
        self.path.write_text(_CTK.format(log=self._log, then=then))
        self.path.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


def _writing(*names: str, version: str = "0.5.0") -> str:
    devices = ", ".join(
        json.dumps({"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/of-ctk-{name}"}]}})
        for name in names
    )
    return _WRITE.format(devices=devices, version=version)


def _options(ctk: Path, **more: Any) -> Options:
    return Options(nvidia_ctk=str(ctk), **more)


def _spec(directory: Path, name: str = GPU_FILE) -> Any:
    """The spec on disk, in the shape that runtimes take."""
    spec = json.loads((directory / name).read_text())
    jsonschema.validate(spec, CDI_SPEC)
    return spec


def _nodes(spec: Any, name: str) -> list[str]:
    edits = next(device["containerEdits"] for device in spec["devices"] if device["name"] == name)
    return [node["path"] for node in edits["deviceNodes"]]


def _keeper(directory: Path, deadline_s: float = 20.0) -> CdiSpecWriter:
    return CdiSpecWriter(directory / "cdi", deadline_s, static=directory / "etc-cdi")


# --- with nvidia-ctk ------------------------------------------------------------------------------


async def test_the_spec_is_what_nvidia_ctk_writes_and_our_edits(tmp_path: Path) -> None:
    """Libraries, hooks and version stay; the runtime must not inject a second time."""
    ctk = _Toolkit(tmp_path, _writing(gpu(0).uuid, gpu(1).uuid, "all"))
    kept = await _keeper(tmp_path).update(node(gpu(0), gpu(1)), _options(ctk.path), now_s=0)
    assert (kept.path, kept.complete, kept.reason) == (tmp_path / "cdi" / GPU_FILE, True, "")
    spec = _spec(tmp_path / "cdi")
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert spec["cdiVersion"] == "0.5.0"
    assert [device["name"] for device in spec["devices"]] == [gpu(0).uuid, gpu(1).uuid, "all"]
    assert _nodes(spec, gpu(0).uuid) == [f"/dev/of-ctk-{gpu(0).uuid}"]
    assert spec["containerEdits"]["env"] == ["X=1", "NVIDIA_VISIBLE_DEVICES=void"]
    assert spec["containerEdits"]["mounts"][0]["hostPath"] == "/lib/libcuda.so.1"
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o644
    assert {file.name for file in (tmp_path / "cdi").iterdir()} == {GPU_FILE, DIGEST_FILE}


async def test_nvidia_ctk_is_asked_for_our_vendor_names_and_roots(tmp_path: Path) -> None:
    ctk = _Toolkit(tmp_path, _writing("0"))
    options = _options(ctk.path, device_ids=DeviceIdStrategy.INDEX, driver_root="/driver", dev_root="/host")
    await _keeper(tmp_path).update(node(gpu(0)), options, now_s=0)
    (asked,) = ctk.asked
    arguments = asked.split()
    assert arguments[:2] == ["cdi", "generate"]
    assert {
        "--format=json",
        "--vendor=k8s.device-plugin.nvidia.com",
        "--class=gpu",
        "--device-name-strategy=index",
        "--driver-root=/driver",
        "--dev-root=/host",
        f"--nvidia-ctk-path={ctk.path}",
    } <= set(arguments)


async def test_a_device_that_nvidia_ctk_leaves_out_is_added(tmp_path: Path) -> None:
    """It writes no entry for a GPU in MIG mode, which mig-strategy none offers whole."""
    card = gpu(0, migs=1)
    ctk = _Toolkit(tmp_path, _writing(card.mig_devices[0].uuid))
    kept = await _keeper(tmp_path).update(node(card), _options(ctk.path), now_s=0)
    assert kept.complete
    spec = _spec(tmp_path / "cdi")
    assert _nodes(spec, card.uuid) == ["/dev/nvidia10"]
    assert _nodes(spec, card.mig_devices[0].uuid) == [f"/dev/of-ctk-{card.mig_devices[0].uuid}"]


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        ({}, "0.3.0"),
        ({"dev_root": "/driver"}, "0.5.0"),
        ({"device_ids": DeviceIdStrategy.INDEX}, "0.5.0"),
    ],
    ids=["plain", "hostPath", "digit first"],
)
async def test_the_version_is_the_lowest_that_has_what_the_spec_uses(
    tmp_path: Path, asked: dict[str, Any], version: str
) -> None:
    """A runtime refuses a spec of a version that it does not know."""
    await _keeper(tmp_path).update(node(gpu(0)), _options(tmp_path / "none", **asked), now_s=0)
    assert _spec(tmp_path / "cdi")["cdiVersion"] == version


@pytest.mark.parametrize(("theirs", "whole"), [("0.3.0", "0.5.0"), ("0.7.0", "0.7.0")])
async def test_a_device_of_ours_raises_the_version_where_it_needs_that(
    tmp_path: Path, theirs: str, whole: str
) -> None:
    card = gpu(0, migs=1)
    ctk = _Toolkit(tmp_path, _writing(card.mig_devices[0].uuid, version=theirs))
    await _keeper(tmp_path).update(node(card), _options(ctk.path, dev_root="/driver"), now_s=0)
    assert _spec(tmp_path / "cdi")["cdiVersion"] == whole


async def test_other_classes_have_specs_of_their_own(tmp_path: Path) -> None:
    """And only those that could be written are named."""
    then = f'[ "$class" = mofed ] && {{ echo no mode mofed >&2; exit 1; }}\n{_writing("all")}'
    ctk = _Toolkit(tmp_path, then)
    options = _options(ctk.path, gds=True, mofed=True, imex_channels=(0,))
    kept = await _keeper(tmp_path).update(node(gpu(0)), options, now_s=0)
    assert kept.classes == ("imex-channel", "gds")
    assert (kept.complete, kept.reason) == (False, "no spec for mofed")
    gds = _spec(tmp_path / "cdi", "k8s.device-plugin.nvidia.com-gds.json")
    assert gds["kind"] == "k8s.device-plugin.nvidia.com/gds"
    imex = _spec(tmp_path / "cdi", "k8s.device-plugin.nvidia.com-imex-channel.json")
    assert _nodes(imex, "0") == ["/dev/nvidia-caps-imex-channels/channel0"]
    assert any("--mode=gds" in asked for asked in ctk.asked)


# --- written again when something changed -------------------------------------------------------------


def _changes(inventory: Inventory) -> Sequence[Inventory]:
    return (
        replace(inventory, driver=Driver("580.95.05", "13.0")),
        replace(inventory, gpus=(gpu(0, migs=1),)),
        replace(inventory, gpus=(gpu(0, migs=2),)),
    )


async def test_a_spec_is_written_again_when_driver_or_mig_changes_and_only_then(tmp_path: Path) -> None:
    ctk = _Toolkit(tmp_path, _writing(gpu(0).uuid))
    keeper, inventory = _keeper(tmp_path), node(gpu(0))
    await keeper.update(inventory, _options(ctk.path), now_s=0)
    digests = {(tmp_path / "cdi" / DIGEST_FILE).read_text()}
    for number, changed in enumerate(_changes(inventory), start=1):
        await keeper.update(changed, _options(ctk.path), now_s=1)
        again = await keeper.update(replace(changed, boot_id="other"), _options(ctk.path), now_s=10 * RETRY_S)
        assert again.complete
        assert len(ctk.asked) == number + 1
        digests.add((tmp_path / "cdi" / DIGEST_FILE).read_text())
    assert len(digests) == 4


async def test_a_new_agent_takes_over_the_spec_that_is_still_right(tmp_path: Path) -> None:
    """Its start does not wait for nvidia-ctk."""
    ctk = _Toolkit(tmp_path, _writing(gpu(0).uuid))
    first = await _keeper(tmp_path).update(node(gpu(0)), _options(ctk.path), now_s=0)
    second = await _keeper(tmp_path).update(node(gpu(0)), _options(ctk.path), now_s=0)
    assert second == first
    assert len(ctk.asked) == 1


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"annotations": 3}', b"\xff"])
async def test_a_spec_that_was_damaged_or_deleted_is_written_again(tmp_path: Path, damage: bytes) -> None:
    ctk = _Toolkit(tmp_path, _writing(gpu(0).uuid))
    first = _keeper(tmp_path)
    await first.update(node(gpu(0)), _options(ctk.path), now_s=0)
    whole = _spec(tmp_path / "cdi")
    (tmp_path / "cdi" / GPU_FILE).write_bytes(damage)
    await _keeper(tmp_path).update(node(gpu(0)), _options(ctk.path), now_s=0)
    assert _spec(tmp_path / "cdi") == whole
    (tmp_path / "cdi" / GPU_FILE).unlink()
    await first.update(node(gpu(0)), _options(ctk.path), now_s=0)
    assert _spec(tmp_path / "cdi") == whole


# --- without it ----------------------------------------------------------------------------------------


def _assert_nodes_only(directory: Path) -> None:
    card = gpu(1, migs=1)
    spec = _spec(directory)
    assert [device["name"] for device in spec["devices"]] == [
        gpu(0).uuid,
        card.uuid,
        card.mig_devices[0].uuid,
    ]
    assert _nodes(spec, gpu(0).uuid) == ["/dev/nvidia10"]
    caps = ["/dev/nvidia-caps/nvidia-cap100", "/dev/nvidia-caps/nvidia-cap101"]
    assert _nodes(spec, card.mig_devices[0].uuid) == ["/dev/nvidia11", *caps]
    assert [node["path"] for node in spec["containerEdits"]["deviceNodes"]] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]
    assert "mounts" not in spec["containerEdits"]


async def test_without_nvidia_ctk_a_spec_holds_device_nodes_and_is_called_incomplete(tmp_path: Path) -> None:
    inventory = node(gpu(0), gpu(1, migs=1))
    kept = await _keeper(tmp_path).update(inventory, _options(tmp_path / "nvidia-ctk"), now_s=0)
    assert not kept.complete
    assert f"{tmp_path}/nvidia-ctk is not there" in kept.reason
    _assert_nodes_only(tmp_path / "cdi")


async def test_a_spec_that_has_lost_its_libraries_is_not_taken_over(tmp_path: Path) -> None:
    """The toolkit was gone for a while: the digest of the complete spec went with it."""
    ctk = _Toolkit(tmp_path, _writing(gpu(0).uuid))
    await _keeper(tmp_path).update(node(gpu(0)), _options(ctk.path), now_s=0)
    ctk.path.rename(tmp_path / "away")
    assert not (await _keeper(tmp_path).update(node(gpu(0)), _options(ctk.path), now_s=0)).complete
    assert not (tmp_path / "cdi" / DIGEST_FILE).exists()
    (tmp_path / "away").rename(ctk.path)
    assert (await _keeper(tmp_path).update(node(gpu(0)), _options(ctk.path), now_s=0)).complete
    assert len(ctk.asked) == 2


async def test_an_nvidia_ctk_that_arrives_later_is_used(tmp_path: Path) -> None:
    keeper = _keeper(tmp_path)
    assert not (await keeper.update(node(gpu(0)), _options(tmp_path / "nvidia-ctk"), now_s=0)).complete
    ctk = _Toolkit(tmp_path, _writing(gpu(0).uuid))
    assert (await keeper.update(node(gpu(0)), _options(ctk.path), now_s=1)).complete


async def test_a_simulated_node_never_asks_nvidia_ctk(tmp_path: Path) -> None:
    """It would describe the GPUs of the machine that simulates."""
    ctk = _Toolkit(tmp_path, _writing("all"))
    kept = await _keeper(tmp_path).update(replace(node(gpu(0)), simulated=True), _options(ctk.path), now_s=0)
    assert (kept.complete, kept.reason, ctk.asked) == (False, "a simulated node: device nodes only", [])


async def test_device_nodes_lie_below_the_device_root_and_are_called_by_index(tmp_path: Path) -> None:
    options = _options(tmp_path / "none", device_ids=DeviceIdStrategy.INDEX, dev_root="/host/")
    await _keeper(tmp_path).update(node(gpu(0), gpu(2, migs=1)), options, now_s=0)
    spec = _spec(tmp_path / "cdi")
    first, second = gpu(0), gpu(2, migs=1)
    names = ["0", first.uuid, "2", second.uuid, "2:0", second.mig_devices[0].uuid]
    assert [device["name"] for device in spec["devices"]] == names  # claims ask by UUID
    (first,) = spec["devices"][0]["containerEdits"]["deviceNodes"]
    assert first == {"path": "/dev/nvidia10", "hostPath": "/host/dev/nvidia10"}


_NONSENSE = {
    "fails": ("echo first >&2; echo no NVML here >&2; exit 3", "failed (3): no NVML here"),
    "fails silently": ("exit 1", "no reason given"),
    "writes nothing": ("exit 0", "wrote no spec that can be read"),
    "writes no JSON": ('echo "cdiVersion: 0.5.0" > "$output"', "wrote no spec that can be read"),
    "writes a list": ('echo "[]" > "$output"', "it is not a CDI spec"),
    "writes another kind": ("vendor=nvidia.com\n" + _writing("0"), "its kind is 'nvidia.com/gpu'"),
    "writes no devices": (_writing(), "it has no devices"),
    "writes a bare device": (_writing("0").replace('"name"', '"nome"'), "no name or no edits"),
}


@pytest.mark.parametrize(("then", "reason"), _NONSENSE.values(), ids=_NONSENSE)
async def test_what_cannot_be_used_leads_to_device_nodes_and_a_reason(
    tmp_path: Path, then: str, reason: str
) -> None:
    ctk = _Toolkit(tmp_path, then)
    kept = await _keeper(tmp_path).update(node(gpu(0), gpu(1, migs=1)), _options(ctk.path), now_s=0)
    assert not kept.complete
    assert reason in kept.reason
    _assert_nodes_only(tmp_path / "cdi")


async def test_an_nvidia_ctk_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    ctk = _Toolkit(tmp_path, f'sleep 60 & echo $! > "{tmp_path}/child"; echo $$ > "{tmp_path}/self"; wait')
    kept = await _keeper(tmp_path, deadline_s=2.0).update(node(gpu(0)), _options(ctk.path), now_s=0)
    assert not kept.complete
    assert "did not end within 2 s" in kept.reason
    pids = [int((tmp_path / name).read_text()) for name in ("self", "child")]
    async with asyncio.timeout(10):
        while any(_runs(pid) for pid in pids):
            await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    """A process that was killed and not yet taken note of does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_failure_is_tried_again_after_a_while_and_no_sooner(tmp_path: Path) -> None:
    """At boot the driver may load later; but not every turn may wait for nvidia-ctk."""
    ctk = _Toolkit(tmp_path, "exit 1")
    keeper, inventory = _keeper(tmp_path), node(gpu(0))
    await keeper.update(inventory, _options(ctk.path), now_s=100)
    await keeper.update(inventory, _options(ctk.path), now_s=100 + RETRY_S - 1)
    assert len(ctk.asked) == 1
    ctk = _Toolkit(tmp_path, _writing(gpu(0).uuid))
    assert (await keeper.update(inventory, _options(ctk.path), now_s=100 + RETRY_S)).complete


async def test_a_file_that_cannot_be_run_is_said(tmp_path: Path) -> None:
    ctk = tmp_path / "nvidia-ctk"
    ctk.write_bytes(b"\x7fELF, or not")
    ctk.chmod(0o755)
    kept = await _keeper(tmp_path).update(node(gpu(0)), _options(ctk), now_s=0)
    assert "cannot be run" in kept.reason


async def test_a_node_without_gpus_has_no_spec(tmp_path: Path) -> None:
    """A spec without devices is none to a runtime."""
    kept = await _keeper(tmp_path).update(node(), _options(tmp_path / "none"), now_s=0)
    assert (kept.complete, kept.reason) == (False, "the node has no GPU that answers")
    assert not (tmp_path / "cdi").exists()


async def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file is in the way")
    with pytest.raises(HardwareError, match="cannot be written"):
        await _keeper(tmp_path).update(node(gpu(0)), _options(tmp_path / "none"), now_s=0)


def test_the_machine_that_tests_lets_scripts_run(tmp_path: Path) -> None:
    """The tests above need an executable tmp_path; without it they would all see 'cannot be run'."""
    assert os.access(_Toolkit(tmp_path, "exit 0").path, os.X_OK)

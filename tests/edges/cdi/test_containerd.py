"""A real containerd starts containers with the CDI names that Allocate answers. No GPU: the driver's own
libraries, device files without a driver behind them, and the stand-in for NVML.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from partage.edges.cdi.spec_writer import CdiSpecWriter
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.ids import GpuUuid
from partage.model.policy import DeviceListStrategy, Options
from partage.model.share import resources_of
from partage.plan.offer.advertise import advertise
from partage.plan.offer.assign import assign
from partage.plan.serve.allocate_response import AllocateResponder
from tests.edges.cdi.conftest import inventory_of
from tests.edges.hardware.stub import StubNode

pytestmark = pytest.mark.real
PROGRAMS = Path(__file__).parents[3] / "build" / "cluster"
POLICY = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 2}}]\n"
CONFIG = """\
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
]
[grpc]
address = "{folder}/containerd.sock"
[ttrpc]
address = "{folder}/containerd.ttrpc.sock"
"""
STARTS_WITHIN_S = 60.0


class Containerd:
    """Runs in a mount namespace of its own, with a /run of its own: its CDI specs are those of ``specs``.

    cgroup2: with cgroup v2 alone, whatever the machine has.
    """

    def __init__(self, folder: Path, specs: Path, *, cgroup2: bool = False) -> None:
        self._folder = folder
        config = folder / "containerd.toml"
        config.write_text(CONFIG.format(folder=folder))
        mounts = 'mount -t tmpfs run /run && mkdir /run/cdi && mount --bind "$1" /run/cdi'
        if cgroup2:
            mounts += " && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
        self._log = (folder / "containerd.log").open("wb")
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c",
             f'{mounts} && exec "$2" -c "$3"', "sh",
             str(specs), str(PROGRAMS / "containerd"), str(config)],
            env=os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
            stdout=self._log,
            stderr=self._log,
        )  # fmt: skip

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What ctr says, in the same mount namespace."""
        return subprocess.run(
            ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", str(PROGRAMS / "ctr"),
             "-a", f"{self._folder}/containerd.sock", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )  # fmt: skip

    def wait(self) -> None:
        """Until it answers."""
        end_s = time.monotonic() + STARTS_WITHIN_S
        while self._process.poll() is None and time.monotonic() < end_s:
            if (self._folder / "containerd.sock").exists() and not self.ctr("version").returncode:
                return
            time.sleep(0.1)
        raise AssertionError((self._folder / "containerd.log").read_text()[-2000:])

    def stop(self) -> None:
        """Its containers have ended: ``ctr run --rm`` waits for them."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@contextmanager
def running(specs: Path, *, cgroup2: bool = False) -> Iterator[Containerd]:
    """A containerd with these CDI specs; skips the test where its parts are not there."""
    missing = [
        name for name in ("containerd", "containerd-shim-runc-v2", "ctr") if not (PROGRAMS / name).exists()
    ]
    missing += [name for name in ("runc", "unshare", "nsenter") if shutil.which(name) is None]
    missing += [] if Path("/bin/busybox").exists() else ["busybox"]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: tests/cluster/packages and tests/cluster/build fetch them")
    if os.geteuid():
        pytest.skip("containers are started as root")
    # A worker's folder with a test's name is too long for the sockets.
    with tempfile.TemporaryDirectory(prefix="partage-", dir="/tmp") as folder:
        started = Containerd(Path(folder), specs, cgroup2=cgroup2)
        try:
            started.wait()
            yield started
        finally:
            started.stop()


@pytest.fixture
def containerd(dynamic: Path) -> Iterator[Containerd]:
    """One that reads the node's specs."""
    with running(dynamic) as started:
        yield started


def busybox_image(tmp_path: Path) -> Path:
    """The root file system of a container: busybox."""
    made = tmp_path / "image"
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc", "run"):
        (made / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", made / "bin")
    (made / "bin/sh").symlink_to("busybox")
    return made


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The same."""
    return busybox_image(tmp_path)


async def _names(root: StubNode, options: Options) -> dict[GpuUuid, tuple[str, ...]]:
    """What Allocate answers for the first share of each GPU."""
    inventory = await inventory_of(root)
    policy = parse_policy(POLICY, "policy.yaml").policy
    offer = advertise(assign(policy, inventory, geometry_of), inventory, policy)
    (resource,) = resources_of(offer).values()
    responder = AllocateResponder(resource, inventory, options, "/run/partage")
    return {one.gpu: responder.answer([one.share_ids[0]]).cdi_devices for one in resource.offerings}


async def test_containers_get_the_driver_and_their_gpu_alone(
    root: StubNode, environment: Path, static: Path, dynamic: Path, containerd: Containerd, image: Path
) -> None:
    options = Options(
        nvidia_ctk=str(environment / "nvidia-ctk"),
        driver_root=str(root.root),
        dev_root=str(root.root),
        device_list=(DeviceListStrategy.CDI_CRI,),
    )
    inventory = await inventory_of(root)
    kept = await CdiSpecWriter(dynamic, static=static).update(inventory, options, now_s=0)
    assert (kept.complete, kept.reason) == (True, "")
    names = await _names(root, options)
    assert len(names) == 2
    for gpu in inventory:
        devices = [word for name in names[gpu.uuid] for word in ("--device", name)]
        look = "busybox ls -d /dev/nvidia* /usr/lib64/libcuda.so*; echo $NVIDIA_VISIBLE_DEVICES"
        ran = containerd.ctr(
            "run", "--rm", "--rootfs", *devices, str(image), f"gpu{gpu.index}", "/bin/sh", "-c", look
        )
        assert ran.returncode == 0, ran.stderr
        seen = ran.stdout.split()
        assert "/usr/lib64/libcuda.so.550.163.01" in seen
        assert [name for name in seen if name.startswith("/dev/nvidia") and name[-1].isdigit()] == [
            f"/dev/nvidia{gpu.minor}"
        ]
        assert "/dev/nvidiactl" in seen
        assert seen[-1] == "void"


async def test_a_name_without_a_spec_keeps_the_container_from_starting(
    containerd: Containerd, image: Path
) -> None:
    name = "k8s.device-plugin.nvidia.com/gpu=GPU-of-no-spec"
    ran = containerd.ctr(
        "run", "--rm", "--rootfs", "--device", name, str(image), "gpu", "/bin/sh", "-c", "echo x"
    )
    assert ran.returncode
    assert f"unresolvable CDI devices {name}" in ran.stderr

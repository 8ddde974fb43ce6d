"""A real containerd starts containers with the CDI names of memory limits, beside those of the toolkit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from partage.edges.cdi.limit_files import LimitFiles
from partage.edges.cdi.spec_writer import CdiSpecWriter
from partage.model.driver_limit import DriverLimit
from partage.model.ids import ResourceName
from partage.model.policy import Options
from partage.plan.serve.limit_edits import limit_set, limit_terms
from partage.units import GIB
from tests.edges.cdi.conftest import inventory_of
from tests.edges.cdi.limit_hook.node import Kept, kept_limits
from tests.edges.cdi.test_containerd import Containerd, busybox_image, running
from tests.edges.hardware.stub import StubNode

pytestmark = pytest.mark.real
GPU, OTHER = StubNode.uuid(0), StubNode.uuid(1)
NAME = ResourceName("nvidia.com/gpu.shared")
LIMITS = limit_set([DriverLimit(GPU, 8 * GIB), DriverLimit(OTHER, 3 * GIB)], NAME)


@pytest.fixture
def containerd(dynamic: Path) -> Iterator[Containerd]:
    """On a node with cgroup v2."""
    with running(dynamic, cgroup2=True) as started:
        yield started


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Busybox."""
    return busybox_image(tmp_path)


def _start(
    containerd: Containerd, image: Path, id_: str, names: list[str], *env: str
) -> tuple[int, str, str]:
    words = [word for name in names for word in ("--device", name)]
    words += [word for line in env for word in ("--env", line)]
    ran = containerd.ctr(
        "run", "--rm", "--cpu-shares=0", "--rootfs", *words, str(image), id_, "/bin/sh", "-c", "echo started"
    )
    print(ran.stderr)
    return ran.returncode, ran.stdout, ran.stderr


def _place(id_: str) -> str:
    return f"/sys/fs/cgroup/default/{id_}"


def test_each_start_has_the_limits_on_its_own_cgroup(
    driver: StubNode, hook: Path, dynamic: Path, containerd: Containerd, image: Path, tmp_path: Path
) -> None:
    terms = limit_terms(str(hook), str(driver.root), "", nvidia=False)
    LimitFiles(dynamic, tmp_path / "kept").write(LIMITS, terms)
    name = LIMITS.device
    for id_ in ("init", "first", "again"):
        assert _start(containerd, image, id_, [name]) == (0, "started\n", "")
    assert sorted((kept.directory, kept.gpu, kept.hard) for kept in kept_limits(driver)) == sorted(
        (_place(id_), limit.gpu, limit.limit_bytes)
        for id_ in ("init", "first", "again")
        for limit in LIMITS.limits
    )
    driver.write(**{"gpu.1.code": 15})
    code, printed, said = _start(containerd, image, "refused", [name])
    assert (code != 0, printed) == (True, "")
    assert f"partage-limit-hook: looking for the GPU {OTHER} failed" in said


def test_two_resources_of_one_gpu_are_limited_to_their_sum(
    driver: StubNode, hook: Path, dynamic: Path, containerd: Containerd, image: Path, tmp_path: Path
) -> None:
    """Of the same size, too. The runtime is told one of the names twice."""
    terms = limit_terms(str(hook), str(driver.root), "", nvidia=False)
    sets = [
        limit_set([DriverLimit(GPU, amount * GIB)], ResourceName(f"nvidia.com/{name}"))
        for name, amount in (("a", 2), ("b", 2), ("c", 5))
    ]
    for given in sets:
        LimitFiles(dynamic, tmp_path / "kept").write(given, terms)
    names = [given.device for given in (*sets, sets[0])]
    assert _start(containerd, image, "sum", names) == (0, "started\n", "")
    assert kept_limits(driver)[-1] == Kept(GPU, 0, 9 * GIB, _place("sum"))


async def test_nvidias_hook_comes_with_the_gpu_and_ours_is_the_last_word(
    root: StubNode, environment: Path, static: Path, dynamic: Path, hook: Path,
    containerd: Containerd, image: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """Both of them on one container, whose tenant sets NVIDIA's variables himself."""
    root.write(**{"gpu.0.limits": "misc", "gpu.1.limits": "misc"})
    ctk, place = str(environment / "nvidia-ctk"), str(root.root)
    options = Options(nvidia_ctk=ctk, driver_root=place, dev_root=place)
    kept = await CdiSpecWriter(dynamic, static=static).update(await inventory_of(root), options, now_s=0)
    assert kept.nvidia_limits
    again = await CdiSpecWriter(dynamic, static=static).update(await inventory_of(root), options, now_s=0)
    assert again.nvidia_limits
    gpu = f"k8s.device-plugin.nvidia.com/gpu={GPU}"
    theirs = "NVIDIA_GPU_MEMORY_REQUEST=0", "NVIDIA_GPU_MEMORY_LIMIT=1024"
    assert _start(containerd, image, "theirs", [gpu], *theirs) == (0, "started\n", "")
    assert kept_limits(root) == [Kept(GPU, 0, GIB, _place("theirs"))]
    ours = limit_set([DriverLimit(GPU, 8 * GIB)], NAME)
    terms = limit_terms(str(hook), place, "", nvidia=True)
    LimitFiles(dynamic, tmp_path / "kept").write(ours, terms)
    greedy = "NVIDIA_GPU_MEMORY_REQUEST=70000", "NVIDIA_GPU_MEMORY_LIMIT=80000"
    code, _, said = _start(containerd, image, "both", [gpu, ours.device], *greedy)
    assert code == 0, said
    assert kept_limits(root)[1:] == [
        Kept(GPU, 70000 << 20, 80000 << 20, _place("both")),
        Kept(GPU, 0, 8 * GIB, _place("both")),
    ]

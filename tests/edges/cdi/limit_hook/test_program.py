"""The hook as a program: arguments, a hostile state, cgroups that are not the container's, the driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.edges.cdi.limit_hook.node import GROUP, SOURCE, CgroupNode, Kept, kept_limits
from tests.edges.hardware.stub import H100_MEMORY_BYTES, StubNode

GPU, OTHER = StubNode.uuid(0), StubNode.uuid(1)
ID = "0123456789abcdef"
CGROUP = f"/{GROUP}/kubepods/{ID}"
LIMIT = 8 << 30


def _state(pid: object, **members: object) -> str:
    return json.dumps({"ociVersion": "1.0.2", "id": ID, "status": "creating", "pid": pid, **members})


def _set(
    cgroups: CgroupNode, hook: Path, driver: StubNode, state: str | bytes, *limits: str
) -> tuple[int, str]:
    """Exit status and what it says, without its own name."""
    limits = limits or (f"{GPU}={LIMIT}",)
    ended = cgroups.run(hook, "set", f"--driver-root={driver.root}", *limits, stdin=state)
    assert ended.stdout == ""
    if ended.returncode:
        assert ended.stderr.count("\n") == 1
        assert ended.stderr.startswith("partage-limit-hook: ")
    return ended.returncode, ended.stderr.strip().removeprefix("partage-limit-hook: ")


@pytest.fixture
def pid(cgroups: CgroupNode) -> object:
    """Of the container's process."""
    with cgroups.process_in(CGROUP) as pid:
        yield pid


def test_each_gpu_has_its_limit_and_no_soft_one(
    cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int
) -> None:
    limits = f"{GPU}={LIMIT}", f"{OTHER}={LIMIT * 2}"
    assert _set(cgroups, hook, driver, _state(pid), *limits) == (0, "")
    place = f"/sys/fs/cgroup{CGROUP}"
    assert kept_limits(driver) == [Kept(GPU, 0, LIMIT, place), Kept(OTHER, 0, LIMIT * 2, place)]


def _granted(cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int, grant: str, *limits: str) -> str:
    """What it says when a CDI file brings these limits for one request."""
    words: list[str | Path] = [hook, "set", f"--driver-root={driver.root}", *limits]
    return cgroups.run("env", f"PARTAGE_GRANT={grant}", *words, stdin=_state(pid)).stderr


def test_requests_of_one_gpu_are_added_and_each_counts_once(
    cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int
) -> None:
    """A claim that a pod names twice, and a runtime that applies a name twice, give no more."""
    for grant, limits in (
        ("set-a", (f"{GPU}={LIMIT}", f"{OTHER}={LIMIT}")),
        ("set-b", (f"{GPU}={LIMIT * 2}",)),
        ("set-b", (f"{GPU}={LIMIT * 2}",)),
        ("set-a", (f"{GPU}={LIMIT}", f"{OTHER}={LIMIT}")),
    ):
        assert _granted(cgroups, hook, driver, pid, grant, *limits) == ""
    now = {kept.gpu: kept.hard for kept in kept_limits(driver)}
    assert now == {GPU: LIMIT * 3, OTHER: LIMIT}


def test_what_others_have_set_is_not_added_to(
    cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int
) -> None:
    """Such as NVIDIA's hook, by a tenant's variables, or a file of the version before."""
    assert _set(cgroups, hook, driver, _state(pid), f"{GPU}={LIMIT * 5}") == (0, "")
    assert _granted(cgroups, hook, driver, pid, "set-a", f"{GPU}={LIMIT}") == ""
    assert [kept.hard for kept in kept_limits(driver)][-1] == LIMIT


def test_the_requests_of_another_container_are_not_added(
    cgroups: CgroupNode, hook: Path, driver: StubNode
) -> None:
    """Also in a cgroup of the same name: what was noted went with the one before."""
    for grant in ("set-a", "set-b"):
        with cgroups.process_in(CGROUP) as pid:
            assert _granted(cgroups, hook, driver, pid, grant, f"{GPU}={LIMIT}") == ""
    assert [kept.hard for kept in kept_limits(driver)] == [LIMIT, LIMIT]


@pytest.mark.parametrize(
    ("grant", "limit", "said"),
    [
        ("", LIMIT, "is not the name of a request"),
        ("a.b", LIMIT, "is not the name of a request"),
        ("../a", LIMIT, "is not the name of a request"),
        ("a" * 140, LIMIT, "is not the name of a request"),
        ("set-b", 18446744073709551600, "more than any GPU"),
    ],
)
def test_a_damaged_grant_is_refused(
    cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int, grant: str, limit: int, said: str
) -> None:
    assert _granted(cgroups, hook, driver, pid, "set-a", f"{GPU}={LIMIT}") == ""
    assert said in _granted(cgroups, hook, driver, pid, grant, f"{GPU}={limit}")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("set",),
        ("set", "--driver-root=/"),
        ("set", "--driver-root=relative", f"{GPU}=1"),
        ("get", f"{GPU}=1"),
        ("set", "--soft=1", f"{GPU}=1"),
        *(
            ("set", limit)
            for limit in (
                "GPU-1", "=1", f"{GPU}=", f"{GPU}=0", f"{GPU}=-1", f"{GPU}=1GiB", f"{GPU}= 1", f"{GPU}=+1",
                f"{GPU}=18446744073709551615", f"{GPU}=99999999999999999999999", f"GPU 1{GPU}=1",
                f"{'G' * 96}=1", f"../{GPU}=1",
            )
        ),
        ("set", f"{GPU}=1", f"{GPU}=2"),
        ("set", *(f"GPU-{number}=1" for number in range(65))),
    ],
)  # fmt: skip
def test_other_arguments_are_refused(
    cgroups: CgroupNode, hook: Path, pid: int, words: tuple[str, ...]
) -> None:
    ended = cgroups.run(hook, *words, stdin=_state(pid))
    assert ended.returncode == 1
    assert re.search(r"is not UUID=BYTES|used as: |is named twice|more than 64", ended.stderr)


_HOSTILE = {
    "nothing": "",
    "no object": "[1]",
    "no JSON": '{"id":"a","pid":}',
    "cut off": '{"id":"a","pid":12',
    "more behind it": '{"id":"a","pid":12} {"pid":13}',
    "a zero byte": '{"id":"a","pid":12}\0',
    "no pid": '{"id":"a"}',
    "no id": '{"pid":12}',
    "an id that is a path": '{"id":"../x","pid":12}',
    "an id with an escape": '{"id":"\\u0061","pid":12}',
    "an empty id": '{"id":"","pid":12}',
    "a long id": json.dumps({"id": "a" * 300, "pid": 12}),
    "two pids": '{"id":"a","pid":12,"pid":13}',
    "pid 0": '{"id":"a","pid":0}',
    "pid 1": '{"id":"a","pid":1}',
    "a negative pid": '{"id":"a","pid":-12}',
    "a pid in quotes": '{"id":"a","pid":"12"}',
    "a pid with a fraction": '{"id":"a","pid":12.5}',
    "a pid above the kernel's": '{"id":"a","pid":4194305}',
    "a pid that overflows": '{"id":"a","pid":18446744073709551628}',
    "the pid in an annotation": '{"id":"a","annotations":{"pid":12}}',
    "the pid in a text": '{"id":"a","annotations":"\\"pid\\":12"}',
    "too deep": '{"id":"a","x":' + "[" * 100 + "]" * 100 + ',"pid":12}',
}


@pytest.mark.parametrize("state", _HOSTILE.values(), ids=_HOSTILE.keys())
def test_what_is_no_state_is_refused(cgroups: CgroupNode, hook: Path, driver: StubNode, state: str) -> None:
    code, said = _set(cgroups, hook, driver, state)
    assert (code, said[:43]) == (1, "standard input is not the state of a contai")


def test_a_state_has_an_end(cgroups: CgroupNode, hook: Path, driver: StubNode) -> None:
    code, said = _set(cgroups, hook, driver, b" " * (5 << 20))
    assert (code, "is longer than 4194303 bytes" in said) == (1, True)


def test_annotations_of_a_tenant_change_nothing(
    cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int
) -> None:
    hostile = {"pid": 1, "id": "x", '"pid":7,"': '"},"pid":7,{"', "a": [{"pid": [1, {}, "\\"]}], "ü": '\\\\"'}
    state = _state(pid, annotations=hostile, bundle='/run/"}{/b')
    assert _set(cgroups, hook, driver, state) == (0, "")
    assert [kept.directory for kept in kept_limits(driver)] == [f"/sys/fs/cgroup{CGROUP}"]


def test_a_node_without_cgroup_v2_is_named(hook: Path, driver: StubNode) -> None:
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("mounts as root")
    ended = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c",
         'mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"', "sh",
         hook, "set", f"--driver-root={driver.root}", f"{GPU}={LIMIT}"],
        input=_state(os.getpid()), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "this node has no cgroup version 2 at /sys/fs/cgroup" in ended.stderr
    assert kept_limits(driver) == []


def test_a_process_that_is_gone_is_named(cgroups: CgroupNode, hook: Path, driver: StubNode) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    code, said = _set(cgroups, hook, driver, _state(gone.pid))
    assert (code, said) == (1, f"the container's process {gone.pid} is gone")


def test_a_process_in_another_cgroup_is_refused(cgroups: CgroupNode, hook: Path, driver: StubNode) -> None:
    """As with gVisor, whose process is in the cgroup of the pod's sandbox."""
    cgroup = f"/{GROUP}/kubepods/sandbox"
    with cgroups.process_in(cgroup) as pid:
        code, said = _set(cgroups, hook, driver, _state(pid))
    assert code == 1
    assert f"is in the cgroup {cgroup}, which is not the one of container {ID}" in said
    assert kept_limits(driver) == []


def test_the_cgroup_of_the_whole_node_is_never_limited(
    cgroups: CgroupNode, hook: Path, driver: StubNode
) -> None:
    words = "sh", "-c", "echo $$ > /sys/fs/cgroup/cgroup.procs && echo ready && exec cat"
    process = cgroups.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    code, said = _set(cgroups, hook, driver, _state(process.pid))
    process.communicate()
    assert (code, f"is in the cgroup /, which is not the one of container {ID}" in said) == (1, True)
    assert kept_limits(driver) == []


def test_a_library_without_the_functions_is_named(
    cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int
) -> None:
    driver.lacks("nvmlDeviceSetMemoryLimits_v1")
    code, said = _set(cgroups, hook, driver, _state(pid))
    assert code == 1
    assert "has no function nvmlDeviceSetMemoryLimits_v1: memory limits need NVIDIA driver branch 615" in said


def test_no_library_below_the_drivers_root(
    cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int
) -> None:
    driver.library.unlink()
    code, said = _set(cgroups, hook, driver, _state(pid))
    assert (code, said) == (
        1,
        f"libnvidia-ml.so.1 is not below {driver.root}: is the NVIDIA driver installed there?",
    )


def test_what_is_no_library_is_named(cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int) -> None:
    driver.library.write_text("no library")
    code, said = _set(cgroups, hook, driver, _state(pid))
    assert (code, f"{driver.library} cannot be loaded" in said) == (1, True)


@pytest.mark.parametrize(
    ("keys", "limit", "sentence"),
    [
        ({"gpu.0.limits": None}, LIMIT, "setting the .* {gpu} failed: .* needs driver branch 615"),
        ({"unprivileged": 1}, LIMIT, "setting .* {gpu} failed: .* has to run as root"),
        ({}, H100_MEMORY_BYTES + 1, "setting .* {gpu} failed: .* more than the GPU has"),
        ({"gpu.0.uuid": "GPU-other"}, LIMIT, "looking for the GPU {gpu} failed: .* is the GPU still there"),
        ({"gpu.0.code": 15}, LIMIT, "looking for the GPU {gpu} failed: .*error 15"),
        ({"init": 9}, LIMIT, "opening the NVIDIA driver below .* failed: .*error 9"),
        ({"fail.nvmlDeviceGetMemoryLimits_v1": 999}, LIMIT, "reading the .* back from GPU {gpu} failed"),
    ],
)  # fmt: skip
def test_what_the_driver_refuses_is_said(
    cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int,
    keys: dict[str, object], limit: int, sentence: str,
) -> None:  # fmt: skip
    driver.write(**keys)
    code, said = _set(cgroups, hook, driver, _state(pid), f"{GPU}={limit}")
    assert code == 1
    assert re.search(sentence.format(gpu=GPU), said), said


def test_what_is_read_back_has_to_be_what_was_set(
    cgroups: CgroupNode, hook: Path, driver: StubNode, pid: int
) -> None:
    driver.library.with_name("limits.txt").symlink_to("/dev/null")
    code, said = _set(cgroups, hook, driver, _state(pid))
    assert (code, said) == (
        1,
        f"the driver was told a memory limit of {LIMIT} bytes on GPU {GPU}, and holds {2**64 - 1} (soft: 0)",
    )


def test_it_asks_only_for_versions_of_glibc_that_old_nodes_have(hook: Path) -> None:
    """RHEL 8 has 2.28, and nodes with older ones no driver of branch 615."""
    table = subprocess.run(["objdump", "-T", hook], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", table)}
    assert versions
    assert max(versions) <= (2, 17)
    needed = subprocess.run(["readelf", "-d", hook], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"Shared library: \[(.*)\]", needed)) == {"libc.so.6", "libdl.so.2"}


def test_it_is_built_for_arm64_too(tmp_path: Path) -> None:
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64-static")
    if compiler is None or emulator is None:
        pytest.skip("needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static")
    program = tmp_path / "hook"
    subprocess.run(
        [SOURCE / "build", program], check=True, env=os.environ | {"CC": compiler, "CFLAGS": "-Werror"}
    )
    ended = subprocess.run(
        [emulator, "-L", "/usr/aarch64-linux-gnu", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, "used as: " in ended.stderr) == (1, True)
    assert set(re.findall(rb"GLIBC_[0-9.]+", program.read_bytes())) == {b"GLIBC_2.17"}

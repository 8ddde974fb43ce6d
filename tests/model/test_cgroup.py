"""Whose process it is: paths as runtimes, kubelets and Slurm write them, and what a tenant may add."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.cgroup import Owner, SlurmStep, owner_of, parse_cgroup
from partage.model.ids import ContainerId, PodUid

UID = PodUid("0b5a1e0c-6f1e-4d3c-9b42-5c2d7f8e9a10")
UID_ = UID.replace("-", "_")
CID, OTHER = ContainerId("3f" * 32), ContainerId("a0" * 32)
STATIC = PodUid("d41d8cd98f00b204e9800998ecf8427e")
NO_POD = PodUid("")
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"

PODS = {
    "cgroupfs, burstable": (f"/kubepods/burstable/pod{UID}/{CID}", ""),
    "cgroupfs, best effort": (f"/kubepods/besteffort/pod{UID}/{CID}", ""),
    "cgroupfs, guaranteed": (f"/kubepods/pod{UID}/{CID}", ""),
    "containerd with systemd": (f"{SLICE}/cri-containerd-{CID}.scope", "containerd"),
    "containerd with systemd, guaranteed": (
        f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{CID}.scope",
        "containerd",
    ),
    "cri-o": (f"{SLICE}/crio-{CID}.scope", "cri-o"),
    "cri-o with crun": (f"{SLICE}/crio-{CID}.scope/container", "cri-o"),
    "cri-dockerd": (f"{SLICE}/docker-{CID}.scope", "docker"),
    "runc with cgroupfs under a kubelet with systemd": (
        f"/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{CID}",
        "containerd",
    ),
    "kind, seen from the host": (
        f"/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
        f"/kubelet-kubepods-burstable-pod{UID_}.slice/cri-containerd-{CID}.scope",
        "containerd",
    ),
    "kind with cgroupfs, seen from the host": (f"/docker/{OTHER}/kubelet/kubepods/pod{UID}/{CID}", ""),
    "kind, seen from its node": (
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_}.slice/cri-containerd-{CID}.scope",
        "containerd",
    ),
    "from a cgroup namespace": (
        f"/../../kubepods-burstable-pod{UID_}.slice/cri-containerd-{CID}.scope",
        "containerd",
    ),
    "with cgroups of its own": (
        f"{SLICE}/cri-containerd-{CID}.scope/init.scope",
        "containerd",
    ),
}

OTHERS = {
    "static pod": (f"/kubepods/burstable/pod{STATIC}/{CID}", Owner(STATIC, CID)),
    "the monitor of cri-o is not the container": (f"{SLICE}/crio-conmon-{CID}.scope", Owner(UID)),
    "the pod itself": (SLICE, Owner(UID)),
    "another container of one's own pod": (
        f"/../cri-containerd-{CID}.scope",
        Owner(NO_POD, CID, "containerd"),
    ),
    "docker": (f"/docker/{CID}", Owner(NO_POD, CID, "docker")),
    "docker with systemd": (f"/system.slice/docker-{CID}.scope", Owner(NO_POD, CID, "docker")),
    "podman": (f"/machine.slice/libpod-{CID}.scope/container", Owner(NO_POD, CID, "podman")),
    "docker in docker": (f"/docker/{CID}/docker/{OTHER}", Owner(NO_POD, CID, "docker")),
    "Slurm, v2": (
        "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3",
        Owner(job=SlurmStep("4711", "0", "3")),
    ),
    "Slurm, several nodes on one machine": (
        "/system.slice/n1_slurmstepd.scope/job_4711/step_batch/slurm",
        Owner(job=SlurmStep("4711", "batch")),
    ),
    "Slurm 26.05": (
        "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_extern/user/task_special",
        Owner(job=SlurmStep("s5K1KKYAYG5D00", "extern", "special")),
    ),
    "Slurm, v1": (
        "/slurm/uid_1000/job_4711/step_0/task_0",
        Owner(job=SlurmStep("4711", "0", "0", 1000)),
    ),
    "Slurm, v1, several nodes": ("/slurm_n1/uid_0/job_1", Owner(job=SlurmStep("1", uid=0))),
    "podman in a job": (
        f"/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/libpod-{CID}.scope",
        Owner(job=SlurmStep("4711", "0", "0")),
    ),
    "a job in a pod": (
        f"/kubepods/pod{UID}/{CID}/system.slice/slurmstepd.scope/job_9/step_0/user/task_0",
        Owner(UID, CID, "", SlurmStep("9", "0", "0")),
    ),
    "a service": ("/system.slice/sshd.service", Owner()),
    "the root": ("/", Owner()),
    "nothing": ("", Owner()),
    "digits that are no container": (f"/system.slice/{CID}0", Owner()),
    "a name that only ends like a container": (f"/user.slice/my-{CID}.scope", Owner()),
    "upper case": (f"/docker/{CID.upper()}", Owner()),
}


@pytest.mark.parametrize(("path", "runtime"), PODS.values(), ids=PODS)
def test_pod_container_and_runtime_stand_in_the_path(path: str, runtime: str) -> None:
    assert owner_of(path) == Owner(UID, CID, runtime)


@pytest.mark.parametrize(("path", "owner"), OTHERS.values(), ids=OTHERS)
def test_other_paths_say_as_much_as_they_say(path: str, owner: Owner) -> None:
    assert owner_of(path) == owner
    assert bool(owner) == (owner != Owner())


paths = st.sampled_from([path for path, _ in (*PODS.values(), *OTHERS.values())])
strange = paths | st.text(max_size=80) | st.lists(paths, max_size=3).map("/".join)
owned = st.sampled_from(
    [path for path, _ in PODS.values()]
    + [
        path
        for path, owner in OTHERS.values()
        if owner.container and owner.runtime not in ("docker", "podman")
    ]
)


@given(owned, strange)
def test_what_a_tenant_adds_below_changes_neither_pod_nor_container(path: str, added: str) -> None:
    before, after = owner_of(path), owner_of(f"{path}/{added}")
    assert (after.pod, after.container, after.runtime) == (before.pod, before.container, before.runtime)


@given(st.integers(0, 10**9), strange)
def test_what_a_job_adds_below_does_not_make_it_a_container(job: int, added: str) -> None:
    owner = owner_of(f"/system.slice/slurmstepd.scope/job_{job}/{added}")
    assert (owner.pod, owner.container) == ("", "")
    assert owner.job is not None
    assert owner.job.job == str(job)


@given(st.lists(st.text(max_size=120) | paths.map("0::{}".format), max_size=5))
def test_whatever_the_kernel_writes_has_an_answer(lines: list[str]) -> None:
    owner = parse_cgroup(lines)
    assert len(owner.container) in (0, 64)
    assert "_" not in owner.pod


V1 = [f"12:memory:/docker/{CID}", f"3:cpu,cpuacct:/docker/{OTHER}", "1:name=systemd:/", "0::/"]


@pytest.mark.parametrize(
    ("lines", "container"),
    [
        (V1, CID),
        (V1[::-1], CID),
        ([f"7:devices,freezer:/docker/{CID}\n", f"2:cpuset:/docker/{OTHER}\n"], CID),
        (["4:memory:/", f"1:name=systemd:/docker/{CID}"], CID),
        (["4:memory:/user.slice", f"0::/docker/{CID}"], CID),
        ([f"0::/docker/{CID}"], CID),
        ([f"5:cpuset:/docker/{CID}"], CID),
        (["0::/"], ""),
        (["no line at all", "one:colon"], ""),
        ([], ""),
    ],
)
def test_the_line_that_counts_is_the_first_that_says_something(lines: list[str], container: str) -> None:
    assert parse_cgroup(lines).container == container


def test_a_path_with_colons_is_read_to_its_end() -> None:
    path, _ = PODS["runc with cgroupfs under a kubelet with systemd"]
    assert parse_cgroup([f"0::{path}"]).container == CID

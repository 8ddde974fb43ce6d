"""Daemons as units of a real systemd, which a container reaches through process 1.

What is not real here: the container runtime, the boot of the node, and the control program.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from partage.edges.mps.systemd import unit_name
from tests.edges.mps.conftest import simulated_subject
from tests.edges.mps.real_systemd import DRIVER, PYTHON, Node, real_systemd, why_not
from tests.edges.mps.subjects import GPUS, Subject
from tests.edges.mps.test_home import cgroup, tree  # noqa: F401
from tests.kubelet_script import until

HERE = "/run/systemd/driver-root"
"""The driver's root in the container."""

CONTAINER = """
set -e
mount --make-private /run
mount -t tmpfs none /run/systemd
mkdir "$2"
mount --rbind "$1" "$2"
shift 2
exec "$@"
"""
"""It sees nothing of systemd's sockets; mounts below the run directory are the node's, too."""

STARTER = """
import asyncio, json, sys
from pathlib import Path
from partage.edges.mps.home import DaemonHost
from partage.edges.mps.access import DaemonDeadlines
from partage.edges.mps.keeper import MpsKeeper
from partage.errors import PartageError
from partage.model.mps import HomeChoice
from partage.model.mps import DaemonSpec

act, spec, run_dir, root, on_node, choice, node_pids = sys.argv[1:]
spec = eval(spec)
async def main():
    host = DaemonHost(choice=HomeChoice(choice), node_pids=node_pids)
    short = DaemonDeadlines(start_s=4.0)
    keeper = MpsKeeper(Path(run_dir), Path(root), driver_on_node=Path(on_node), host=host, deadlines=short)
    try:
        if act == "stop":
            await keeper.stop(spec.device)
        elif act != "look":
            await keeper.start(spec)
        said = [[one.phase, one.pid, one.bound_to] for one in await keeper.states()]
    except PartageError as error:
        said = str(error)
    print(json.dumps(said), flush=True)
    if act == "stay":
        await asyncio.Event().wait()
asyncio.run(main())
"""

pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(why_not(tree())), reason=why_not(tree()))]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    root = tree()
    assert root is not None
    with real_systemd(root) as node:
        yield node


@pytest.fixture
def subject(node: Node, short_dir: Path) -> Iterator[Subject]:
    yield simulated_subject(short_dir)
    node.systemctl("stop", unit_name(GPUS[0]))
    node.run(f"umount {short_dir}/run/mps/{GPUS[0]}/shm 2>/dev/null || true")


@contextlib.asynccontextmanager
async def container(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
    act: str,
    *,
    root: str = "",
    on_node: str = "",
    choice: str = "systemd",
    pids: str = "",
) -> AsyncIterator[Any]:
    """A helper in a container of the node: what it says. The container ends with the block."""
    root = root or str(subject.root)
    arguments = [act, repr(subject.spec()), str(subject.run_dir), HERE, on_node or root, choice]
    arguments.append(pids or str(Path(f"/proc/{node.pid}/ns/pid").readlink()))
    inside = ["sh", "-c", CONTAINER, "sh", root, HERE, PYTHON, "-c", STARTER, *arguments]
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(cgroup)),
        *node.enter("unshare", "--cgroup", "--mount", "--propagation=unchanged", *inside),
        stdout=PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            yield json.loads(await process.stdout.readline())
    finally:
        (cgroup / "cgroup.kill").write_text("1")
        await process.wait()


def shown(node: Node) -> dict[str, str]:
    lines = node.systemctl(
        "show", "--property=ActiveState,MainPID,LoadState", unit_name(GPUS[0])
    ).splitlines()
    return dict(line.split("=", 1) for line in lines)


async def test_a_daemon_outlives_the_container_is_adopted_and_ended(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
):
    async with container(node, cgroup, subject, "stay") as said:
        [[phase, pid, bound_to]] = said
        assert (phase, bound_to) == ("serving", "")
        assert shown(node) | {"LoadState": ""} == {
            "ActiveState": "active",
            "MainPID": str(pid),
            "LoadState": "",
        }
    await until(lambda: not (cgroup / "cgroup.procs").read_text(), what="the end of all of the container")
    limits = node.run(f"tr '\\0' '\\n' < /proc/{pid}/environ")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M" in limits
    assert f"CUDA_VISIBLE_DEVICES={GPUS[0]}" in limits
    seen, there = (
        node.run(f"stat -c %d:%i {path}") for path in (f"/proc/{pid}/root/dev/shm/", f"{subject.home()}/shm")
    )
    assert seen == there  # a tmpfs that the container mounted, and the node has, too
    assert node.run(f"stat -f -c %T {subject.home()}/shm") == "tmpfs\n"
    # A new helper's container looks, starts nothing new, and stops the daemon in the end.
    for act in ("look", "start"):
        async with container(node, cgroup, subject, act) as said:
            assert said == [["serving", pid, ""]]
    async with container(node, cgroup, subject, "stop") as said:
        assert said == []
    assert shown(node)["LoadState"] == "not-found"


@pytest.mark.parametrize("root", [DRIVER, "/"])
async def test_a_daemon_runs_in_the_root_of_its_driver(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
    root: str,
):
    node.run(f"mount --bind {subject.root}/usr/bin {root.rstrip('/')}/usr/local/bin")
    try:
        async with container(node, cgroup, subject, "stay", root=root) as said:
            [[phase, pid, bound_to]] = said
            assert (phase, bound_to) == ("serving", "")
            assert node.run(f"readlink /proc/{pid}/root").strip() == root
        async with container(node, cgroup, subject, "look", root=root) as said:
            assert said == [["serving", pid, ""]]
        async with container(node, cgroup, subject, "stop", root=root) as said:
            assert said == []
    finally:
        node.run(f"umount {root.rstrip('/')}/usr/local/bin")


async def test_a_daemon_that_died_is_started_again_in_its_unit(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
):
    async with container(node, cgroup, subject, "start") as said:
        [[_, pid, _]] = said
    node.run(f"kill -9 {pid}")
    async with container(node, cgroup, subject, "start") as said:
        [[phase, other, bound_to]] = said
    assert (phase, bound_to) == ("serving", "")
    assert other != pid
    assert shown(node)["MainPID"] == str(other)


async def test_a_unit_that_something_else_has_left_is_ended(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
):
    node.run(f"systemd-run --quiet --unit={unit_name(GPUS[0])} sleep 600")
    assert shown(node)["ActiveState"] == "active"
    async with container(node, cgroup, subject, "start") as said:
        [[phase, pid, bound_to]] = said
    assert (phase, bound_to) == ("serving", "")
    assert "-multiuser-server" in node.run(f"cat /proc/{pid}/cmdline")  # by the first attempt
    assert shown(node)["MainPID"] == str(pid)


async def test_a_start_that_hangs_is_ended_before_the_next_attempt(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
):
    program = subject.root / "usr/bin/nvidia-cuda-mps-control"
    whole = program.rename(program.with_name("whole")).read_text().splitlines(keepends=True)
    hang = "import sys, time\nif '-multiuser-server' in sys.argv: time.sleep(600)\n"
    program.write_text("".join([whole[0], hang, *whole[1:]]))
    program.chmod(0o755)
    async with container(node, cgroup, subject, "start") as said:
        [[phase, pid, bound_to]] = said
    assert (phase, bound_to) == ("serving", "")
    assert shown(node)["MainPID"] == str(pid)


async def test_a_program_that_fails_is_said_with_its_own_words(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
):
    program = subject.root / "usr/bin/nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\necho no such GPU\nexit 1\n")
    async with container(node, cgroup, subject, "start") as said:
        assert isinstance(said, str)
        assert "systemd did not start the MPS control daemon (1)" in said
        assert "no such GPU" in said
    assert shown(node)["LoadState"] == "not-found"


async def test_a_driver_that_is_elsewhere_on_the_node_is_refused(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
):
    async with container(node, cgroup, subject, "start", on_node="/opt") as said:
        assert f"{HERE} is not /opt of the node" in str(said)
    assert not subject.home().exists()
    assert shown(node)["LoadState"] == "not-found"


async def test_without_the_nodes_process_ids_process_1_is_not_taken_for_the_nodes(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
):
    async with container(node, cgroup, subject, "start", pids="pid:[1]") as said:
        assert "process 1 is not the node's (hostPID is needed)" in said
    assert shown(node)["LoadState"] == "not-found"


@pytest.mark.parametrize(("choice", "on_node"), [("pod", ""), ("auto", "/opt")])
async def test_a_daemon_that_is_no_unit_and_has_no_cgroup_of_the_node_ends_with_its_pod(
    node: Node,
    cgroup: Path,  # noqa: F811
    subject: Subject,
    choice: str,
    on_node: str,
):
    async with container(node, cgroup, subject, "stay", choice=choice, on_node=on_node) as said:
        [[phase, _, bound_to]] = said
        assert phase == "serving"
        assert bound_to.startswith("the daemon ends with this container")
        assert shown(node)["LoadState"] == "not-found"
    async with container(node, cgroup, subject, "look", choice=choice) as said:
        [[phase, _, _]] = said
        assert phase == "dead"

"""The guard's files on the host, and that containers of guarded shares get them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from partage.agent.endpoints.guard_files import GuardFiles, guard_files, write_guard
from tests.agent.harness import Place, ids, native, registered
from tests.agent.hosted import hosted
from tests.guard.pythons import READY, STATE, environment, said
from tests.kubelet_script import ScriptedKubelet
from tests.plan.offers import offering

GUARDED = replace(offering(0, 4), guard=True)
NAME = "nvidia.com/gpu.guarded"


def _contents(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_what_is_written_is_the_guard_as_it_is_installed(tmp_path: Path) -> None:
    directory = write_guard(tmp_path / "run" / "guard")
    assert _contents(directory) == guard_files()
    assert {"sitecustomize.py", "partage_guard/hook.py", "partage/guard.py"} <= set(guard_files())
    assert said(["-c", STATE], environment(directory)) == READY


def test_every_user_can_read_it_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        directory = write_guard(tmp_path / "guard")
    finally:
        os.umask(before)
    modes = {
        path.is_dir(): stat.S_IMODE(path.stat().st_mode)
        for path in (directory.parent, directory, *directory.rglob("*"))
    }
    assert modes == {True: 0o755, False: 0o644}


def test_the_same_guard_finds_its_own_directory_again(tmp_path: Path) -> None:
    """Running containers have it mounted: it is not replaced."""
    directory = write_guard(tmp_path)
    inode = directory.stat().st_ino
    assert write_guard(tmp_path) == directory
    assert directory.stat().st_ino == inode
    assert list(tmp_path.iterdir()) == [directory]


@pytest.mark.parametrize("change", ["damage", "remove", "replace"])
def test_a_directory_that_somebody_changed_is_set_aside_and_written_anew(tmp_path: Path, change: str) -> None:
    directory = write_guard(tmp_path)
    hook = directory / "partage_guard" / "hook.py"
    if change == "damage":
        hook.write_text("oops")
    elif change == "remove":
        hook.unlink()
    else:
        directory.rename(tmp_path / "away")
        directory.write_text("a file")
    assert write_guard(tmp_path) == directory
    assert _contents(directory) == guard_files()


def test_nothing_half_written_stays_behind(tmp_path: Path) -> None:
    write_guard(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_nothing_is_written_where_nothing_is_guarded(tmp_path: Path) -> None:
    files = GuardFiles(tmp_path)
    files.request([offering(0, 4)])
    assert (files.directory, files.trouble, list(tmp_path.iterdir())) == ("", "", [])


def test_what_cannot_be_written_is_said_and_tried_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.write_text("in the way")
    files = GuardFiles(run_dir)
    files.request([GUARDED])
    assert files.directory == ""
    assert files.trouble == f"the guard's files cannot be written below {run_dir}/guard: Not a directory"
    run_dir.unlink()
    files.request([GUARDED])
    assert Path(files.directory).parent == run_dir / "guard"
    assert files.trouble == ""


def test_a_pod_with_a_guarded_share_has_the_guard(node: Place, kubelet: ScriptedKubelet) -> None:
    """From the policy to a Python that runs in what the kubelet was answered."""
    policy = native(f"{{select: all, name: {NAME}, guard: true, time-slicing: {{replicas: 4}}}}")
    with hosted(node, policy=policy) as agent:
        calls = registered(kubelet, NAME).calls
        assert calls is not None
        answer = calls.allocate(ids(kubelet, NAME)[:1])
        (mount,) = answer.mounts
        assert (mount.container_path, mount.read_only) == ("/opt/partage/guard", True)
        assert Path(mount.host_path).parent == node.run_dir / "guard"
        envs = {**answer.envs, "PYTHONPATH": mount.host_path}
        assert said(["-c", STATE], {**environment(), **envs}) == READY
        assert answer.envs["PYTHONPATH"] == mount.container_path
        assert answer.envs["PARTAGE_GUARANTEE"] == "advisory"
        assert agent.degraded() == []
        assert not calls.options().pre_start_required, "nothing has to be set before it starts"


def test_an_agent_that_cannot_write_the_guard_promises_less_and_says_so(
    node: Place, kubelet: ScriptedKubelet
) -> None:
    policy = native(f"{{select: all, name: {NAME}, guard: true, time-slicing: {{replicas: 4}}}}")
    node.run_dir.mkdir(parents=True, exist_ok=True)
    (node.run_dir / "guard").write_text("in the way")
    with hosted(node, policy=policy) as agent:
        calls = registered(kubelet, NAME).calls
        assert calls is not None
        answer = calls.allocate(ids(kubelet, NAME)[:1])
        assert (list(answer.mounts), "PYTHONPATH" in answer.envs) == ([], False)
        assert answer.envs["PARTAGE_GUARANTEE"] == "none"
        assert agent.degraded() == ["guard-not-written"]

"""The helper serves one container of some pods, which it finds by the cgroup of the peer."""

import re
from pathlib import Path

import pytest

from partage.edges.kubelet.container_names import (
    AllowedContainer,
    parse_allowed_container,
    why_not_allowed,
)
from partage.errors import InputError

AGENT, SIDECAR, TENANT = "a" * 64, "b" * 64, "c" * 64
POD = "0a1b2c3d-0000-4000-8000-00000000000a"
ALLOWED = AllowedContainer("gpu", "partage-agent-", "agent")


@pytest.fixture
def node(tmp_path: Path) -> tuple[Path, Path]:
    """``/proc`` and the folder of log links: an agent, its sidecar, a tenant, a process of the host."""
    logs, proc = tmp_path / "logs", tmp_path / "proc"
    logs.mkdir()
    for name in (
        f"partage-agent-x7k2p_gpu_agent-{AGENT}",
        f"partage-agent-x7k2p_gpu_sidecar-{SIDECAR}",
        f"partage-agent-evil_default_agent-{TENANT}",
    ):
        (logs / f"{name}.log").touch()
    unnamed = "d" * 64
    for pid, container in ((10, AGENT), (11, SIDECAR), (12, TENANT), (14, unnamed)):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(f"0::/kubepods/besteffort/pod{POD}/{container}\n")
    (proc / "13").mkdir()
    (proc / "13" / "cgroup").write_text("0::/init.scope\n")
    return proc, logs


@pytest.mark.parametrize(
    ("pid", "why"),
    [
        (10, ""),
        (11, "gpu/partage-agent-x7k2p/sidecar"),
        (12, "default/partage-agent-evil/agent"),
        (13, "in no container"),
        (14, "which .* does not name"),
        (15, "in no container"),
        (0, "hostPID"),
    ],
)
def test_only_the_agents_container_is_served(node: tuple[Path, Path], pid: int, why: str) -> None:
    reason = why_not_allowed(ALLOWED, pid, *node)
    assert re.search(why, reason) if why else not reason


def test_the_rule_is_read_as_it_is_written() -> None:
    assert parse_allowed_container(str(ALLOWED)) == ALLOWED


@pytest.mark.parametrize(
    "text", ["", "gpu/agent", "gpu/agent/x", "gpu/*/agent", "/a*/b", "a/b*/", "a/b*/c/d"]
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="NAMESPACE/POD"):
        parse_allowed_container(text)

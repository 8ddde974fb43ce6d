"""Who may give which command, in the words of NVIDIA's programs (535.261.03, 550.163.01, 555.58.02)."""

from __future__ import annotations

import pytest

from partage.sim.mps.commands_v2 import run_command
from partage.sim.mps.node import MpsNode
from partage.sim.mps.state import MpsControlState

TENANT = 65534
SETTINGS = "Control deamon settings can only be modified by the user started it or by the root user."


def daemon(*, root_alone: bool = True, server: int | None = None) -> MpsControlState:
    state = MpsControlState(
        MpsNode({"GPU-1": 80 << 30}, root_alone=root_alone), ("GPU-1",), uid=0, multi_user=False
    )
    if server is not None:
        state.start_server(server)
        state.started(77, server)
        state.ready(77)
    return state


@pytest.mark.parametrize(
    "command", ["set_default_device_pinned_mem_limit 0 60G", "set_default_active_thread_percentage 60"]
)
def test_since_550_only_root_changes_the_defaults(command: str):
    asked = command.replace("set_", "get_").rpartition(" ")[0]
    before = run_command(daemon(), asked, TENANT)
    state = daemon()
    assert run_command(state, command, TENANT) == f"Insufficient privileges for UID {TENANT}. {SETTINGS}"
    assert run_command(state, asked, TENANT) == before
    run_command(state, command, 0)
    assert run_command(state, asked, TENANT) != before
    old = daemon(root_alone=False)
    run_command(old, command, TENANT)
    assert run_command(old, asked, 0) != before, "535 obeys everybody"


def test_a_server_is_its_own_users_to_command():
    for uid, refused in ((TENANT, False), (TENANT - 1, True), (0, False)):
        state = daemon(server=TENANT)
        said = run_command(state, "set_device_pinned_mem_limit 77 0 60G", uid)
        assert ("another user's server" in said) is refused
        assert (run_command(state, "get_device_pinned_mem_limit 77 0", 0) == "60G") is not refused
        assert ("another user's server" in run_command(state, "terminate_client 77 5", uid)) is refused


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("get_server_list", ""),
        ("ps", "Server not found"),
        ("set_active_thread_percentage 99 100", "Server 99 not found"),
        ("terminate_client 1 2", "Server 1 not found\nServer 1 not found!\n1"),
        ("foo bar", 'Unknown command "foo"'),
        (
            "start_server -uid 0",
            f"Insufficient privileges for UID {TENANT}. Only the root user may start server "
            "for another user.",
        ),
    ],
)
def test_what_another_user_is_answered_without_a_server(command: str, answer: str):
    assert run_command(daemon(), command, TENANT) == answer

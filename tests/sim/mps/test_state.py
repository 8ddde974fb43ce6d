"""What the simulated control daemon decides: queue by user, containment of faults, limits, the client cap."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.sim.mps.clients import (
    CONNECTION_FAILED,
    LAUNCH_FAILED,
    NO_DEVICE,
    NOT_PERMITTED,
    NOT_READY,
    OUT_OF_MEMORY,
    TERMINATED,
    TOO_MANY,
    AnswerClient,
    SimulatedClient,
    StartServer,
    StopServer,
)
from partage.sim.mps.commands_v2 import run_command
from partage.sim.mps.limits import DaemonLimits, client_limit
from partage.sim.mps.node import MpsNode
from partage.sim.mps.state import MpsControlState
from partage.units import GIB, MIB

GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
OTHER = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
ROOT, ALICE, BOB = 0, 1000, 1001


class World:
    """A state, and servers that start and stop as soon as they are wanted."""

    def __init__(self, *, multi_user: bool = False, uid: int = ROOT, clients: int = 48) -> None:
        self.state = MpsControlState(
            MpsNode({GPU: 16 * GIB}, clients=clients), (GPU,), uid=uid, multi_user=multi_user
        )
        self.told: dict[SimulatedClient, str] = {}
        self.pids = iter(range(100, 1000))

    def settle(self) -> None:
        while self.state.actions:
            match self.state.actions.pop(0):
                case AnswerClient(client, error):
                    self.told[client] = error
                case StartServer(uid):
                    pid = next(self.pids)
                    self.state.started(pid, uid)
                    self.state.ready(pid)
                case StopServer(pid):
                    self.state.ended(pid, 0)

    def arrives(self, uid: int = ALICE, **env: str) -> SimulatedClient:
        client = SimulatedClient(pid=next(self.pids), uid=uid, env=env)
        self.state.connect(client)
        self.settle()
        return client

    def leaves(self, client: SimulatedClient) -> None:
        self.state.disconnect(client)
        self.settle()

    def says(self, line: str) -> str:
        reply = run_command(self.state, line)
        self.settle()
        return reply

    @property
    def users(self) -> list[int]:
        return [server.uid for server in self.state.servers]


# --- users ------------------------------------------------------------------------------------------


def test_a_server_starts_with_the_first_client_and_belongs_to_its_user():
    world = World()
    assert world.says("get_server_list") == ""
    client = world.arrives(ALICE)
    assert (world.told[client], world.users) == ("", [ALICE])


def test_a_second_user_waits_until_the_first_ones_clients_have_gone():
    world = World()
    first, waiting = world.arrives(ALICE), world.arrives(BOB)
    assert (waiting in world.told, world.users) == (False, [ALICE])
    world.leaves(first)
    assert (world.told[waiting], world.users) == ("", [BOB])


def test_who_comes_after_a_waiting_user_waits_too_even_if_the_server_is_theirs():
    world = World()
    first, _bob, late = world.arrives(ALICE), world.arrives(BOB), world.arrives(ALICE)
    assert late not in world.told
    world.leaves(first)
    assert (late in world.told, world.users) == (False, [BOB])


def test_who_gives_up_waiting_holds_nobody_up():
    world = World()
    world.arrives(ALICE)
    bob = world.arrives(BOB)
    world.leaves(bob)
    assert world.told[world.arrives(ALICE)] == ""


def test_one_server_for_all_users_belongs_to_the_daemons_user():
    world = World(multi_user=True)
    assert [world.told[world.arrives(uid)] for uid in (ALICE, BOB)] == ["", ""]
    assert world.users == [ROOT]


def test_a_daemon_without_privileges_serves_its_own_user():
    world = World(uid=ALICE)
    assert world.told[world.arrives(BOB)] == NOT_PERMITTED
    assert world.told[world.arrives(ALICE)] == ""


def test_a_server_that_does_not_start_fails_its_own_users_clients():
    state = World().state
    client = SimulatedClient(1, ALICE)
    state.connect(client)
    state.started(7, ALICE)
    state.ended(7, 1)
    assert AnswerClient(client, CONNECTION_FAILED) in state.actions
    assert state.servers == []


@given(st.lists(st.tuples(st.sampled_from([ALICE, BOB, ROOT]), st.booleans()), max_size=30))
def test_at_any_moment_one_user_is_served_and_nobody_waits_for_an_idle_server(moves: list[tuple[int, bool]]):
    """A move is an arrival, or (True) the first client of this user, let in or waiting, leaves."""
    world, present = World(), list[SimulatedClient]()
    for uid, leaves in moves:
        own = [client for client in present if client.uid == uid]
        if leaves and own:
            present.remove(own[0])
            world.leaves(own[0])
        else:
            present.append(world.arrives(uid))
        served = {client.uid for server in world.state.servers for client in server.clients}
        waiting = [client for client in present if client not in world.told]
        assert len(world.users) <= 1
        assert served <= set(world.users)
        assert served or not waiting


# --- faults -----------------------------------------------------------------------------------------


def test_a_fault_reaches_every_client_and_keeps_new_ones_out_until_the_last_has_gone():
    world = World()
    culprit, victim = world.arrives(), world.arrives()
    world.state.fault(culprit)

    assert (culprit.error, victim.error) == (LAUNCH_FAILED, LAUNCH_FAILED)
    pid = world.says("get_server_list")
    assert world.says(f"get_server_status {pid}") == "FAULT"
    assert world.told[world.arrives()] == NOT_READY
    world.leaves(culprit)
    assert world.told[world.arrives()] == NOT_READY
    world.leaves(victim)
    assert world.says(f"get_server_status {pid}") == "ACTIVE"
    assert world.told[world.arrives()] == ""


def test_a_terminated_client_loses_its_memory_and_nobody_elses():
    world = World()
    victim, neighbour = world.arrives(), world.arrives()
    assert world.state.allocate(victim, 12 * GIB) == ""
    assert world.state.allocate(neighbour, 8 * GIB) == OUT_OF_MEMORY
    assert world.says(f"terminate_client {world.says('get_server_list')} {victim.pid}") == ""

    assert world.state.allocate(victim, 1) == TERMINATED
    assert world.state.allocate(neighbour, 8 * GIB) == ""
    assert world.says(f"get_client_list {world.says('get_server_list')}") == str(neighbour.pid)


def test_a_full_server_refuses_and_takes_again_when_somebody_goes():
    world = World(clients=2)
    first, _ = world.arrives(), world.arrives()
    assert world.told[world.arrives()] == TOO_MANY
    world.leaves(first)
    assert world.told[world.arrives()] == ""


def test_a_daemon_that_quits_takes_nobody():
    world = World()
    world.arrives(ALICE)
    waiting = world.arrives(BOB)
    world.state.close()
    world.settle()
    assert world.told[waiting] == CONNECTION_FAILED
    assert world.told[world.arrives(ALICE)] == CONNECTION_FAILED


# --- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commands", "question", "answer"),
    [
        ([], "get_default_active_thread_percentage", "100.0"),
        (["set_default_active_thread_percentage 25"], "get_default_active_thread_percentage", "25.0"),
        (["set_default_active_thread_percentage 101"], "get_default_active_thread_percentage", "100.0"),
        (["set_default_active_thread_percentage"], "get_default_active_thread_percentage", "100.0"),
        (["set_default_device_pinned_mem_limit 0 512M"], "get_default_device_pinned_mem_limit 0", "512M"),
        (["set_default_device_pinned_mem_limit 0 3840M"], "get_default_device_pinned_mem_limit 0", "3G"),
        (["set_default_device_pinned_mem_limit 0 512M"], f"get_default_device_pinned_mem_limit {GPU}", ""),
        (["set_default_device_pinned_mem_limit 7 512M"], "get_default_device_pinned_mem_limit 7", "512M"),
        (["set_default_device_pinned_mem_limit 0 512"], "get_default_device_pinned_mem_limit 0", "512M"),
        ([f"set_default_device_pinned_mem_limit {OTHER} 1G"], "get_default_device_pinned_mem_limit 0", ""),
    ],
)
def test_limits_are_read_back_as_they_were_set_and_invalid_ones_are_ignored(
    commands: list[str], question: str, answer: str
):
    world = World()
    for command in commands:
        world.says(command)
    assert world.says(question) == answer


def test_of_ordinal_and_uuid_the_last_one_counts():
    limits = DaemonLimits((GPU,)).with_memory("0", "1G").with_memory(GPU, "2G")
    assert limits.limit_in_force(GPU) == 2 * GIB
    assert limits.with_memory("0", "3G").limit_in_force(GPU) == 3 * GIB


def test_a_default_reaches_servers_that_start_later_and_a_servers_own_its_later_clients():
    world = World()
    before = world.arrives()
    world.says("set_default_device_pinned_mem_limit 0 1G")
    assert (before.limit_bytes, world.arrives().limit_bytes) == (None, None)
    world.says(f"set_device_pinned_mem_limit {world.says('get_server_list')} 0 2G")
    assert (before.limit_bytes, world.arrives().limit_bytes) == (None, 2 * GIB)


@pytest.mark.parametrize(
    ("daemons", "variable", "limit"),
    [
        (2 * GIB, None, 2 * GIB),
        (2 * GIB, "0=1G", GIB),
        (2 * GIB, "0=3G", 2 * GIB),
        (None, f"{GPU}=512M", 512 * MIB),
        (2 * GIB, "0=1G,1=1G", None),
        (2 * GIB, f"{OTHER}=1G", None),
        (2 * GIB, "0=nonsense", 2 * GIB),
    ],
)
def test_a_client_lowers_its_limit_and_escapes_it_by_naming_a_gpu_that_it_does_not_see(
    daemons: int | None, variable: str | None, limit: int | None
):
    assert client_limit(daemons, variable, (GPU,), GPU) == limit


def test_a_client_gets_no_more_than_its_limit_and_no_more_than_the_gpu_has():
    world = World()
    world.says("set_default_device_pinned_mem_limit 0 10G")
    greedy, other = world.arrives(), world.arrives(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=12G")
    assert world.state.allocate(greedy, 10 * GIB + 1) == OUT_OF_MEMORY
    assert world.state.allocate(greedy, 10 * GIB) == ""
    assert world.state.allocate(other, 7 * GIB) == OUT_OF_MEMORY
    assert world.state.allocate(other, 6 * GIB) == ""


def test_a_client_lowers_its_threads_and_never_raises_them():
    world = World()
    world.says("set_default_active_thread_percentage 50")
    threads = [
        world.arrives(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=value).threads for value in ("20", "80", "many")
    ]
    assert threads == [20, 50, 50]


@pytest.mark.parametrize(
    ("variable", "told"), [("", NO_DEVICE), ("0", ""), ("1", NO_DEVICE), (GPU, ""), (OTHER, NO_DEVICE)]
)
def test_a_client_counts_gpus_as_the_daemon_sees_them(variable: str, told: str):
    world = World()
    assert world.told[world.arrives(CUDA_VISIBLE_DEVICES=variable)] == told


@pytest.mark.parametrize(
    ("variable", "visible"),
    [
        (None, (GPU, OTHER)),
        ("1", (OTHER,)),
        ("1,0", (OTHER, GPU)),
        ("GPU-bb", (OTHER,)),
        ("GPU-", ()),
        ("0,7,1", (GPU,)),
        ("", ()),
    ],
)
def test_visible_devices_follow_cudas_rules(variable: str | None, visible: tuple[str, ...]):
    gpus: Mapping[str, int] = {GPU: GIB, OTHER: GIB}
    assert MpsNode(gpus).visible(variable) == visible


def test_what_is_no_command_and_no_pid_gets_words_and_changes_nothing():
    world = World()
    world.arrives()
    for line in (
        "get_everything",
        "get_server_status 1",
        "get_client_list x",
        "terminate_client",
        "start_server",
    ):
        assert world.says(line)
    assert world.says("") == 'Unknown command ""'
    assert len(world.state.servers) == 1

"""What a simulated control daemon of version 3 decides, and what it prints."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import pytest

from partage.sim.mps.clients import (
    CONNECTION_FAILED,
    NOT_PERMITTED,
    NOT_READY,
    OUT_OF_MEMORY,
    AnswerClient,
    CloseSocket,
    OpenSocket,
    SimulatedClient,
    StartServer,
    StopServer,
)
from partage.sim.mps.commands_v3 import run_command
from partage.sim.mps.named_state import CommandError, NamedState
from partage.sim.mps.node import MpsNode
from partage.units import GIB

GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
PIPE = "/run/mps"
ROOT, ALICE, BOB = 0, 1000, 1001
FILE = """
schema_version = "1.0"
[servers.training]
allowed_devices = "0"
pinned_memory_limit = "2G"
active_thread_percentage = "50"
[servers.training.namespaces.small]
pinned_memory_limit = "1G"
active_thread_percentage = "10"
[servers.training.namespaces.free]
"""


class World:
    """A state, and servers that start as soon as they are wanted, unless they see no device."""

    def __init__(self, *, multi_user: bool = True, uid: int = ROOT) -> None:
        self.state = NamedState(MpsNode({GPU: 16 * GIB}), (GPU,), uid=uid, multi_user=multi_user)
        self.told: dict[SimulatedClient, str] = {}
        self.open: set[tuple[str, str]] = set()
        self.pids = iter(range(100, 1000))

    def settle(self) -> None:
        while self.state.actions:
            match self.state.actions.pop(0):
                case AnswerClient(client, error):
                    self.told[client] = error
                case StartServer(uid, name, devices):
                    pid = next(self.pids)
                    self.state.started(pid, uid, name)
                    if devices:
                        self.state.ready(pid)
                    else:
                        self.state.ended(pid, 1)
                case StopServer(pid):
                    self.state.ended(pid, 0)
                case OpenSocket(route):
                    self.open.add(route)
                case CloseSocket(route):
                    self.open.discard(route)

    def says(self, line: str) -> str:
        try:
            return run_command(self.state, PIPE, line.split())
        finally:
            self.settle()

    def arrives(self, *route: str, uid: int = ALICE, **env: str) -> SimulatedClient:
        server, namespace = (*route, "", "")[:2]
        client = SimulatedClient(pid=next(self.pids), uid=uid, env=env, route=(server, namespace))
        self.state.connect(client)
        self.settle()
        return client

    def applies(self, text: str) -> None:
        self.state.apply(tomllib.loads(text))
        self.settle()


@pytest.fixture
def world() -> World:
    made = World()
    made.applies(FILE)
    return made


def limits(client: SimulatedClient) -> tuple[int | None, float]:
    return client.limit_bytes, client.threads


# --- namespaces ---------------------------------------------------------------------------------------


def test_each_namespace_has_its_own_limits_and_inherits_none(world: World):
    """Measured by others on a real daemon: one without limits gets the whole GPU."""
    assert limits(world.arrives("training", "small")) == (GIB, 10)
    assert limits(world.arrives("training", "free")) == (None, 100)
    assert limits(world.arrives("training", "default")) == limits(world.arrives("training")) == (2 * GIB, 50)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=512M"}, (GIB // 2, 10)),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8G"}, (GIB, 10)),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "5"}, (GIB, 10)),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90"}, (GIB, 10)),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=512M,1=1G"}, (None, 10)),
    ],
)
def test_a_clients_variables_lower_its_memory_and_its_threads_are_the_namespaces(
    world: World, env: Mapping[str, str], expected: tuple[int | None, float]
):
    """The last one is the way out that has been measured: it names a GPU that the client does not see."""
    assert limits(world.arrives("training", "small", uid=ALICE, **env)) == expected


def test_without_a_percentage_of_its_namespace_a_clients_own_counts(world: World):
    assert limits(world.arrives("training", "free", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30")) == (None, 30)


def test_who_comes_to_the_daemon_itself_gets_a_server_of_its_user_without_limits(world: World):
    assert limits(world.arrives()) == (None, 100)
    assert "uid_0,0," in world.says("server list --format=csv,noheader")


def test_every_server_and_namespace_has_a_socket_until_the_server_is_deleted(world: World):
    assert world.open == {("training", name) for name in ("", "default", "small", "free")}
    world.says("server delete training")
    assert world.open == set()
    assert world.told[world.arrives("training", "small")] == CONNECTION_FAILED


def test_a_server_with_clients_is_deleted_by_force_only(world: World):
    client = world.arrives("training", "small")
    with pytest.raises(CommandError, match="has clients"):
        world.says("server delete training")
    world.says("server delete training --force")
    assert world.state.allocate(client, 1) == CONNECTION_FAILED


# --- servers -----------------------------------------------------------------------------------------


def test_a_server_for_a_gpu_that_is_not_there_is_accepted_and_is_not_there(world: World):
    assert "created" in world.says("server create other --allowed-devices=GPU-of-nobody")
    with pytest.raises(CommandError):
        world.says("server list other")
    assert world.told[world.arrives("other")] == CONNECTION_FAILED


def test_several_servers_run_side_by_side_and_a_fault_stays_in_one():
    world = World(multi_user=False)
    world.says("server create a --uid=1000")
    world.says("server create b --uid=1001")
    culprit, neighbour = world.arrives("a"), world.arrives("b", uid=BOB)
    world.state.fault(culprit)
    assert world.told[world.arrives("a")] == NOT_READY
    assert world.state.allocate(neighbour, 1) == ""
    assert world.says("server list a --format=csv,noheader").split(",")[3] == "Fault"


def test_a_server_has_one_owner():
    world = World(multi_user=False)
    world.says("server create a --uid=1000")
    assert world.told[world.arrives("a")] == ""
    assert world.told[world.arrives("a", uid=BOB)] == NOT_PERMITTED
    assert world.told[world.arrives("a", uid=ROOT)] == NOT_PERMITTED


@pytest.mark.parametrize(
    ("multi_user", "uid", "command"),
    [
        (True, ROOT, "server create a --uid=1000"),
        (False, ALICE, "server create a --uid=1001"),
        (True, ROOT, "server create A"),
        (True, ROOT, "server create a-b"),
        (True, ROOT, "server create " + "a" * 65),
        (True, ROOT, "server create"),
        (True, ROOT, "server list nobody"),
        (True, ROOT, "server list --format=json"),
        (True, ROOT, "namespace create small --server=nobody"),
        (True, ROOT, "namespace create small"),
        (True, ROOT, "namespace get small nobody name"),
        (True, ROOT, "client list"),
        (True, ROOT, "client terminate 7"),
        (True, ROOT, "client terminate x"),
        (True, ROOT, "server frobnicate"),
        (True, ROOT, "get_server_list"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(multi_user: bool, uid: int, command: str):
    with pytest.raises(CommandError):
        World(multi_user=multi_user, uid=uid).says(command)


@pytest.mark.parametrize(
    "command",
    [
        "namespace create small --server=training",
        "namespace set small --server=training",
        "namespace set nobody --server=training --pinned-memory-limit=1G",
        "namespace set small --server=training --pinned-memory-limit=lots",
        "namespace set small --server=training --active-thread-percentage=0",
        "namespace set small --server=training --active-thread-percentage=101",
        "namespace set small --server=training --pinned-memory-limit=1G --surprise=1",
        "namespace get small training colour",
        "server create training",
        "server set training",
    ],
)
def test_what_does_not_fit_what_is_there_is_refused(world: World, command: str):
    with pytest.raises(CommandError):
        world.says(command)


# --- what it prints ----------------------------------------------------------------------------------


def test_namespaces_are_listed_with_the_columns_of_the_guide(world: World):
    assert world.says("namespace list --server=training --format=csv,noheader").splitlines() == [
        "default,training,Ready,2G,50.00,0,/run/mps/training/default",
        "small,training,Ready,1G,10.00,0,/run/mps/training/small",
        "free,training,Ready,-,-,0,/run/mps/training/free",
    ]
    assert world.says("namespace get small training pinned-memory-limit") == "1G"
    assert world.says("namespace list").splitlines()[0].split()[:2] == ["NAME", "SERVER"]


def test_limits_can_be_changed_for_clients_that_come_later(world: World):
    before = world.arrives("training", "free")
    world.says("namespace create late --server=training")
    world.says("namespace set free --server=training --pinned-memory-limit=1G --active-thread-percentage=30")
    world.says("server set training --pinned-memory-limit=3G")
    assert limits(before) == (None, 100)
    assert limits(world.arrives("training", "free")) == (GIB, 30)
    assert limits(world.arrives("training", "late")) == (None, 100)
    assert limits(world.arrives("training")) == (3 * GIB, 50)


def test_clients_are_listed_by_server_and_namespace_and_can_be_ended(world: World):
    client = world.arrives("training", "small")
    assert world.says("client list --all --format=csv,noheader") == f"{client.pid},training,0,small,"
    assert world.says("client list --server=other --format=csv") == "pid,server,device,namespace,cmd"
    world.says(f"client terminate {client.pid}")
    assert world.says("client list --server=training --format=csv,noheader") == ""
    assert world.state.allocate(client, 1) == "CUDA_ERROR_MPS_CLIENT_TERMINATED"


def test_all_clients_of_all_servers_have_one_gpus_memory_between_them(world: World):
    one, other = world.arrives("training", "free"), world.arrives()
    assert world.state.allocate(one, 10 * GIB) == ""
    assert world.state.allocate(other, 7 * GIB) == OUT_OF_MEMORY


# --- the file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        'schema_version = "2.0"',
        'schema_version = "1.0"\ncolour = 1',
        'schema_version = "1.0"\n[servers.a]\nmemory = "1G"',
        'schema_version = "1.0"\n[servers.a.namespaces.b]\nuid = 1',
        'schema_version = "1.0"\n[servers.a]\npinned_memory_limit = "lots"',
        'schema_version = "1.0"\n[servers.A]',
        'schema_version = "1.0"\n[servers]\na = 1',
    ],
)
def test_a_file_with_anything_else_in_it_keeps_the_daemon_from_starting(text: str):
    with pytest.raises(CommandError):
        World().applies(text)

"""What control programs print, and what they must not print; and control programs that misbehave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.edges.mps.control_v2 import ControlV2
from partage.edges.mps.program import (
    NoReply,
    parse_client_rows,
    parse_memory,
    parse_namespace_rows,
    parse_percent,
    parse_pids,
    parse_ps,
    parse_server_rows,
    parse_status,
)
from partage.errors import DaemonError, Unsupported
from partage.model.mps import ConnectedClient, MpsServer, ServerStatus
from partage.units import GIB, MIB

GUIDE_PS = """PID       ID    SERVER    DEVICE             NAMESPACE      COMMAND
9741      0     6472      GPU-cb1213a3-d6a4  4026531836     ./nbody
9743      0     6472      GPU-cb1213a3-d6a4  4026531836     ./nbody
9743      1     6472      GPU-cb1213a3-d6a4  4026531836     ./nbody
9755      0     9475      GPU-cb1213a3-d6a4  4026531837     python train.py
"""


def test_ps_lists_each_process_once_for_its_server():
    assert parse_ps(GUIDE_PS) == {
        6472: (
            ConnectedClient(9741, 4026531836, command="./nbody"),
            ConnectedClient(9743, 4026531836, command="./nbody"),
        ),
        9475: (ConnectedClient(9755, 4026531837, command="python train.py"),),
    }


@pytest.mark.parametrize("reply", ["Unrecognized command: ps", "PID\n12"])
def test_a_daemon_that_knows_no_ps_is_told_apart_from_one_without_clients(reply: str):
    assert parse_ps(reply) is None
    assert parse_ps("") == {}
    assert parse_ps(GUIDE_PS.splitlines()[0]) == {}


def test_a_broken_ps_is_an_error():
    with pytest.raises(DaemonError):
        parse_ps(GUIDE_PS + "x 0 y GPU 1 z")


@pytest.mark.parametrize(
    ("reply", "wanted_bytes", "fits"),
    [
        ("3G", 3 * GIB, True),
        ("3G\n", 3840 * MIB, True),
        ("3G", 4 * GIB, False),
        ("815M", 815 * MIB, True),
        ("815MB", 816 * MIB, False),
        ("0x140000000 bytes", 5 * GIB, True),
        ("5368709120", 5 * GIB, True),
    ],
)
def test_a_memory_limit_stands_for_what_would_be_printed_like_it(reply: str, wanted_bytes: int, fits: bool):
    amount = parse_memory("get", reply)
    assert amount is not None
    assert amount.stands_for(wanted_bytes) is fits


@pytest.mark.parametrize("reply", ["", "\n", "0", "0G"])
def test_no_memory_limit_is_none(reply: str):
    assert parse_memory("get", reply) is None


@pytest.mark.parametrize("reply", ["3T", "a lot", "-1G", "3G 4G"])
def test_what_is_no_memory_limit_is_an_error_that_quotes_it(reply: str):
    with pytest.raises(DaemonError, match=f"answered 'get' with '{reply}'"):
        parse_memory("get", reply)


def test_percentages_are_read_as_printed():
    assert [parse_percent("get", text) for text in ("25.0\n", "100", "33.3 %")] == [25.0, 100.0, 33.3]
    with pytest.raises(DaemonError):
        parse_percent("get", "")


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ("ACTIVE\n", ServerStatus.ACTIVE),
        ("Server status: FAULT", ServerStatus.FAULT),
        ("INITIALIZING", ServerStatus.INITIALIZING),
        ("No server with pid 7", ServerStatus.UNKNOWN),
        ("", ServerStatus.UNKNOWN),
    ],
)
def test_a_server_is_in_one_of_three_states_or_unknown(reply: str, status: ServerStatus):
    assert parse_status(reply) is status


def test_pids_stand_one_a_line():
    assert parse_pids("list", "12\n\n 13 \n12\n") == (12, 13)
    with pytest.raises(DaemonError, match="'list' with 'Cannot find MPS control daemon process'"):
        parse_pids("list", "Cannot find MPS control daemon process")


GUIDE_SERVERS = "training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,-\n"
GUIDE_CLIENTS = "51023,training,0,default,python train.py\n51087,training,0,high_priority,python eval.py\n"


def test_servers_of_version_3_have_names():
    """The guide's own lines. More than one GPU makes more commas, behind what is read."""
    assert parse_server_rows(GUIDE_SERVERS) == (MpsServer(48201, 1000, ServerStatus.ACTIVE, name="training"),)
    assert parse_server_rows("a, 0, 7, Fault\nb,0,8,Initializing,x,y,z\nc,0,9,Odd\n") == (
        MpsServer(7, 0, ServerStatus.FAULT, name="a"),
        MpsServer(8, 0, ServerStatus.INITIALIZING, name="b"),
        MpsServer(9, 0, ServerStatus.UNKNOWN, name="c"),
    )
    assert parse_server_rows("") == ()


def test_clients_of_version_3_are_listed_by_server_with_their_command_as_it_is():
    assert parse_client_rows(GUIDE_CLIENTS + "51023,training,0,default,python train.py\n") == {
        "training": (
            ConnectedClient(51023, command="python train.py"),
            ConnectedClient(51087, command="python eval.py"),
        )
    }
    assert parse_client_rows("7,a,0,default,sh -c a,b") == {"a": (ConnectedClient(7, command="sh -c a,b"),)}
    assert parse_client_rows("\n") == {}


def test_a_namespace_has_limits_as_they_are_printed_or_none():
    rows = parse_namespace_rows("small,shared,Ready,20G,30.00,0,/run/x\ndefault,shared,Ready,-,-,0,/run/y\n")
    assert [(row.name, row.server, row.memory, row.threads) for row in rows] == [
        ("small", "shared", "20G", "30.00"),
        ("default", "shared", "", ""),
    ]


@pytest.mark.parametrize(
    ("parse", "reply"),
    [
        (parse_server_rows, "unknown module"),
        (parse_server_rows, "training,root,48201,Ready"),
        (parse_client_rows, "training,51023,0,default,python"),
        (parse_client_rows, "51023"),
        (parse_namespace_rows, "small,shared,Ready"),
    ],
)
def test_rows_that_are_none_are_an_error(parse: Callable[[str], object], reply: str):
    with pytest.raises(DaemonError, match="answered"):
        parse(reply)


@given(
    st.text(st.sampled_from("a1,- \n"), max_size=60),
    st.sampled_from([parse_server_rows, parse_client_rows, parse_namespace_rows]),
)
def test_rows_are_understood_or_refused_whatever_they_are(reply: str, parse: Callable[[str], object]):
    try:
        parse(reply)
    except DaemonError as error:
        message = str(error)
    else:
        return
    assert message.startswith("the MPS control daemon answered ")


@given(st.text(max_size=200), st.sampled_from([parse_pids, parse_percent, parse_memory]))
def test_a_reply_is_understood_or_quoted_whatever_it_is(reply: str, parse: Callable[[str, str], object]):
    try:
        parse("question", reply)
    except DaemonError as error:
        message = str(error)
    else:
        return
    assert message.startswith("the MPS control daemon answered 'question' with ")


@given(st.lists(st.sampled_from(["PID", "ID", "SERVER", "\n", "12", "-", "x", "GPU-1"]), max_size=30))
def test_a_listing_is_understood_or_refused_whatever_it_is(words: list[str]):
    try:
        listed = parse_ps(" ".join(words))
    except DaemonError:
        return
    assert listed is None or all(client.pid == 12 for clients in listed.values() for client in clients)


# --- control programs -------------------------------------------------------------------------------


TAKEN = "read proof; echo 100.0"
"""The daemon has taken the program's connection."""


def control(tmp_path: Path, script: str, deadline_s: float = 10.0, before: str = TAKEN) -> ControlV2:
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f"#!/bin/sh\n{before}\n{script}\n")
    program.chmod(0o755)
    return ControlV2(lambda: program, {"PATH": os.environ["PATH"]}, deadline_s)


async def test_a_command_reaches_standard_input_and_what_is_printed_comes_back(tmp_path: Path):
    assert await control(tmp_path, "read line; echo you said $line").ask("ps -p 3") == "you said ps -p 3\n"


async def test_a_program_that_does_not_read_answers_all_the_same(tmp_path: Path):
    assert await control(tmp_path, "exec 0<&-; echo 25.0").ask("x" * 200_000) == "25.0\n"


async def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path):
    script = f"sleep 1000 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(NoReply, match=r"did not answer 'ps' within 1 s"):
        await control(tmp_path, script, deadline_s=1.0).ask("ps")
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    async with asyncio.timeout(10):
        while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
            await asyncio.sleep(0.01)


async def test_a_program_that_floods_is_ended(tmp_path: Path):
    with pytest.raises(DaemonError, match="more than 256 KiB"):
        await control(tmp_path, "exec cat /dev/zero").ask("ps")


async def test_a_program_that_fails_is_quoted(tmp_path: Path):
    script = "echo Cannot find MPS control daemon process >&2; exit 1"
    for before in ("", TAKEN):
        with pytest.raises(DaemonError, match="answered 'ps' with 'Cannot find MPS control daemon process'"):
            await control(tmp_path, script, before=before).ask("ps")


REFUSED = ["exit 0", "echo Cannot send command to MPS control daemon process >&2; exit 1"]
"""What NVIDIA's program does while somebody else has the daemon's connection (535, 550, 555)."""


@pytest.mark.parametrize("refused", REFUSED)
async def test_a_connection_that_was_refused_is_made_again(tmp_path: Path, refused: str):
    once = f"if mkdir {tmp_path}/once 2>/dev/null; then {refused}; fi"
    assert await control(tmp_path, "echo 4711", before=f"{once}; {TAKEN}").ask("get_server_list") == "4711\n"


async def test_a_connection_that_was_lost_before_the_command_is_made_again(tmp_path: Path):
    once = f"if mkdir {tmp_path}/once 2>/dev/null; then {REFUSED[1]}; fi"
    assert await control(tmp_path, f"{once}; echo 4711").ask("get_server_list") == "4711\n"


@pytest.mark.parametrize("refused", REFUSED)
async def test_a_daemon_that_takes_no_connection_has_not_said_that_it_has_no_servers(
    tmp_path: Path, refused: str
):
    with pytest.raises(NoReply, match=r"did not answer 'get_server_list' within 0.3 s"):
        await control(tmp_path, refused, deadline_s=0.3, before="").servers()


async def test_a_program_that_cannot_be_run_says_so(tmp_path: Path):
    one = control(tmp_path, "")
    (tmp_path / "nvidia-cuda-mps-control").write_text("\x7fELF of another machine")
    with pytest.raises(Unsupported, match="cannot be run"):
        await one.ask("ps")


async def test_clients_are_listed_by_a_daemon_that_knows_no_ps(tmp_path: Path):
    script = 'read line; case "$line" in get_client_list*) echo 41; echo 42;; *) exit 1;; esac'
    assert await control(tmp_path, script).clients((7,)) == {7: (ConnectedClient(41), ConnectedClient(42))}

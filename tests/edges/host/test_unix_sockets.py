"""systemd's protocol: a datagram to NOTIFY_SOCKET."""

import socket

import pytest

from partage.edges.host.unix_sockets import say_ready


@pytest.mark.parametrize("abstract", [False, True])
def test_who_waits_is_told(tmp_path, abstract):
    path = f"@{tmp_path}/notify" if abstract else f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + path[1:] if abstract else path)
        assert say_ready({"NOTIFY_SOCKET": path}, "the layout\nis there")
        assert manager.recv(1024) == b"READY=1\nSTATUS=the layout is there\n"


@pytest.mark.parametrize("path", ["", "relative", "/nowhere/notify", "@nobody-listens-here"])
def test_where_nobody_waits_nothing_happens(path):
    assert not say_ready({"NOTIFY_SOCKET": path}, "x")
    assert not say_ready({}, "x")

import socket
from pathlib import Path

import pytest

from partage.edges.kubelet.sockets import (
    check_plugin_sockets,
    fresh_socket,
    is_named_after,
    may_exist,
    sockets_of,
)
from partage.errors import InputError
from partage.model.ids import ResourceName, plugin_socket_name

GPU, SHARED = ResourceName("nvidia.com/gpu"), ResourceName("nvidia.com/gpu.shared")


def test_each_resource_whose_socket_has_too_long_a_path_is_a_problem():
    with pytest.raises(InputError, match="107") as caught:
        check_plugin_sockets(Path("/" + "d" * 100), [GPU, SHARED])
    assert len(caught.value.problems) == 2


def test_usual_paths_are_taken():
    check_plugin_sockets(Path("/var/lib/kubelet/device-plugins"), [GPU, SHARED])


def test_only_a_path_that_is_not_there_cannot_exist(tmp_path):
    (tmp_path / "file").touch()
    assert may_exist(tmp_path / "file")
    assert not may_exist(tmp_path / "other")
    assert not may_exist(tmp_path / "file" / "below")
    assert may_exist(tmp_path / ("n" * 300)), "an error of the file system, as a denied directory gives"


LONG = ResourceName("nvidia.com/" + "g" * 58 + "-a")
ALIKE = ResourceName("nvidia.com/" + "g" * 58 + "-b")


def test_a_socket_whose_name_was_cut_is_its_resources_and_no_others(short_dir):
    directory = short_dir / ("d" * (30 - len(str(short_dir))))
    directory.mkdir()
    check_plugin_sockets(directory, [LONG, ALIKE])
    for resource in (GPU, LONG, ALIKE):
        path = fresh_socket(directory, resource)
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
        assert list(sockets_of(directory, resource)) == [path]
    cut = fresh_socket(directory, LONG).name
    assert plugin_socket_name(LONG).removesuffix(".sock") not in cut
    assert is_named_after(cut, plugin_socket_name(LONG)), "whatever the directory is called elsewhere"
    assert not is_named_after(cut, plugin_socket_name(ALIKE))

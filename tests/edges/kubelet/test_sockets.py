from pathlib import Path

import pytest

from partage.edges.kubelet.sockets import check_plugin_sockets, may_exist
from partage.errors import InputError
from partage.model.ids import ResourceName

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

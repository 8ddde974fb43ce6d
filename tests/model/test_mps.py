"""What a control daemon can be asked to be, and how limits are told."""

from __future__ import annotations

import pytest

from partage.model.mps import Client, DaemonSpec, DaemonState, Limits, MpsServer, Phase
from partage.units import GIB, MIB

GPU = "GPU-11111111-2222-3333-4444-000000000000"


@pytest.mark.parametrize(
    "device", ["", "0", "GPU-", "GPU-../..", "gpu-1", "MIG-GPU-1/3/0", "GPU-" + "a" * 61, "GPU-a\n"]
)
def test_only_a_uuid_that_can_name_a_directory_is_a_device(device: str):
    with pytest.raises(ValueError, match="is no UUID of a GPU or MIG device"):
        DaemonSpec(GPU, device)


@pytest.mark.parametrize(
    "limits",
    [{"memory_bytes": 0}, {"memory_bytes": MIB + 1}, {"threads_percent": 0}, {"threads_percent": 101}],
)
def test_a_limit_that_the_daemon_would_ignore_is_refused(limits: dict[str, int]):
    with pytest.raises(ValueError, match="limit"):
        DaemonSpec(GPU, GPU, **limits)  # type: ignore[arg-type]


def test_limits_are_told_in_words():
    assert str(Limits(3 * GIB, 25)) == "3 GiB and 25 % of threads for each client"
    assert str(Limits()) == "any memory and 100 % of threads for each client"


def test_the_clients_of_a_daemon_are_those_of_all_its_servers():
    servers = (MpsServer(1, clients=(Client(10),)), MpsServer(2, clients=(Client(20, command="python"),)))
    state = DaemonState(GPU, GPU, Phase.SERVING, servers=servers)
    assert [str(client) for client in state.clients] == ["client process (pid 10)", "client python (pid 20)"]

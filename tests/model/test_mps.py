"""What a control daemon can be asked to be, and how limits are told."""

from __future__ import annotations

import pytest

from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.mps import (
    ClientLimits,
    ConnectedClient,
    DaemonPhase,
    DaemonSpec,
    DaemonState,
    MpsNamespace,
    MpsServer,
)
from partage.units import GIB, MIB

GPU = GpuUuid("GPU-11111111-2222-3333-4444-000000000000")


@pytest.mark.parametrize(
    "device", ["", "0", "GPU-", "GPU-../..", "gpu-1", "MIG-GPU-1/3/0", "GPU-" + "a" * 61, "GPU-a\n"]
)
def test_only_a_uuid_that_can_name_a_directory_is_a_device(device: DeviceUuid):
    with pytest.raises(ValueError, match="is not the UUID of a GPU or MIG device"):
        DaemonSpec(GPU, device)


@pytest.mark.parametrize(
    "limits",
    [{"memory_bytes": 0}, {"memory_bytes": MIB + 1}, {"threads_percent": 0}, {"threads_percent": 101}],
)
def test_a_limit_that_the_daemon_would_ignore_is_refused(limits: dict[str, int]):
    with pytest.raises(ValueError, match="limit"):
        DaemonSpec(GPU, GPU, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "namespaces",
    [
        (MpsNamespace("Big"),),
        (MpsNamespace("a-b"),),
        (MpsNamespace(""),),
        (MpsNamespace("n" * 65),),
        (MpsNamespace("../x"),),
        (MpsNamespace("default"),),
        (MpsNamespace("one"), MpsNamespace("one")),
        (MpsNamespace("one", MIB + 1),),
        (MpsNamespace("one", MIB, 101),),
    ],
)
def test_a_namespace_that_the_daemon_would_refuse_is_refused(namespaces: tuple[MpsNamespace, ...]):
    """By its name, which is a directory's too, or by its limits."""
    with pytest.raises(ValueError, match=r"no valid or unique name of a namespace|limit"):
        DaemonSpec(GPU, GPU, namespaces=namespaces)


def test_with_namespaces_a_daemon_speaks_version_3():
    assert DaemonSpec(GPU, GPU, GIB, 25).protocol == 2
    assert DaemonSpec(GPU, GPU, GIB, 25, namespaces=(MpsNamespace("share0"),)).protocol == 3


def test_limits_are_told_in_words():
    several = ClientLimits(GIB, 10, (MpsNamespace("share0", 3 * GIB, 50), MpsNamespace("share1", GIB, 10)))
    assert str(several) == (
        "3 GiB and 50% of the SMs in share0, 1 GiB and 10% of the SMs in share1, "
        "else 1 GiB and 10% of the SMs for each client"
    )
    assert str(ClientLimits(3 * GIB, 25)) == "3 GiB and 25% of the SMs for each client"
    amounts = tuple(MpsNamespace(f"units{n}", n * GIB) for n in range(1, 80))
    assert str(ClientLimits(GIB, None, amounts)) == (
        "1 GiB and 100% of the SMs in units1, ... 79 GiB and 100% of the SMs in units79 (79 namespaces), "
        "else 1 GiB and 100% of the SMs for each client"
    )
    assert str(ClientLimits()) == "any memory and 100% of the SMs for each client"


def test_the_clients_of_a_daemon_are_those_of_all_its_servers():
    servers = (
        MpsServer(1, clients=(ConnectedClient(10),)),
        MpsServer(2, clients=(ConnectedClient(20, command="python"),)),
    )
    state = DaemonState(GPU, GPU, DaemonPhase.SERVING, servers=servers)
    assert [str(client) for client in state.clients] == ["client process (pid 10)", "client python (pid 20)"]

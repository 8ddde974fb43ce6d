"""What a container gets, beside what the recordings of NVIDIA's plugin cover already."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from partage.model.ids import ShareId
from partage.model.policy import DeviceIdStrategy, DeviceListStrategy, Options
from partage.model.share import (
    AllocationRefused,
    ContainerAllocation,
    DeviceNode,
    DeviceOffer,
    Guarantee,
    Mount,
)
from partage.model.strategy import Strategy
from partage.plan.serve.allocate_response import AllocateResponder, check_together
from partage.plan.serve.limit_edits import LimitTerms, limit_terms
from partage.units import GIB, MIB
from tests.plan.offers import NAME, gpu, ids, node, offering, resource, share

ENVVAR, MOUNTS = DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS
ANNOTATIONS, CRI = DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI
_VENDOR = "k8s.device-plugin.nvidia.com"
_DEFAULTS = Options()


def _answer(
    wanted: list[ShareId],
    *offerings: DeviceOffer,
    options: Options = _DEFAULTS,
    cdi_classes: tuple[str, ...] = (),
) -> ContainerAllocation:
    inventory = node(*(gpu(n) for n in range(4)))
    return AllocateResponder(resource(*offerings), inventory, options, "/run/partage/", cdi_classes).answer(
        wanted
    )


def _own(answer: ContainerAllocation) -> dict[str, str]:
    prefix = "PARTAGE_"
    return {key.removeprefix(prefix): value for key, value in answer.envs.items() if key.startswith(prefix)}


def _nvidias(answer: ContainerAllocation) -> dict[str, str]:
    return {key: value for key, value in answer.envs.items() if not key.startswith("PARTAGE_")}


def _refusal(wanted: list[ShareId], *offerings: DeviceOffer) -> str:
    with pytest.raises(AllocationRefused) as caught:
        _answer(wanted, *offerings)
    prefix = 'invalid allocation request for "nvidia.com/gpu": invalid request: '
    assert str(caught.value).startswith(prefix)
    return str(caught.value).removeprefix(prefix)


# --- what the container learns about its share ---------------------------------------------------


def test_a_container_learns_its_share() -> None:
    assert _own(_answer([share(1, 3)], offering(1, 4))) == {
        "RESOURCE": NAME,
        "SHARES": share(1, 3),
        "GPUS": gpu(1).uuid,
        "STRATEGY": "time-slicing",
        "REPLICAS": "4",
        "MEMORY_BYTES": str(20 * GIB),
        "GUARANTEE": "none",
    }


def test_shares_of_one_gpu_add_up_and_equal_gpus_say_one_number() -> None:
    """Two shares of each of two GPUs."""
    cards = [offering(0, 4), offering(1, 4)]
    own = _own(_answer([share(1, 0), share(0, 0), share(1, 1), share(0, 1)], *cards))
    assert own["GPUS"] == f"{gpu(1).uuid},{gpu(0).uuid}"
    assert (own["REPLICAS"], own["MEMORY_BYTES"]) == ("4", str(40 * GIB))


def test_gpus_that_differ_say_one_number_each_in_their_order() -> None:
    """A whole GPU beside two quarters of another: the weakest guarantee counts."""
    own = _own(_answer([share(1, 0), share(0), share(1, 1)], offering(0), offering(1, 4)))
    assert own["GPUS"] == f"{gpu(1).uuid},{gpu(0).uuid}"
    assert (own["REPLICAS"], own["MEMORY_BYTES"]) == ("4,1", f"{40 * GIB},{80 * GIB}")
    assert (own["STRATEGY"], own["GUARANTEE"]) == ("mixed", "none")


def test_mig_devices_are_named_by_their_gpu_and_their_strategy() -> None:
    devices = [offering(0, mig=0), offering(0, mig=1)]
    answer = _answer(ids(*devices), *devices)
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(ids(*devices))
    assert _own(answer)["GPUS"] == gpu(0).uuid
    assert (_own(answer)["STRATEGY"], _own(answer)["GUARANTEE"]) == ("mig", "hard")


# --- the guard ----------------------------------------------------------------------------------


def _guarded(
    wanted: list[ShareId], *offerings: DeviceOffer, guard_dir: str = "/run/partage/guard/1"
) -> ContainerAllocation:
    inventory = node(*(gpu(n, migs=3) for n in range(4)))
    held = [replace(one, guard=True, guarantee=Guarantee.ADVISORY) for one in offerings]
    return AllocateResponder(
        resource(*held), inventory, _DEFAULTS, "/run/partage", guard_dir=guard_dir
    ).answer(wanted)


def test_the_size_of_a_device_that_does_not_answer_is_that_of_its_shares() -> None:
    assert _guarded([share(9, 0)], offering(9, 4)).envs["PARTAGE_TOTAL_BYTES"] == str(80 * GIB)


def test_a_guarded_share_brings_the_guard_and_the_size_of_its_device() -> None:
    answer = _guarded([share(1, 3)], offering(1, 4))
    assert answer.mounts == (Mount("/opt/partage/guard", "/run/partage/guard/1", read_only=True),)
    assert answer.envs["PYTHONPATH"] == "/opt/partage/guard"
    assert answer.envs["PARTAGE_MEMORY_BYTES"] == str(20 * GIB)
    assert answer.envs["PARTAGE_TOTAL_BYTES"] == str(80 * GIB)
    assert answer.envs["PARTAGE_GUARANTEE"] == "advisory"


def test_several_shares_of_one_device_count_its_memory_once() -> None:
    answer = _guarded([share(1, 0), share(1, 1), share(0, 0)], offering(0, 4), offering(1, 4))
    assert answer.envs["PARTAGE_MEMORY_BYTES"] == f"{40 * GIB},{20 * GIB}"
    assert answer.envs["PARTAGE_TOTAL_BYTES"] == str(80 * GIB)


def test_the_device_of_a_mig_share_is_the_mig_device() -> None:
    sliced = offering(0, 2, mig=0, shared=Strategy.TIME_SLICING)
    assert _guarded([sliced.share_ids[0]], sliced).envs["PARTAGE_TOTAL_BYTES"] == str(10 * GIB)


def test_a_guard_that_is_not_there_is_neither_mounted_nor_promised() -> None:
    answer = _guarded([share(1, 3)], offering(1, 4), guard_dir="")
    assert (answer.mounts, "PYTHONPATH" in answer.envs) == ((), False)
    assert answer.envs["PARTAGE_GUARANTEE"] == "none"


# --- MPS --------------------------------------------------------------------------------------


def _mps(index: int, **more: object) -> DeviceOffer:
    even = replace(offering(index, 4, shared=Strategy.MPS), threads_percent=25, guarantee=Guarantee.GUARDED)
    return replace(even, **more)


def test_an_even_mps_share_gets_the_pipe_and_the_memory_of_its_own_gpus_daemon() -> None:
    """No limits: the daemon's own are the same."""
    answer = _answer([share(1, 0), share(1, 2)], _mps(0), _mps(1))
    assert _nvidias(answer) == {
        "NVIDIA_VISIBLE_DEVICES": gpu(1).uuid,
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe",
    }
    assert answer.mounts == (
        Mount("/mps/nvidia.com/gpu/pipe", f"/run/partage/mps/{gpu(1).uuid}/pipe"),
        Mount("/dev/shm", f"/run/partage/mps/{gpu(1).uuid}/shm"),
    )


def test_a_smaller_mps_share_brings_its_own_limits() -> None:
    """By ordinal, as the container sees one GPU; several shares add up, threads to 100 at most."""
    small = _mps(0, memory_bytes=2 * GIB + MIB, threads_percent=40, limits_in_env=True)
    one = _answer([share(0, 0)], small).envs
    assert one["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2049M"
    assert one["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    three = _answer([share(0, 0), share(0, 1), share(0, 2)], small).envs
    assert three["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=6147M"
    assert three["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"


def test_a_share_with_a_namespace_is_given_nothing_else_of_its_daemon() -> None:
    """What is not mounted cannot be connected to: other shares' namespaces, the daemon's own socket."""
    small = _mps(0, memory_bytes=2 * GIB, threads_percent=20, pipe="gpu/share1")
    answer = _answer([share(0, 0)], small)
    assert _nvidias(answer) == {
        "NVIDIA_VISIBLE_DEVICES": gpu(0).uuid,
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe",
    }
    assert answer.mounts == (
        Mount("/mps/nvidia.com/gpu/pipe", f"/run/partage/mps/{gpu(0).uuid}/pipe/gpu/share1"),
        Mount("/dev/shm", f"/run/partage/mps/{gpu(0).uuid}/shm"),
    )


@pytest.mark.parametrize("pipe", ["", "gpu/share1"])
def test_the_pipe_is_read_only_where_that_is_switched_on_and_nothing_else_is(pipe: str) -> None:
    wanted, row = [share(0, 0)], _mps(0, pipe=pipe)
    usual = _answer(wanted, row)
    read_only = AllocateResponder(
        resource(row), node(gpu(0)), _DEFAULTS, "/run/partage", read_only_pipe=True
    ).answer(wanted)
    pipe_mount, shm = usual.mounts
    assert (pipe_mount.read_only, shm.read_only) == (False, False)
    assert read_only == replace(usual, mounts=(replace(pipe_mount, read_only=True), shm))


@pytest.mark.parametrize("other", [_mps(1), offering(1), offering(1, 4)], ids=["mps", "whole", "sliced"])
def test_mps_shares_stand_alone_on_one_gpu(other: DeviceOffer) -> None:
    """One pipe directory leads to one daemon, and that one serves one GPU."""
    wanted = [other.share_ids[0], share(0, 0)]
    expected = "MPS shares of one container have to come from one GPU, alone; found 2 GPUs"
    assert _refusal(wanted, _mps(0), other) == expected


def test_a_share_of_before_is_not_given_beside_one_of_mps_of_the_same_gpu() -> None:
    """The kubelet may still have it from an older list."""
    with pytest.raises(AllocationRefused, match="from one GPU, alone; found other shares"):
        check_together(NAME, [_mps(0), offering(0, 4)])


# --- refusals ---------------------------------------------------------------------------------


def test_the_first_unknown_id_is_named() -> None:
    assert (
        _refusal([share(0, 0), ShareId("GPU-x"), ShareId("GPU-y")], offering(0, 2)) == "unknown device: GPU-x"
    )


def test_single_shares_are_refused_by_number_whole_gpus_are_not() -> None:
    """The rule is about shares: whole GPUs under the same name may be held together."""
    cards = [offering(0, 4, single=True), offering(1, single=True), offering(2, single=True)]
    message = "maximum request size for shared resources is 1; found 3"
    assert _refusal([share(0, 0), share(1), share(2)], *cards) == message
    assert _own(_answer([share(1), share(2)], *cards))["GPUS"] == f"{gpu(1).uuid},{gpu(2).uuid}"


def test_an_empty_request_is_refused() -> None:
    assert _refusal([], offering(0)) == "no device requested"


# --- ways to tell a container --------------------------------------------------------------------


def test_volume_mounts_overrule_the_variable_where_both_are_asked_for() -> None:
    options = Options(device_list=(MOUNTS, ENVVAR), imex_channels=(0,))
    answer = _answer([share(0)], offering(0), options=options)
    root = "/var/run/nvidia-container-devices"
    assert _nvidias(answer) == {"NVIDIA_VISIBLE_DEVICES": root, "NVIDIA_IMEX_CHANNELS": "0"}
    assert answer.mounts == (
        Mount(f"{root}/{gpu(0).uuid}", "/dev/null"),
        Mount(f"{root}/imex/0", "/dev/null"),
    )


def test_device_files_come_with_the_control_nodes_that_exist_below_the_device_root() -> None:
    """NVIDIA's order; a GPU's file once for each share; IMEX channels last."""
    options = Options(device_specs=True, dev_root="/host/", imex_channels=(0,))
    answer = _answer([share(1, 0), share(1, 1)], offering(1, 4), options=options)
    paths = [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia11",
        "/dev/nvidia11",
        "/dev/nvidia-caps-imex-channels/channel0",
    ]
    assert answer.devices == tuple(DeviceNode(path, f"/host{path}", "rw") for path in paths)


def test_cdi_alone_puts_nothing_else_of_nvidias_into_the_answer() -> None:
    """But what a share is told about itself, and the features, stay variables."""
    options = Options(device_list=(CRI,), device_specs=True, gds=True, gdrcopy=True, imex_channels=(0,))
    answer = _answer([share(0, 0), share(0, 1)], offering(0, 4), options=options, cdi_classes=("gds",))
    assert _nvidias(answer) == {"NVIDIA_GDS": "enabled", "NVIDIA_GDRCOPY": "enabled"}
    assert _own(answer)["SHARES"] == f"{share(0, 0)},{share(0, 1)}"
    assert (answer.mounts, answer.devices, answer.annotations) == ((), (), {})
    assert answer.cdi_devices == (
        f"{_VENDOR}/gpu={gpu(0).uuid}",
        f"{_VENDOR}/imex-channel=0",
        f"{_VENDOR}/gds=all",
    )


def test_a_class_of_cdi_devices_whose_feature_is_off_is_not_given() -> None:
    answer = _answer(
        [share(0)], offering(0), options=Options(device_list=(CRI,)), cdi_classes=("gds", "gdrcopy")
    )
    assert answer.cdi_devices == (f"{_VENDOR}/gpu={gpu(0).uuid}",)


def test_cdi_annotations_have_a_key_that_follows_from_the_ids() -> None:
    """NVIDIA's key is random; ours is the same for the same ids, and another one for others."""
    options = Options(
        device_list=(ANNOTATIONS,), device_ids=DeviceIdStrategy.INDEX, cdi_annotation_prefix="x.io/"
    )
    cards = [offering(0), offering(2)]
    answer = _answer(ids(*cards), *cards, options=options)
    ((key, value),) = answer.annotations.items()
    assert re.fullmatch(r"x\.io/nvidia-device-plugin_[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", key)
    assert value == f"{_VENDOR}/gpu=0,{_VENDOR}/gpu=2"
    assert answer.cdi_devices == ()
    assert _answer(ids(*cards), *cards, options=options).annotations == answer.annotations
    assert key not in _answer(ids(cards[0]), *cards, options=options).annotations


def test_features_are_variables_under_every_strategy() -> None:
    options = Options(mofed=True, gds=True, gdrcopy=True)
    assert _nvidias(_answer([share(0)], offering(0), options=options)) == {
        "NVIDIA_VISIBLE_DEVICES": gpu(0).uuid,
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
        "NVIDIA_GDRCOPY": "enabled",
    }


# --- memory limits of the driver -----------------------------------------------------------------


def _limited(
    terms: LimitTerms, *held: tuple[int, int], promised: Guarantee = Guarantee.HARD
) -> ContainerAllocation:
    """Of a container that holds these shares: GPU, number."""
    rows = [replace(offering(index, 4), limited=True, guarantee=promised, single=False) for index in (0, 1)]
    responder = AllocateResponder(
        resource(*rows), node(gpu(0), gpu(1)), Options(), "/run/partage", limits=terms
    )
    return responder.answer([rows[index].share_ids[number] for index, number in held])


def test_the_limits_of_a_containers_shares_add_up_for_each_gpu() -> None:
    answer = _limited(limit_terms("/p", "/", "", nvidia=True), (0, 0), (1, 0), (0, 1))
    each = offering(0, 4).memory_bytes
    assert [limit.limit_bytes for limit in answer.limits] == [2 * each, each]
    assert not [name for name in answer.envs if name.startswith("NVIDIA_GPU_MEMORY")]
    assert answer.envs["PARTAGE_GUARANTEE"] == "hard"


def test_by_nvidias_hook_a_limit_is_a_variable_and_promises_less() -> None:
    """What is promised is the offer's word."""
    nvidia = limit_terms("/p", "/", "noexec", nvidia=True)
    answer = _limited(nvidia, (0, 0), (1, 0), promised=Guarantee.ADVISORY)
    assert answer.envs["NVIDIA_GPU_MEMORY_LIMIT"] == str(offering(0, 4).memory_bytes // MIB)
    assert answer.envs["NVIDIA_GPU_MEMORY_REQUEST"] == "0"
    assert answer.envs["PARTAGE_GUARANTEE"] == "advisory"


def test_a_limit_that_nothing_can_set_refuses_the_container() -> None:
    with pytest.raises(AllocationRefused, match="cannot be set before it starts: noexec"):
        _limited(limit_terms("/p", "/", "noexec", nvidia=False), (0, 0))

# ruff: noqa: E501 - lines of gres.conf
"""What a policy means to Slurm."""

import pytest

from partage.errors import Unsatisfiable
from partage.slurm.cluster import make_config
from partage.slurm.decide.type_names import TypeNames
from partage.slurm.model import GresName, SlurmVersion
from partage.slurm.text.conf_writer import config_files, gres_value
from tests.slurm.decide import configs


def _lines(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("policy", "version", "gres", "types"),
    [
        (configs.WHOLE, "22.05.8", "gpu:h100:4", "gpu"),
        (configs.MPS, "22.05.8", "gpu:h100:2,gpu:h100_shared:2,mps:200", "gpu,mps"),
        (configs.SHARDS, "22.05.8", "gpu:h100:2,gpu:h100_shared:2,shard:8", "gpu,shard"),
        (configs.MIG, "22.05.8", "gpu:h100_1g.10gb:2,gpu:h100_3g.40gb:1,gpu:h100:3", "gpu"),
        (
            configs.MIG_MPS,
            "24.11",
            "gpu:h100_1g.10gb:2,gpu:h100_3g.40gb:1,gpu:h100:1,gpu:h100_shared:2,mps:200",
            "gpu,mps",
        ),
        (
            configs.SHARED_MIG,
            "24.11",
            "gpu:h100_1g.10gb_shared:4,gpu:h100_3g.40gb_shared:4,shard:32",
            "gpu,shard",
        ),
    ],
)
def test_the_counts_of_a_node(policy, version, gres, types):
    config = configs.config(policy, version)
    assert gres_value(config.nodes[0].gres.counts) == gres
    assert f"GresTypes={types}" in config_files(config)["slurm.conf"].splitlines()
    assert f"NodeName=g1 Gres={gres} " in config_files(config)["slurm.conf"]


def test_the_lines_of_a_mixed_node():
    lines = _lines(configs.files(configs.MIG_MPS, "24.11")["gres.conf"])
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert lines == [
        f"NodeName=g1 AutoDetect=off Name=gpu Type=h100_1g.10gb MultipleFiles=/dev/nvidia1,{caps}201,{caps}202 Flags=nvidia_gpu_env",
        f"NodeName=g1 Name=gpu Type=h100_1g.10gb MultipleFiles=/dev/nvidia1,{caps}210,{caps}211 Flags=nvidia_gpu_env",
        f"NodeName=g1 Name=gpu Type=h100_3g.40gb MultipleFiles=/dev/nvidia1,{caps}156,{caps}157 Flags=nvidia_gpu_env",
        "NodeName=g1 Name=gpu Type=h100 File=/dev/nvidia3 Flags=nvidia_gpu_env",
        "NodeName=g1 Name=gpu Type=h100_shared File=/dev/nvidia[0,2] Flags=nvidia_gpu_env",
        "NodeName=g1 Name=mps Count=0 File=/dev/nvidia3 Flags=all_sharing",
        "NodeName=g1 Name=mps Count=100 File=/dev/nvidia0 Flags=all_sharing",
        "NodeName=g1 Name=mps Count=100 File=/dev/nvidia2 Flags=all_sharing",
    ]  # fmt: skip


def _of_shares(policy, version, machine="4xh100-sxm5-80gb"):
    lines = _lines(configs.files(policy, version, machine)["gres.conf"])
    return [line.removeprefix("NodeName=g1 ") for line in lines if "Name=mps" in line or "Name=shard" in line]


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5"])
def test_whole_gpus_beside_several_with_mps_have_a_line_of_mps_too(version):
    """Without it 24.11.5 uses one GPU at a time for mps."""
    assert _of_shares(configs.MPS, version) == [
        "Name=mps Count=0 File=/dev/nvidia[2-3] Flags=all_sharing",
        "Name=mps Count=100 File=/dev/nvidia0 Flags=all_sharing",
        "Name=mps Count=100 File=/dev/nvidia1 Flags=all_sharing",
    ]
    assert gres_value(configs.config(configs.MPS, version).nodes[0].gres.counts).endswith(",mps:200")


def test_other_nodes_have_no_such_line():
    """One GPU with mps, no whole GPU, shards, and a release without all_sharing."""
    one = configs.MPS.replace("[0, 1]", "[0]")
    assert _of_shares(one, "24.11.5") == ["Name=mps Count=100 File=/dev/nvidia0"]
    assert len(_of_shares(configs.MPS, "24.11.5", "2xh100-sxm5-80gb")) == 2
    assert len(_of_shares(configs.SHARDS, "24.11.5")) == 2
    assert len(_of_shares(configs.MPS, "21.08.8")) == 2


def test_mig_devices_beside_several_gpus_with_mps_are_warned_of():
    def warned(policy):
        found = make_config(
            (configs.source(policy),), SlurmVersion.parse("24.11.5"), TypeNames.SHORT
        ).warnings
        return [str(one) for one in found if "one GPU of the node at a time for mps" in str(one)]

    assert len(warned(configs.MIG_MPS)) == 1
    for policy in (configs.MIG_MPS.replace("[0, 2]", "[0]"), configs.MIG_SHARDS, configs.MPS_ON_MIG):
        assert warned(policy) == []


def test_devices_have_slurms_indexes_and_the_drivers_uuids():
    devices = configs.config(configs.MIG, "22.05.8").nodes[0].gres.devices
    assert [(one.index, one.name, one.type) for one in devices] == [
        (0, "1:1", "h100_1g.10gb"), (1, "1:2", "h100_1g.10gb"), (2, "1:0", "h100_3g.40gb"),
        (3, "0", "h100"), (4, "2", "h100"), (5, "3", "h100"),
    ]  # fmt: skip
    assert all(one.uuid.startswith("MIG-" if ":" in one.name else "GPU-") for one in devices)


@pytest.mark.parametrize(
    ("policy", "version", "said"),
    [
        (configs.BOTH, "24.11", "mps and shard exclude each other"),
        (configs.MIG_MPS, "22.05.8", "reads each file of a MIG device as one GPU"),
        (configs.MIG_SHARDS, "23.02.6", "reads each file of a MIG device as one GPU"),
        (configs.MIG, "20.11.9", "has no MIG devices"),
        (configs.SHARDS, "21.08.8", "has no shard"),
        (configs.WHOLE, "18.08.9", "too old"),
        (
            "version: partage/v1\ngpus: [{select: {index: [0]}, mig: {layout: [1g.10gb], mps: {replicas: 2}}}]\n",
            "24.11",
            "splits the shares of MIG devices evenly",
        ),
    ],
)
def test_what_slurm_cannot_do_is_refused_with_the_reason(policy, version, said):
    with pytest.raises(Unsatisfiable, match=said):
        configs.config(policy, version)


@pytest.mark.parametrize(
    ("policy", "version"),
    [(configs.MIG_MPS, "23.02.7"), (configs.MIG, "21.08"), (configs.SHARDS, "22.05"), (configs.MPS, "19.05")],
)
def test_the_first_release_that_can_do_it(policy, version):
    assert configs.files(policy, version)["gres.conf"]


@pytest.mark.parametrize(
    ("version", "warned"),
    [("22.05.8", True), ("23.11.4", True), ("23.11.5", False), ("25.05.0", True), ("25.05.1", False)],
)
def test_releases_that_double_book_are_named(version, warned):
    made = make_config((configs.source(configs.MPS),), SlurmVersion.parse(version), TypeNames.SHORT)
    assert bool(made.warnings) is warned
    whole = make_config((configs.source(configs.WHOLE),), SlurmVersion.parse(version), TypeNames.SHORT)
    assert not whole.warnings


def test_mps_here_and_shards_there_exclude_each_other_too():
    sources = (configs.source(configs.MPS, names=["a"]), configs.source(configs.SHARDS, names=["b1", "b2"]))
    with pytest.raises(Unsatisfiable, match=r"mps on a; shard on b1, b2"):
        make_config(sources, SlurmVersion.parse("24.11"), TypeNames.SHORT)


@pytest.mark.parametrize(
    ("machine", "types", "gres"),
    [
        ("1xh100-sxm5-80gb+1xh100-pcie-80gb", "short", "gpu:h100:2"),
        ("1xh100-sxm5-80gb+1xh100-pcie-80gb", "model", "gpu:h100_pcie_80gb:1,gpu:h100_sxm5_80gb:1"),
        ("2xrtx-a6000", "short", "gpu:rtx_a6000:2"),
        ("1xl40s", "short", "gpu:l40s:1"),
        ("1xv100s-pcie-32gb", "short", "gpu:v100s:1"),
    ],
)
def test_types(machine, types, gres):
    assert gres_value(configs.config(configs.WHOLE, "24.11", machine, types).nodes[0].gres.counts) == gres


def test_mig_devices_can_be_named_by_their_profile_alone():
    counts = configs.config(configs.MIG, "24.11", types="profile").nodes[0].gres.counts
    assert (GresName.GPU, "1g.10gb") in counts


def test_a_name_of_the_policy_is_the_type():
    policy = "version: partage/v1\ngpus: [{select: {index: [0]}, name: nvidia.com/gpu.notebooks, time-slicing: {replicas: 10}}]\n"
    counts = configs.config(policy, "24.11").nodes[0].gres.counts
    assert counts == {
        (GresName.GPU, "h100"): 3, (GresName.GPU, "notebooks"): 1, (GresName.SHARD, ""): 10,
    }  # fmt: skip


def test_the_first_versions_name_the_files_that_every_job_may_use():
    files = configs.files(configs.MPS, "20.11.9")
    assert "Flags=" not in files["gres.conf"]
    allowed = _lines(files["cgroup_allowed_devices_file.conf"])
    assert "/dev/nvidia-uvm" in allowed
    assert not any(line.startswith("/dev/nvidia") and line[-1].isdigit() for line in allowed)
    assert "AllowedDevicesFile" in files["cgroup.conf"]
    assert "AllowedDevicesFile" not in configs.files(configs.MPS, "22.05")["cgroup.conf"]


def test_nodes_that_are_alike_are_one_block():
    sources = (configs.source(configs.MPS, names=[f"g{n:03}" for n in range(1, 501)]),)
    files = config_files(make_config(sources, SlurmVersion.parse("24.11"), TypeNames.SHORT).config)
    assert len(_lines(files["gres.conf"])) == 5
    assert all(line.startswith("NodeName=g[001-500] ") for line in _lines(files["gres.conf"]))
    assert "UUID" not in files["gres.conf"]


def test_a_gpu_without_mig_devices_is_left_out_with_the_reason():
    policy = "version: v1\nmig-configs: {c: [{devices: [0], mig-enabled: true, mig-devices: {}}]}\n"
    files = configs.files(policy, "24.11")
    assert "# g1: GPU 0 is left out: it is in MIG mode and has no MIG device" in files["gres.conf"]
    assert "Gres=gpu:h100:3 " in files["slurm.conf"]


def test_units_of_memory_are_shards_and_not_mps():
    """Of Slurm's two ways only shard is a count that is of one GPU and no part of its threads."""
    by_memory = "gpus: [{select: all, %s: {unit: 1Gi}}]"
    sliced = configs.config(f"version: partage/v1\n{by_memory % 'time-slicing'}\n", "24.11")
    assert gres_value(sliced.nodes[0].gres.counts) == "gpu:h100_shared:4,shard:316"
    said = config_files(sliced)["gres.conf"]
    assert "a job asks for --gres=shard:N, units of 1 GiB" in said
    with pytest.raises(Unsatisfiable, match="each unit is a shard"):
        configs.config(f"version: partage/v1\n{by_memory % 'mps'}\n", "24.11")


def test_a_name_never_makes_a_shared_gpu_look_like_one_that_is_not():
    policy = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, name: nvidia.com/gpu.h100, mps: {replicas: 4}}
  - {select: {index: [1]}, name: nvidia.com/gpu.notebooks, mps: {replicas: 2}}
"""
    (node,) = configs.config(policy, "24.11.5").nodes
    assert {(one.name, one.type) for one in node.gres.devices} == {
        ("0", "h100_shared"), ("1", "notebooks"), ("2", "h100"), ("3", "h100"),
    }  # fmt: skip

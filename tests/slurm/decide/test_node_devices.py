"""What stands behind Slurm's indexes: the same as in gres.conf, in the same order."""

import pytest

from partage.errors import InputError
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.slurm.cluster import make_config
from partage.slurm.decide.type_names import TypeNames
from partage.slurm.host.devices_file import MARK, devices_text, read_devices
from partage.slurm.model import GresName, SlurmVersion
from tests.slurm.decide import configs

MACHINE = "4xh100-sxm5-80gb"


def made(policy):
    written = make_config((configs.source(policy, MACHINE),), SlurmVersion(24, 11, 5), TypeNames.SHORT)
    return written.devices[0], written.config.nodes[0].gres


@pytest.mark.parametrize(
    "policy",
    [
        configs.WHOLE,
        configs.MPS,
        configs.SHARDS,
        configs.MIG,
        configs.MIG_MPS,
        configs.SHARED_MIG,
        configs.MPS_ON_MIG,
    ],
)
def test_the_devices_are_those_of_gres_conf(policy, tmp_path):
    node, gres = made(policy)
    both = zip(node.devices, gres.devices, strict=True)
    assert all(
        (one.index, one.uuid, one.type, one.shares, one.units)
        == (other.index, other.uuid, other.type, other.shares, other.units)
        for one, other in both
    )
    text = devices_text(node)
    assert text.startswith(MARK)
    (tmp_path / "devices.json").write_text(text)
    assert read_devices(tmp_path / "devices.json") == node


def test_a_device_whole_and_shared():
    policy = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, mps: {replicas: 4, users: single}}
  - {select: {index: [1]}, mig: {layout: [3g.40gb, 1g.10gb]}}
"""
    node, _ = made(policy)
    small, large, *whole, shared = node.devices
    assert [one.type for one in node.devices] == [
        "h100_1g.10gb",
        "h100_3g.40gb",
        "h100",
        "h100",
        "h100_shared",
    ]
    assert (small.strategy, small.memory_bytes < large.memory_bytes) == (Strategy.MIG, True)
    assert {one.strategy for one in whole} == {Strategy.EXCLUSIVE}
    assert (shared.strategy, shared.shares, shared.units) == (Strategy.MPS, GresName.MPS, 100)
    assert shared.memory_bytes == whole[0].memory_bytes  # of all of it
    assert (shared.multi_user, whole[0].multi_user) == (False, None)
    assert {one.guarantee for one in node.devices} == {Guarantee.HARD}


def test_indexes_have_to_be_in_order(tmp_path):
    node, _ = made(configs.WHOLE)
    (tmp_path / "devices.json").write_text(devices_text(node).replace('"index": 1', '"index": 7'))
    with pytest.raises(InputError, match="indexes that are not 0, 1, 2"):
        read_devices(tmp_path / "devices.json")

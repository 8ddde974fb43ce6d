"""What an operator should know before relying on a plan."""

from msgspec.structs import replace

from partage.plan.offer.caveats import caveats
from tests.plan.test_turn import EXCLUSIVE, desired, observed


def sentences(inventory):
    found = desired(EXCLUSIVE, inventory)
    return [one.sentence for one in caveats(found.policy, inventory, found.offer, ctk_found=True)]


def test_mig_devices_that_only_root_may_read_are_named():
    inventory = observed()
    hidden = tuple(replace(gpu, mig_hidden=gpu.index == 2) for gpu in inventory)
    (found,) = [one for one in sentences(replace(inventory, gpus=hidden)) if "root only" in one]
    assert found.startswith("Where the MIG devices of GPU 2 are can be read")


def test_gpus_without_persistence_mode_are_named():
    inventory = observed()
    assert not [one for one in sentences(inventory) if "Persistence" in one]
    cold = tuple(replace(gpu, persistence=gpu.index > 1) for gpu in inventory)
    (found,) = [one for one in sentences(replace(inventory, gpus=cold)) if "Persistence" in one]
    assert "GPUs 0-1:" in found

"""What an operator should know before relying on a plan."""

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.gpu import ToolkitConfig
from partage.plan.offer.caveats import caveats, made_on_demand, on_demand
from partage.plan.offer.desired import resolve
from tests.plan.offer.test_assign import with_devices
from tests.plan.offers import gpu, node
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


def kept(inventory, text):
    policy = parse_policy(f"version: partage/v1\ngpus: [{text}]", "p.yaml").policy
    found = resolve(policy, inventory, geometry_of)
    all_of_them = caveats(policy, inventory, found.offer, ctk_found=True, layouts=found.layouts)
    return [one.sentence for one in all_of_them if "all-disabled" in one.sentence]


def test_exclusive_on_a_gpu_in_mig_mode_is_said_to_leave_the_layout():
    inventory = node(gpu(0), with_devices(gpu(1), "3g.40gb"))
    (sentence,) = kept(inventory, "{select: all, exclusive: {}}")
    assert sentence.startswith("In MIG mode: GPU 1.")
    assert "mig: {layout: all-disabled}" in sentence


@pytest.mark.parametrize(
    "text",
    [
        "{select: all, time-slicing: {replicas: 2}}",
        "{select: {index: 1}, mig: {layout: all-disabled}}",
        "{select: {index: 0}, exclusive: {}}, {select: {index: 1}, mig: {layout: [1g.10gb]}}",
    ],
)
def test_who_says_what_becomes_of_the_layout_is_told_nothing(text):
    assert kept(node(gpu(0), with_devices(gpu(1), "3g.40gb")), text) == []


ENV = "accept-nvidia-visible-devices-envvar-when-unprivileged"
CONFIG = "/etc/nvidia-container-runtime/config.toml"


def of_toolkit(toolkit, ways="[envvar]"):
    inventory = replace(
        node(gpu(0)), open_to_env=None if toolkit is None else toolkit.accepts_env, toolkit=toolkit
    )
    text = f"version: v1\nflags: {{plugin: {{deviceListStrategy: {ways}}}}}"
    policy = parse_policy(text, "p.yaml").policy
    found = resolve(policy, inventory, geometry_of)
    said = caveats(policy, inventory, found.offer, ctk_found=True)
    return [one for one in said if "NVIDIA_VISIBLE_DEVICES" in one.sentence or ENV in one.sentence]


def test_the_toolkits_refusal_is_told_with_what_was_seen():
    (unknown,) = of_toolkit(None)
    assert not unknown.certain
    (default,) = of_toolkit(ToolkitConfig(CONFIG, True, False, False))
    assert f"({CONFIG}: {ENV} is not set, which means true)" in default.sentence
    (stated,) = of_toolkit(ToolkitConfig(CONFIG, True, True, False))
    assert f"({CONFIG}: {ENV} = true)" in stated.sentence


@pytest.mark.parametrize(
    ("ways", "mounts", "said"),
    [
        ("[envvar]", True, "use deviceListStrategy volume-mounts, with"),
        ("[volume-mounts]", False, "accept-nvidia-visible-devices-as-volume-mounts is not true"),
        ("[volume-mounts]", True, ""),
        ("[envvar, cdi-cri]", False, ""),
    ],
)
def test_a_refusal_by_which_no_container_gets_a_gpu_is_told(ways, mounts, said):
    found = of_toolkit(ToolkitConfig(CONFIG, False, True, mounts), ways)
    assert [said in one.sentence for one in found] == ([True] if said else [])


def test_entries_that_are_made_on_demand_are_listed():
    text = (
        "{select: {index: 0}, via: claims, mig: {on-demand: true}}, {select: rest, mig: {layout: [1g.10gb]}}"
    )
    policy = parse_policy(f"version: partage/v1\ngpus: [{text}]", "p.yaml").policy
    assert on_demand(policy) == ("gpus[0]",)


@pytest.mark.parametrize("named", [set(), {0}, {0, 1}])
def test_what_claims_get_on_demand_is_said_of_those_gpus(named):
    inventory = node(gpu(0), gpu(1))
    said = [*made_on_demand(inventory, {gpu(index).uuid for index in named})]
    assert [one.split(":")[0] for one in said] == {0: [], 1: ["GPU 0"], 2: ["GPUs 0-1"]}[len(named)]

"""What an operator should know before relying on a plan."""

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.gpu import ToolkitConfig
from partage.model.policy import ALL_EXCLUSIVE
from partage.model.share import Guarantee
from partage.model.strategy import Strategy
from partage.plan.offer.caveats import caveats, draining, made_on_demand, on_demand
from partage.plan.offer.desired import resolve
from tests.plan.offer.test_assign import with_devices
from tests.plan.offers import gpu, node, offering, unit_row
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


NVIDIAS = """
version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}
"""


def own(text):
    return parse_policy(f"version: partage/v1\ngpus: [{text}]", "p.yaml").policy


def kept(inventory, policy):
    found = resolve(policy, inventory, geometry_of)
    all_of_them = caveats(policy, inventory, found.offer, ctk_found=True, layouts=found.layouts)
    return [one.sentence for one in all_of_them if "all-disabled" in one.sentence]


def test_exclusive_on_a_gpu_in_mig_mode_is_said_to_leave_the_layout():
    inventory = node(gpu(0), with_devices(gpu(1), "3g.40gb"))
    (sentence,) = kept(inventory, own("{select: all, exclusive: {}}"))
    assert sentence.startswith("In MIG mode: GPU 1.")
    assert "mig: {layout: all-disabled}" in sentence


@pytest.mark.parametrize(
    "text",
    [
        "{select: all, time-slicing: {replicas: 2}}",
        "{select: {index: 1}, mig: {layout: all-disabled}}",
        "{select: {index: 0}, exclusive: {}}, {select: {index: 1}, mig: {layout: [1g.10gb]}}",
        "{select: {index: 0}, exclusive: {}}, {select: {index: 1}, time-slicing: {replicas: 2}}",
        "{select: {index: 0}, mig: {layout: [1g.10gb]}}",
    ],
)
def test_who_says_what_becomes_of_the_layout_is_told_nothing(text):
    assert kept(node(gpu(0), with_devices(gpu(1), "3g.40gb")), own(text)) == []


def test_nvidias_format_says_nothing_of_exclusive():
    policy = parse_policy(NVIDIAS, "p.yaml").policy
    assert kept(node(gpu(0), with_devices(gpu(1), "3g.40gb")), policy) == []


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
    assert of_toolkit(None, "[cdi-cri]") == [], "containers get no GPU by the variable"
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


@pytest.mark.parametrize(
    ("ways", "ctk_found", "ill"),
    [("[cdi-cri]", False, True), ("[cdi-cri]", True, False), ("[envvar]", False, False)],
)
def test_cdi_without_nvidias_program_makes_shares_unhealthy(ways, ctk_found, ill):
    text = f"version: v1\nflags: {{plugin: {{deviceListStrategy: {ways}}}}}"
    policy = parse_policy(text, "p.yaml").policy
    said = caveats(policy, node(gpu(0)), {}, ctk_found=ctk_found)
    assert any("Shares will be unhealthy" in one.sentence for one in said) is ill


RESTRICTED = replace(node(gpu(0), driver="580.95.05"), restricted_mps=True)
ADVISORY = replace(offering(0, 2, shared=Strategy.MPS), guarantee=Guarantee.ADVISORY)


@pytest.mark.parametrize(
    ("inventory", "row", "said"),
    [
        (node(gpu(0), driver="535.261.03"), ADVISORY, True),
        (RESTRICTED, ADVISORY, False),
        (node(gpu(0), driver="535.261.03"), replace(ADVISORY, guarantee=Guarantee.GUARDED), False),
        (node(gpu(0), driver="535.261.03"), replace(ADVISORY, limits_in_env=True), False),
        (node(gpu(0), driver="535.261.03"), replace(ADVISORY, pipe="server/share0"), False),
        (node(gpu(0), driver="535.261.03"), replace(ADVISORY, shared=Strategy.TIME_SLICING), False),
    ],
)
def test_why_shares_whose_limit_the_daemon_holds_are_advisory_is_told(inventory, row, said):
    found = caveats(ALL_EXCLUSIVE, inventory, {row.gpu: (row,)}, ctk_found=True)
    assert any("MPS shares are 'advisory'" in one.sentence for one in found) is said


@pytest.mark.parametrize(
    ("units", "shared", "said"),
    [(48, Strategy.MPS, False), (49, Strategy.MPS, True), (49, Strategy.TIME_SLICING, False)],
)
def test_more_containers_with_memory_than_an_mps_server_has_clients_are_told(units, shared, said):
    row = replace(unit_row(0, units), shared=shared)
    found = caveats(ALL_EXCLUSIVE, node(gpu(0)), {row.gpu: (row,)}, ctk_found=True)
    assert any("at most 48 clients" in one.sentence for one in found) is said


def test_entries_that_drain_are_listed():
    policy = own("{select: {index: 0}, exclusive: {}, change: {drain: 10m}}, {select: rest, exclusive: {}}")
    assert draining(policy) == ("gpus[0]",)


def test_nvidias_format_neither_drains_nor_makes_devices_on_demand():
    policy = parse_policy(NVIDIAS, "p.yaml").policy
    assert draining(policy) == on_demand(policy) == ()


def test_entries_that_are_made_on_demand_are_listed():
    text = (
        "{select: {index: 0}, via: claims, mig: {on-demand: true}}, {select: rest, mig: {layout: [1g.10gb]}}"
    )
    assert on_demand(own(text)) == ("gpus[0]",)


@pytest.mark.parametrize("named", [set(), {0}, {0, 1}])
def test_what_claims_get_on_demand_is_said_of_those_gpus(named):
    inventory = node(gpu(0), gpu(1))
    said = [*made_on_demand(inventory, {gpu(index).uuid for index in named})]
    assert [one.split(":")[0] for one in said] == {0: [], 1: ["GPU 0"], 2: ["GPUs 0-1"]}[len(named)]

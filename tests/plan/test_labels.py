"""The labels of a node: where one value is not true for all GPUs, and what Kubernetes takes as a value."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.gpu import Inventory, NoDriver, VgpuHost
from partage.model.ids import ResourceName
from partage.model.policy import Options
from partage.plan.labels import LONGEST_VALUE, node_labels, sanitised
from partage.plan.offer.desired import resolve
from partage.sim.node.files.load import load_machine
from partage.sim.node.files.machine_file import read_machine
from tests.plan.offers import offering

_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_H100 = "NVIDIA-H100-80GB-HBM3"


def _labels(inventory: Inventory, policy: str = "version: partage/v1"):
    read = parse_policy(policy, "policy.yaml").policy
    desired = resolve(read, inventory, geometry_of)
    return node_labels(inventory, desired.offer, read.options, geometry_of)


def _gpus(labels, prefix="nvidia.com/gpu."):
    return {key.removeprefix(prefix): value for key, value in labels.items() if key.startswith(prefix)}


def _of(name: str) -> Inventory:
    return load_machine(name).inventory


def _file(text: str) -> Inventory:
    return read_machine(text.encode(), "machine.yaml").inventory


def test_several_models_have_what_is_true_of_all():
    labels = _labels(_of("4xh200-141gb+4xl40s"))
    found = _gpus(labels)
    assert "product" not in found
    assert "family" not in found
    assert (found["count"], found["memory"]) == ("8", "46068")
    assert (found["compute.major"], found["compute.minor"]) == ("8", "9")
    assert (labels["partage.dev/gpu.NVIDIA-H200"], labels["partage.dev/gpu.NVIDIA-L40S"]) == ("4", "4")


@pytest.mark.parametrize(("name", "label"), [("", "unknown"), ("DGX H100", "DGX-H100")])
def test_a_machine_has_its_name_and_without_one_it_is_unknown(name, label):
    assert _gpus(_labels(replace(_of("l40s"), machine_type=name)))["machine"] == label


@pytest.mark.parametrize(("name", "label"), [("l40s", "false"), ("h100-sxm5-80gb", "true")])
def test_a_node_is_capable_of_mig_where_a_gpu_is(name, label):
    assert _labels(_of(name))["nvidia.com/mig.capable"] == label


@pytest.mark.parametrize(("strategy", "label"), [("none", None), ("mixed", "mixed"), ("single", "single")])
def test_the_mig_strategy_is_said_unless_it_is_none(strategy, label):
    labels = _labels(_of("l40s"), f"version: v1\nflags: {{migStrategy: {strategy}}}")
    assert labels.get("nvidia.com/mig.strategy") == label


def test_single_on_a_node_without_mig_labels_whole_gpus():
    found = _gpus(_labels(_of("2xh100-sxm5-80gb"), "version: partage/v1\nresources: {mig-strategy: single}"))
    assert (found["product"], found["replicas"]) == (_H100, "1")


def test_gpus_that_are_shared_in_different_ways_have_no_common_replicas():
    policy = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, time-slicing: {replicas: 4}}
  - {select: {index: [1]}, time-slicing: {replicas: 3}}
"""
    found = _gpus(_labels(_of("2xh100-sxm5-80gb"), policy))
    assert (found["sharing-strategy"], found.get("replicas")) == ("time-slicing", None)
    found = _gpus(_labels(_of("2xh100-sxm5-80gb"), policy.replace("replicas: 3", "replicas: 4")))
    assert (found["sharing-strategy"], found["replicas"], found["product"]) == ("time-slicing", "4", _H100)


def test_shares_without_a_name_of_their_own_say_so_in_the_product():
    policy = """\
version: partage/v1
gpus: [{select: all, time-slicing: {replicas: 4}}]
resources: {rename-shared: false}
"""
    assert _gpus(_labels(_of("2xh100-sxm5-80gb"), policy))["product"] == f"{_H100}-SHARED"


_TWO_MIG = """\
gpus:
  - name: NVIDIA H100 80GB HBM3
    mig_devices:
      - {gi: 1, ci: 0, profile: 3g.40gb, start: 0, multiprocessors: 60}
  - name: NVIDIA H100 80GB HBM3
    mig_devices:
      - {gi: 1, ci: 0, profile: 3g.40gb, start: 0, multiprocessors: 60}
      - {gi: 2, ci: 0, profile: 3g.40gb, start: 4, multiprocessors: 60}
"""
_SINGLE = "version: v1\nflags: {migStrategy: single}\n"


def test_mixed_names_each_profile():
    labels = _labels(_file(_TWO_MIG))
    assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.replicas"]) == ("2", "0")
    assert _gpus(labels, "nvidia.com/mig-3g.40gb.") == {
        "count": "3",
        "product": f"{_H100}-MIG-3g.40gb",
        "replicas": "1",
        "sharing-strategy": "none",
        "memory": "40448",
        "multiprocessors": "60",
        "slices.gi": "3",
        "slices.ci": "3",
        "engines.copy": "3",
        "engines.decoder": "3",
        "engines.encoder": "0",
        "engines.jpeg": "3",
        "engines.ofa": "0",
    }


def test_engines_that_are_not_known_have_no_label():
    inventory = _file(_TWO_MIG)
    known = geometry_of(inventory.gpus[0])
    assert known is not None
    without = replace(known, profiles=tuple(replace(spec, engines=None) for spec in known.profiles))
    read = parse_policy("version: partage/v1", "policy.yaml").policy
    offer = resolve(read, inventory, geometry_of).offer
    for of_model, there in ((geometry_of, True), (lambda _: without, False), (lambda _: None, False)):
        labels = node_labels(inventory, offer, read.options, of_model)
        assert any(".engines." in key for key in labels) is there


def test_single_puts_the_mig_devices_in_place_of_the_gpus():
    found = _gpus(_labels(_file(_TWO_MIG), _SINGLE))
    assert (found["count"], found["product"]) == ("3", f"{_H100}-MIG-3g.40gb")
    assert (found["memory"], found["multiprocessors"], found["slices.gi"]) == ("40448", "60", "3")


_ONE_MIG = """\
gpus:
  - name: NVIDIA H100 80GB HBM3
  - name: NVIDIA H100 80GB HBM3
    mig_devices: [{gi: 1, ci: 0, profile: 3g.40gb, start: 0, multiprocessors: 60}]
"""


def test_replicas_of_whole_gpus_are_those_of_gpus_without_mig():
    assert _gpus(_labels(_file(_ONE_MIG)))["replicas"] == "1"
    planned = "version: partage/v1\ngpus: [{select: all, mig: {layout: [3g.40gb]}}]"
    assert _gpus(_labels(_of("2xh100-sxm5-80gb"), planned))["replicas"] == "0", "they will have MIG devices"


@pytest.mark.parametrize("text", [_TWO_MIG.replace("3g.40gb, start: 4", "1g.10gb, start: 4"), _ONE_MIG])
def test_single_with_unequal_devices_or_a_gpu_without_one_is_invalid(text):
    inventory = _file(text)
    options = parse_policy(_SINGLE, "config.yaml").policy.options
    found = _gpus(node_labels(inventory, {}, options, geometry_of))
    assert (found["product"], found["count"], found["replicas"]) == (f"{_H100}-MIG-INVALID", "0", "0")
    assert (found["sharing-strategy"], found["memory"]) == ("", "0")


def test_mps_capable_is_for_nodes_where_all_is_mps():
    mps = "version: partage/v1\ngpus: [{select: {index: [0]}, mps: {replicas: 2}}]"
    assert _labels(_of("1xh100-sxm5-80gb"), mps)["nvidia.com/mps.capable"] == "true"
    assert _labels(_of("2xh100-sxm5-80gb"), mps)["nvidia.com/mps.capable"] == "false"
    assert _labels(_file(_ONE_MIG), mps)["nvidia.com/mps.capable"] == "false"
    nothing = node_labels(_of("1xh100-sxm5-80gb"), {}, Options(), geometry_of)
    assert nothing["nvidia.com/mps.capable"] == "false"


def test_a_node_without_a_gpu_or_a_driver_has_almost_no_labels():
    absent = Inventory(NoDriver("driver-missing", "no driver"))
    known = _of("l40s")
    for inventory in (absent, replace(known, driver=absent.driver), replace(known, gpus=())):
        assert node_labels(inventory, {}, Options(), geometry_of, 5.9) == {
            "nvidia.com/gfd.timestamp": "5",
            "nvidia.com/vgpu.present": "false",
        }


@pytest.mark.parametrize(
    ("capability", "family"),
    [((7, 0), "volta"), ((7, 5), "turing"), ((8, 6), "ampere"), ((8, 9), "ada-lovelace"), ((9, 0), "hopper"),
     ((10, 0), "blackwell"), ((12, 0), "blackwell"), ((13, 0), "rubin"), ((40, 0), "undefined")],
)  # fmt: skip
def test_the_family_follows_from_the_capability(capability, family):
    inventory = _of("1xh100-sxm5-80gb")
    changed = replace(inventory, gpus=(replace(inventory.gpus[0], compute_capability=capability),))
    assert _labels(changed)["nvidia.com/gpu.family"] == family


@pytest.mark.parametrize(
    ("classes", "mode"),
    [((0x030000, 0x030000), "graphics"), ((0x030200, 0x030200), "compute"), ((0x030000, 0x030200), "unknown"),
     ((0x030000, None), "unknown"), ((0x040000, 0x040000), "unknown")],
)  # fmt: skip
def test_the_mode_is_the_class_of_the_pci_devices(classes, mode):
    inventory = _of("2xh100-sxm5-80gb")
    gpus = tuple(replace(gpu, pci_class=one) for gpu, one in zip(inventory.gpus, classes, strict=True))
    assert _labels(replace(inventory, gpus=gpus))["nvidia.com/gpu.mode"] == mode


@pytest.mark.parametrize(
    ("cliques", "label"),
    [(("u.1", "u.1"), "u.1"), (("u.1", None), "u.1"), (("u.1", "u.2"), None), ((None, None), None)],
)
def test_the_clique_is_that_of_the_gpus_in_a_fabric(cliques, label):
    inventory = _of("2xh100-sxm5-80gb")
    gpus = tuple(replace(gpu, clique=one) for gpu, one in zip(inventory.gpus, cliques, strict=True))
    assert _labels(replace(inventory, gpus=gpus)).get("nvidia.com/gpu.clique") == label


@pytest.mark.parametrize(("hard", "soft"), [("a.example", "b.example"), ("b.example", "a.example")])
def test_resources_of_one_name_in_two_domains_say_the_weakest_guarantee(hard, soft):
    policy = f"""\
version: partage/v1
gpus:
  - {{select: {{index: [0]}}, name: {hard}/gpu, exclusive: {{}}}}
  - {{select: {{index: [1]}}, name: {soft}/gpu, time-slicing: {{replicas: 2}}}}
"""
    assert _labels(_of("2xh100-sxm5-80gb"), policy)["partage.dev/gpu.guarantee"] == "none"


def test_a_vgpu_names_its_host():
    inventory = replace(_of("1xl4"), vgpu=VgpuHost("550.144.02", "r550_00"))
    labels = _labels(inventory)
    assert labels["nvidia.com/vgpu.present"] == "true"
    assert labels["nvidia.com/vgpu.host-driver-version"] == "550.144.02"
    assert labels["nvidia.com/vgpu.host-driver-branch"] == "r550_00"
    unknown = _labels(replace(inventory, vgpu=VgpuHost("", "")))
    assert [key for key in unknown if "vgpu" in key] == ["nvidia.com/vgpu.present"]


@given(st.text(max_size=100))
def test_whatever_a_name_is_kubernetes_takes_its_label(text):
    assert len(sanitised(text)) <= 63
    assert _VALUE.fullmatch(sanitised(text))


@given(st.text(min_size=1, max_size=120), st.booleans())
def test_every_label_is_one_that_kubernetes_takes(product, shared):
    inventory = _of("1xh100-sxm5-80gb")
    changed = replace(inventory, gpus=(replace(inventory.gpus[0], product=product),), machine_type=product)
    policy = """\
version: v1
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""
    for key, value in _labels(changed, policy if shared else "version: v1").items():
        name = key.partition("/")[2]
        assert 0 < len(name) <= 63, key
        assert _VALUE.fullmatch(name), key
        assert len(value) <= 63, value
        assert _VALUE.fullmatch(value), value


@pytest.mark.parametrize(("more", "there"), [(0, True), (1, False)])
def test_a_label_is_as_long_as_kubernetes_allows_and_no_longer(more, there):
    name = "g" * (LONGEST_VALUE - len(".guarantee") + more)
    row = replace(offering(0), resource=ResourceName(f"a.b/{name}"))
    labels = node_labels(_of("h100-sxm5-80gb"), {row.gpu: (row,)}, Options(), geometry_of)
    assert any(name in key for key in labels) is there

"""A layout by its name comes to different MIG devices on different cards of one node."""

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import Unsatisfiable
from partage.model.policy import AllDevices, DesiredMig, GpuEntry, NodeLayouts, Policy
from partage.plan.offer.assign import assign
from partage.plan.offer.gpu_devices import PlannedDevice
from partage.sim.node.machine_names import parse_machine
from tests.plan.offers import gpu, node


def laid(layout, machine, more=""):
    text = f"version: partage/v1\ngpus: [{{select: all, mig: {{layout: {layout}}}}}]\n{more}"
    return assign(parse_policy(text, "p").policy, parse_machine(machine).inventory, geometry_of)


def test_every_gpu_gets_the_layout_of_its_own_model():
    assigned = laid("all-balanced", "1xa30-24gb+1xh100-sxm5-80gb")
    found: dict[int, list[str]] = {0: [], 1: []}
    for target in assigned.targets:
        assert isinstance(target.mig, PlannedDevice)
        found[target.gpu.index].append(str(target.mig.item))
    assert {index: sorted(items) for index, items in found.items()} == {
        0: ["1g.6gb", "1g.6gb", "2g.12gb"],
        1: ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"],
    }
    assert "2 x 1g.6gb + 1 x 2g.12gb" in next(iter(assigned.pending.values()))


def test_all_disabled_is_a_whole_gpu_under_any_mig_strategy():
    for strategy in ("mixed", "none", "single"):
        more = f"resources: {{mig-strategy: {strategy}}}"
        assert [target.mig for target in laid("all-disabled", "2xa30-24gb", more).targets] == [None, None]


def test_all_enabled_is_a_mig_gpu_without_devices():
    assigned = laid("all-enabled", "a30-24gb")
    assert not assigned.targets
    assert "no MIG devices" in next(iter(assigned.pending.values()))


@pytest.mark.parametrize(
    ("machine", "said"),
    [("l40s", "has no MIG"), ("1xa30-24gb+1xl4", "GPU 1: NVIDIA L4 has no MIG")],
)
def test_a_gpu_that_cannot_have_the_layout_is_named(machine, said):
    with pytest.raises(Unsatisfiable, match=said):
        laid("all-balanced", machine)


@pytest.mark.parametrize(("layout", "concerned"), [("all-balanced", [0]), ("all-disabled", [0, 1])])
def test_a_label_concerns_the_gpus_whose_model_has_its_layout(layout, concerned):
    unknown = replace(gpu(1), product="NVIDIA X900", pci_device_id="0x999910de")
    mig = DesiredMig(enabled=False) if layout == "all-disabled" else DesiredMig(named=layout)
    entry = GpuEntry("label nvidia.com/mig.config", AllDevices(), mig=mig)
    assigned = assign(Policy(layouts=NodeLayouts(layout, (entry,))), node(gpu(0), unknown), geometry_of)
    assert assigned.labelled == {gpu(index).uuid for index in concerned}


def test_a_label_with_a_layout_that_no_gpu_has_is_refused():
    entry = GpuEntry("label nvidia.com/mig.config", AllDevices(), mig=DesiredMig(named="all-9g.1gb"))
    with pytest.raises(Unsatisfiable, match="all-9g"):
        assign(Policy(layouts=NodeLayouts("all-9g.1gb", (entry,))), node(gpu(0)), geometry_of)

"""A layout by its name comes to different MIG devices on different cards of one node."""

import pytest
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.errors import InputError, Unsatisfiable
from partage.model.layout import LayoutItem
from partage.model.policy import AllDevices, DesiredMig, GpuEntry, NodeLayouts, Policy, TimeSlicing
from partage.plan.offer.assign import assign
from partage.plan.offer.gpu_devices import PlannedDevice
from partage.sim.node.machine_names import parse_machine
from tests.plan.offer.test_assign import with_devices, without_mig
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


def labelled(mig, policy=None):
    entry = GpuEntry("label nvidia.com/mig.config", AllDevices(), mig=mig)
    return replace(policy or Policy(), layouts=NodeLayouts("the label's", (entry,)))


def test_a_label_that_names_devices_and_no_layout_concerns_every_gpu():
    items = DesiredMig((LayoutItem.parse("9g.1gb"),))
    with pytest.raises(Unsatisfiable, match="9g"):
        assign(labelled(items), node(gpu(0), without_mig(1)), geometry_of)


@pytest.mark.parametrize(
    ("mig", "refused"), [(DesiredMig(enabled=False), False), (DesiredMig(named="all-1g.10gb"), True)]
)
def test_under_mig_strategy_none_a_label_can_only_turn_mig_off(mig, refused):
    none = parse_policy("version: partage/v1\nresources: {mig-strategy: none}", "p").policy
    divided = with_devices(gpu(0), "3g.40gb")
    if refused:
        with pytest.raises(Unsatisfiable, match="strategy none, which offers whole GPUs"):
            assign(labelled(mig, none), node(divided), geometry_of)
    else:
        assert assign(labelled(mig, none), node(divided), geometry_of).layouts == {divided.uuid: mig}


def test_a_label_that_asks_for_what_an_entry_asks_for_is_no_contradiction():
    mig = DesiredMig(named="all-1g.10gb")
    own = Policy((GpuEntry("gpus[0]", AllDevices(), mig=mig),))
    assert assign(labelled(mig, own), node(gpu(0)), geometry_of).layouts == {gpu(0).uuid: mig}
    with pytest.raises(InputError, match="has a layout of its own"):
        assign(labelled(DesiredMig(named="all-2g.20gb"), own), node(gpu(0)), geometry_of)
    shared = Policy((GpuEntry("gpus[0]", AllDevices(), TimeSlicing(2)),))
    assert assign(labelled(mig, shared), node(gpu(0)), geometry_of).labelled == {gpu(0).uuid}


def test_nvidias_format_has_no_mps_on_mig_devices_that_a_label_will_make_either():
    text = (
        "version: v1\nflags: {migStrategy: single, mpsRoot: /run/mps}\n"
        "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
    )
    policy = labelled(DesiredMig(named="all-1g.10gb"), parse_policy(text, "p").policy)
    with pytest.raises(Unsatisfiable, match="MPS is not supported for MIG devices"):
        assign(policy, node(gpu(0)), geometry_of)


def test_a_label_with_a_layout_that_no_gpu_has_is_refused():
    entry = GpuEntry("label nvidia.com/mig.config", AllDevices(), mig=DesiredMig(named="all-9g.1gb"))
    with pytest.raises(Unsatisfiable, match="all-9g"):
        assign(Policy(layouts=NodeLayouts("all-9g.1gb", (entry,))), node(gpu(0)), geometry_of)

"""Files of other systems: each name is found, with what is nearest to it."""

import pytest

from partage.cli.other_systems import other_system_findings


def pod(limits=None, annotations=None, node_selector=None):
    container = {"name": "main", "resources": {"limits": limits or {}}}
    spec = {"containers": [container], "nodeSelector": node_selector or {}}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"annotations": annotations or {}}, "spec": spec}


def said(document):
    return [
        (one.problem.path, f"{one.problem.message} | {one.problem.hint}")
        for one in other_system_findings(document, "f", "", None)
    ]


def test_labels_of_nodes_and_the_pods_that_select_them():
    labels = {"nos.nebuly.com/gpu-partitioning": "mps", "ack.node.gpu.schedule": "share", "x": "y"}
    found = said({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "labels": labels}})
    assert [path for path, _ in found] == [f"metadata.labels.{key}" for key in list(labels)[:2]]


def test_the_gpu_operator_keeps_what_partage_does_not_replace():
    def policy(**spec):
        return said(
            {"kind": "ClusterPolicy", "apiVersion": "nvidia.com/v1", "metadata": {"name": "p"}, "spec": spec}
        )

    off = {"enabled": False}
    assert [path for path, _ in policy(toolkit={"enabled": True})] == [
        "spec.devicePlugin",
        "spec.gfd",
        "spec.migManager",
        "spec.driver",
    ]
    assert policy(devicePlugin=off, gfd=off, migManager=off, driver=off) == []
    named = policy(
        devicePlugin={"enabled": False, "config": {"name": "c"}}, gfd=off, migManager=off, driver=off
    )
    assert "config.name" in named[0][1]


def test_what_the_operator_tells_its_plugin_beside_the_file_is_said():
    off = {"enabled": False}
    spec = {
        "devicePlugin": {
            **off,
            "config": {"name": "c", "default": "any"},
            "env": [
                {"name": "DEVICE_LIST_STRATEGY", "value": "volume-mounts"},
                {"name": "IMEX_CHANNEL_IDS", "value": "0"},
                {"name": "OTHER", "value": "1"},
            ],
        },
        "mig": {"strategy": "single"},
        **dict.fromkeys(("gfd", "migManager", "driver"), off),
    }
    found = said({"kind": "ClusterPolicy", "apiVersion": "nvidia.com/v1", "metadata": {}, "spec": spec})
    assert [path for path, _ in found] == [
        "spec.devicePlugin.config",
        "spec.mig.strategy",
        "spec.devicePlugin.env[0]",
    ]
    config, strategy, variable = (text.partition(" | ")[2] for _, text in found)
    assert "config.default=any and config.fallbackStrategies=[empty]" in config
    assert strategy.startswith("flags: {migStrategy: single} in each file")
    assert (
        variable == "flags: {plugin: {deviceListStrategy: volume-mounts}} in each file that Partage is given"
    )


def test_parts_of_the_operator_that_takeover_does_not_change_have_their_own_label():
    spec = {"devicePlugin": {"enabled": False}, "driver": {"enabled": False}}
    found = said({"kind": "ClusterPolicy", "apiVersion": "nvidia.com/v1", "metadata": {}, "spec": spec})
    hints = [text.partition(" | ")[2] for _, text in found]
    assert "nvidia.com/gpu.deploy.gpu-feature-discovery=false" in hints[0]
    assert "nvidia.com/gpu.deploy.mig-manager=false" in hints[1]
    assert not any("takeover" in hint for hint in hints)


@pytest.mark.parametrize(("asked", "hinted"), [("cgpu", "cgpu"), ("share", "share"), (7, "VALUE")])
def test_the_hint_has_the_value_of_the_label(asked, hinted):
    document = {"kind": "Node", "metadata": {"labels": {"ack.node.gpu.schedule": asked}}}
    ((_, text),) = said(document)
    assert text.endswith(f"when: {{label: {{ack.node.gpu.schedule: {hinted}}}}}")


def test_hamis_device_configuration():
    text = (
        "nvidia:\n  resourceCountName: nvidia.com/gpu\n  deviceSplitCount: 10\n  deviceMemoryScaling: 1.5\n"
    )
    document = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "data": {"device-config.yaml": text, "other": "x: 1"},
    }
    found = [text for _, text in said(document)]
    assert found[0].startswith("ConfigMap: deviceSplitCount: 10 of HAMi | time-slicing or mps")
    assert "memory is not given out twice" in found[1]
    assert len(found) == 2

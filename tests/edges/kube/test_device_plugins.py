"""NVIDIA's DaemonSets in a cluster: which they are, and how they are kept off a node."""

from partage.edges.kube.device_plugins import DEPLOY_LABEL, DevicePlugins
from tests.edges.kube.scripted import Answer, api_server, node

OFF = {"key": DEPLOY_LABEL, "operator": "NotIn", "values": ["false"]}
PRESENT = {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}
PCI = {"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "In", "values": ["true"]}


def daemon_set(container, **spec):
    spec = {"containers": [{"name": container}], **spec}
    meta = {"namespace": "gpu", "name": "plugin", "resourceVersion": "5"}
    return {"metadata": meta, "spec": {"template": {"spec": spec}}}


def required(*terms):
    rows = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rows}}


async def _sets(*found):
    async with api_server() as server:
        server.answer = lambda request: Answer({"items": list(found)})
        return await DevicePlugins(server.config()).sets()


async def test_the_operators_and_the_charts_are_found_and_no_other():
    operators, charts = await _sets(
        daemon_set("nvidia-device-plugin", nodeSelector={DEPLOY_LABEL: "true"}),
        daemon_set("nvidia-device-plugin-ctr"),
        daemon_set("gpu-feature-discovery"),
    )
    assert (operators.by_label, charts.by_label) == (True, False)


async def test_the_charts_leaves_out_nodes_with_the_label_and_keeps_its_other_terms():
    terms = [{"matchExpressions": [PRESENT]}, {"matchExpressions": [PCI]}]
    async with api_server() as server:
        server.answer = lambda request: Answer(
            daemon_set("x")
            if request.method == "PATCH"
            else {"items": [daemon_set("nvidia-device-plugin-ctr", affinity=required(*terms))]}
        )
        plugins = DevicePlugins(server.config())
        (found,) = await plugins.sets()
        await plugins.keep_off(found)
        request = server.requests[-1]
        assert request.path == "/apis/apps/v1/namespaces/gpu/daemonsets/plugin"
        assert request.headers["content-type"] == "application/merge-patch+json"
        assert request.json["metadata"] == {"resourceVersion": "5"}
        patched = request.json["spec"]["template"]["spec"]["affinity"]
        assert patched == required({"matchExpressions": [PRESENT, OFF]}, {"matchExpressions": [PCI, OFF]})
    (again,) = await _sets(daemon_set("nvidia-device-plugin-ctr", affinity=patched))
    assert again.by_label, "it is patched once"


async def test_the_label_is_set_and_removed_without_touching_others():
    async with api_server() as server:
        server.answer = lambda request: Answer(node(1, other="1"))
        plugins = DevicePlugins(server.config())
        assert await plugins.label("n1") is None
        for value in ("false", None):
            await plugins.set_label("n1", value)
            assert server.requests[-1].json == {"metadata": {"labels": {DEPLOY_LABEL: value}}}

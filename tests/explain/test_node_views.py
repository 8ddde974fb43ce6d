"""What ``explain`` makes of a report is what the kubelet has of the agent: free shares, and who gets none."""

import asyncio
import tempfile
from pathlib import Path

from partage.agent.status.readiness import readiness_of
from partage.answers.report import report_document
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.node_notes import BY_HAND, write_names
from partage.explain.decide.explain import explain_pod
from partage.explain.decide.pod_and_node import PodNeeds, free_shares
from partage.explain.node_views import view_of_report
from partage.explain.pod_needs import with_gpu_resources
from partage.lab.stories.model import PolicyText
from partage.lab.stories.read import read_story
from partage.lab.stories.stage import INTERVALS, StoryStage
from partage.model.pod import Container, Pod
from partage.sim.kubelet.pods import PodPhase
from partage.sim.node.faults import RaiseXid

SHARED, WHOLE, SLOW = "nvidia.com/gpu.shared", "nvidia.com/gpu", "nvidia.com/gpu.slow"
STORY = """\
machine: 4xh100-sxm5-80gb
policy:
  version: partage/v1
  gpus:
    - {select: {index: [0]}, mps: {replicas: 4}}
    - {select: {index: [1]}, time-slicing: {replicas: 3}, name: nvidia.com/gpu.slow}
    - {select: rest, exclusive: {}}
steps: []
"""
CHANGED = b"version: partage/v1\ngpus: [{select: {index: [0, 1, 2]}, mps: {replicas: 2}}]\n"


def _asking(name: str) -> PodNeeds:
    return PodNeeds("a", "new", (Container("c", {name: 1}),), title="new")


def reported(stage):
    assert stage.agent_status.report is not None
    return stage.agent_status.report


def view(stage):
    report = reported(stage)
    document = report_document(report, stage.agent_status, readiness_of(stage.agent_status, INTERVALS))
    return view_of_report("n1", document)


def free_for_the_kubelet(stage):
    held = {
        (resource, share)
        for pod in stage.kubelet.pods()
        if pod.holds
        for container in pod.containers
        for resource, ids in container.ids.items()
        for share in ids
    }
    return {
        resource: {share for share, healthy in rows.items() if healthy and (resource, share) not in held}
        for resource, rows in stage.kubelet.devices().items()
    }


def free(stage):
    return {name: set(ids) for name, ids in free_shares(view(stage)).items()}


async def agrees(stage):
    """Whether explain and the kubelet have the same free shares."""
    assert await stage.eventually(stage.at_rest)
    there = {name: ids for name, ids in free_for_the_kubelet(stage).items() if ids}
    assert {name: ids for name, ids in free(stage).items() if ids} == there
    for name in (SHARED, WHOLE, SLOW):
        pod = with_gpu_resources(_asking(name), ())
        assert explain_pod(pod, view(stage), geometry_of).fits == bool(there.get(name)), name


async def _everything(folder):
    (folder / "story.yaml").write_text(STORY)
    stage = StoryStage(read_story(folder / "story.yaml"), folder, 0, lambda status: None)
    service = Pod("a", "service", (Container("main", {SHARED: 1}),))
    train = Pod("b", "train", (Container("main", {WHOLE: 1}),))
    try:
        await stage.open()
        assert await stage.eventually(lambda: sum(stage.kubelet.allocatable().values()) == 9)
        await agrees(stage)
        for pod in (service, train):
            assert (await stage.admit(pod, may_wait=False)).phase is PodPhase.RUNNING
        await agrees(stage)
        write_names(folder / "state" / BY_HAND, ["1"])  # cordoned
        assert await stage.eventually(lambda: view(stage).obstacles != {})
        await agrees(stage)
        write_names(folder / "state" / BY_HAND, [])
        assert await stage.eventually(lambda: view(stage).obstacles == {})
        stage.write_policy(PolicyText("p.yaml", CHANGED))
        assert await stage.eventually(lambda: any(gpu.waits for gpu in reported(stage).gpus))
        await agrees(stage)
        asking = with_gpu_resources(_asking(SHARED), ())
        said = [str(gpu.reason) for gpu in explain_pod(asking, view(stage), geometry_of).gpus]
        assert "GPU 0 gives no share until it has changed" in said[0]
        for pod in (service, train):
            await stage.kubelet.end(pod)
        await agrees(stage)
        await stage.hardware.inject(RaiseXid(1, 79))
        assert await stage.eventually(lambda: not reported(stage).gpus[1].health.state.offered)
        await agrees(stage)
    finally:
        await stage.close()


def test_an_agent_and_a_kubelet_agree_with_explain():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # sockets have short paths
        asyncio.run(_everything(Path(folder)))

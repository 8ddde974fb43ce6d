"""The answer of ``simulate``, and what the picture needs of an ending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from partage.answers.documents.document import Document, row
from partage.answers.documents.node import NodeRow, node_row
from partage.answers.documents.resources import ResourceRow, resource_rows
from partage.answers.report import verify_of
from partage.answers.wording import pod_name, standing
from partage.lab.stories.model import Story
from partage.lab.stories.play import StoryEnding, StoryScene
from partage.model.ids import GpuUuid, ShareId
from partage.plan.reconcile.node_plan import GpuPlan
from partage.plan.reconcile.transition import withdrawn
from partage.plan.serve.ledger_entry import Hold
from partage.sim.kubelet.pods import ContainerStatus, PodPhase, PodStatus
from partage.values import Frozen


class PodRow(Frozen):
    """One pod."""

    namespace: str
    name: str
    phase: PodPhase
    reason: str
    message: str
    containers: tuple[ContainerStatus, ...]


class SimulationDocument(Document, kw_only=True):
    """How the story went, and how the node stands at its end. policy: the name of its file. passed: every
    expectation was met. protocol_errors: what agent and kubelet did against the protocol.
    capacity, allocatable: resource name to number, as a Node has them.
    """

    kind: Literal["Simulation"] = "Simulation"
    title: str
    machine: str
    policy: str | None
    passed: bool
    scenes: tuple[StoryScene, ...]
    protocol_errors: tuple[str, ...]
    capacity: Mapping[str, int]
    allocatable: Mapping[str, int]
    resources: tuple[ResourceRow, ...]
    node: NodeRow
    pods: tuple[PodRow, ...]


def simulation_document(story: Story, ending: StoryEnding) -> SimulationDocument:
    """The answer for a story that was played."""
    report = ending.snapshot.report
    return SimulationDocument(
        title=story.title,
        machine=story.machine.name,
        policy=story.policy.name if story.policy else None,
        passed=ending.good,
        scenes=ending.scenes,
        protocol_errors=ending.protocol_errors,
        capacity=ending.snapshot.capacity,
        allocatable=ending.snapshot.allocatable,
        resources=resource_rows(report.offer, verify_of(report)) if report else (),
        node=node_row(ending.inventory),
        pods=tuple(_pod_row(status, ending.run_dir) for status in ending.snapshot.pods),
    )


def host_path(path: str, run_dir: str) -> str:
    """A path on the node; the run directory of a story has another name each time."""
    return path.replace(run_dir, "<run-dir>")


def _pod_row(status: PodStatus, run_dir: str) -> PodRow:
    containers = tuple(_repeatable(container, run_dir) for container in status.containers)
    return row(PodRow, status, namespace=status.pod.namespace, name=status.pod.name, containers=containers)


def _repeatable(container: ContainerStatus, run_dir: str) -> ContainerStatus:
    """The same without what depends on chance: the order of ids and variables, the run directory."""
    ids = {resource: tuple(sorted(ids)) for resource, ids in container.ids.items()}
    mounts = tuple(
        replace(mount, host_path=host_path(mount.host_path, run_dir)) for mount in container.mounts
    )
    return replace(container, ids=ids, env=dict(sorted(container.env.items())), mounts=mounts)


def holders_of(ending: StoryEnding) -> dict[ShareId, str]:
    """Share id to the pod that holds it, as the kubelet reports it."""
    return {
        share: status.pod.key
        for status in ending.snapshot.pods
        if status.holds
        for container in status.containers
        for ids in container.ids.values()
        for share in ids
    }


def troubles_of(ending: StoryEnding) -> dict[GpuUuid, str]:
    """GPU UUID to what is wrong with it, as the agent reports it."""
    report = ending.snapshot.report
    return {
        gpu.uuid: f"{gpu.health.state}: {gpu.health.reason}"
        for gpu in (report.gpus if report else ())
        if not gpu.health.state.offered
    }


def standings_of(ending: StoryEnding) -> dict[GpuUuid, str]:
    """GPU UUID to how it stands, for GPUs that are not settled."""
    report = ending.snapshot.report
    said = {
        gpu.uuid: standing(gpu.index, gpu.plan.phase, gpu.plan.reason, _awaited(gpu.plan), gpu.plan.processes)
        for gpu in (report.gpus if report else ())
        if gpu.plan
    }
    return {uuid: text for uuid, text in said.items() if text}


def _awaited(plan: GpuPlan) -> set[str]:
    return {pod_name(holder) for entry in plan.waiting_for for holder in entry.holders}


def withdrawn_of(ending: StoryEnding) -> frozenset[Hold]:
    """Shares that are neither held nor free."""
    snapshot = ending.snapshot.report.snapshot if ending.snapshot.report else None
    return withdrawn(snapshot.served, snapshot.held) if snapshot else frozenset()

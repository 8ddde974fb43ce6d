"""Small nodes with pods on them, and a kubelet that is asked about one more.

The kubelet is the embedded one's device manager (``sim``), the device plugins are what the agent serves. It
knows nothing of ``plan.explain``: what it accepts is the truth here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

from msgspec import field
from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.edges.kubelet._generated import deviceplugin_pb2 as pb
from partage.errors import InputError, Unsatisfiable
from partage.explain.decide.changes import (
    AskFewer,
    AskOther,
    Change,
    RaiseReplicas,
    RepairGpu,
    Uncordon,
    WaitForGpu,
    WaitForPods,
)
from partage.explain.decide.pod_and_node import (
    Changing,
    Cordoned,
    GpuView,
    NodeView,
    Obstacle,
    PodNeeds,
    Unhealthy,
)
from partage.model.gpu import Inventory
from partage.model.ids import DeviceUuid, GpuUuid, ResourceName, ShareId, device_of
from partage.model.pod import Container
from partage.model.policy import Exclusive, GpuEntry, Policy
from partage.model.share import AllocationRefused, ContainerAllocation, GpuOffer, NodeOffer, resources_of
from partage.plan.offer.desired import resolve
from partage.plan.reconcile.node_plan import Phase
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.ledger_entry import Hold
from partage.plan.serve.preferred_allocation import PreferredAllocator
from partage.plan.serve.unit_allocation import UnitAllocator
from partage.sim.kubelet.device_manager import AdmissionError, DeviceManager
from partage.sim.kubelet.plugin_client import PluginError
from partage.sim.kubelet.pods import Holding
from partage.sim.node.files.load import load_machine
from partage.values import Frozen

MACHINE = "3xl40s"


@cache
def inventory_of(machine: str) -> Inventory:
    return load_machine(machine).inventory


@cache
def policy_of(text: str) -> Policy:
    return parse_policy(f"version: partage/v1\n{text}".encode(), "p.yaml").policy


class World(Frozen):
    """A node, what is held there by whom, and what keeps free shares of a GPU (by index) from everybody.

    old: GPUs that wait to change, and what they offer until then.
    """

    policy: Policy
    machine: str = MACHINE
    held: Mapping[Hold, str] = field(default_factory=dict)
    cordoned: frozenset[int] = frozenset()
    ill: frozenset[int] = frozenset()
    old: Mapping[int, GpuOffer] = field(default_factory=dict)

    @property
    def inventory(self) -> Inventory:
        return inventory_of(self.machine)

    @property
    def wanted(self) -> NodeOffer:
        return resolve(self.policy, self.inventory, geometry_of).offer

    @property
    def offer(self) -> NodeOffer:
        return {**self.wanted, **{self.gpu(index): rows for index, rows in self.old.items()}}

    def gpu(self, index: int) -> GpuUuid:
        return self.inventory.gpus[index].uuid

    def pods_on(self, index: int) -> tuple[str, ...]:
        devices = {row.device for row in self.offer[self.gpu(index)]}
        return tuple(dict.fromkeys(who for hold, who in self.held.items() if device_of(hold[1]) in devices))

    def view(self) -> NodeView:
        """As ``explain`` is shown it."""
        obstacles: dict[DeviceUuid, tuple[Obstacle, ...]] = {}
        for gpu in self.inventory:
            here: tuple[Obstacle, ...] = (
                *([Unhealthy("XID 79")] if gpu.index in self.ill else []),
                *(
                    [Changing(Phase.WAITING, "its shares are held", self.pods_on(gpu.index))]
                    if gpu.index in self.old
                    else []
                ),
                *([Cordoned()] if gpu.index in self.cordoned else []),
            )
            if here:
                devices = {gpu.uuid, *(row.device for row in self.offer[gpu.uuid])}
                obstacles |= dict.fromkeys(devices, here)
        return NodeView(
            name="n1",
            gpus=tuple(GpuView(gpu.index, gpu.uuid) for gpu in self.inventory),
            offer=self.offer,
            wanted=self.wanted,
            held=self.held,
            obstacles=obstacles,
            links=self.inventory.links,
            allocation=self.policy.options.allocation,
            policy=self.policy,
            inventory=self.inventory,
        )


# --- the kubelet ------------------------------------------------------------------------------------


class _Plugin:
    """What a device plugin of the agent answers, without a socket."""

    def __init__(self, world: World, offer: NodeOffer, name: ResourceName) -> None:
        resource = resources_of(offer)[name]
        options = world.policy.options
        self.resource = str(name)
        self._allocator = (
            UnitAllocator(resource)
            if any(row.by_memory for row in resource.offerings)
            else PreferredAllocator(resource, world.inventory.links, options.allocation)
        )
        self._responder = AllocateResponder(resource, world.inventory, options, "/run/partage")

    async def preferred(
        self, available: Sequence[ShareId], must_include: Sequence[ShareId], size: int
    ) -> list[ShareId]:
        try:
            return self._allocator.prefer(available, must_include, size)
        except AllocationRefused as error:
            raise PluginError(str(error)) from error

    async def allocate(self, ids: Sequence[ShareId]) -> ContainerAllocation:
        try:
            return self._responder.answer(ids)
        except AllocationRefused as error:
            raise PluginError(str(error)) from error


def accepts(world: World, pod: PodNeeds, seed: int = 0) -> bool:
    """Whether scheduler and kubelet let the pod run there."""
    offer = world.offer
    index = {gpu.uuid: gpu.index for gpu in world.inventory}
    away = world.cordoned | world.ill | set(world.old)
    listed = {
        name: [(share, index[row.gpu] not in away) for row in resource.offerings for share in row.share_ids]
        for name, resource in resources_of(offer).items()
    }
    free = {
        name: sum(healthy and (name, share) not in world.held for share, healthy in rows)
        for name, rows in listed.items()
    }
    if any(amount > free.get(ResourceName(name), 0) for name, amount in pod.totals.items()):
        return False
    manager = DeviceManager(
        rng=Random(seed),
        clock=lambda: 0.0,
        grace_s=1.0,
        always_asks_preference=True,
        keeps_by_path=False,
    )
    for name, rows in listed.items():
        plugin = _Plugin(world, offer, name)
        manager.connected(plugin, pb.DevicePluginOptions(get_preferred_allocation_available=True))  # type: ignore[arg-type]
        healths = {True: "Healthy", False: "Unhealthy"}
        devices = [
            pb.Device(ID=share, health=healths[healthy or (name, share) in world.held])
            for share, healthy in rows
        ]
        manager.listed(plugin, devices)  # type: ignore[arg-type]
    for (name, share), who in world.held.items():
        container = manager._held.setdefault(who, {}).setdefault("main", {})
        ids = container[name].ids if name in container else ()
        container[name] = Holding((*ids, share), ContainerAllocation())
    try:
        asyncio.run(manager.admit(pod))
    except AdmissionError:
        return False
    return True


# --- changes, as a person would carry them out ------------------------------------------------------


def carried_out(change: Change, world: World, pod: PodNeeds) -> tuple[World, PodNeeds]:
    match change:
        case AskFewer() | AskOther():
            then = change.other.resource if isinstance(change, AskOther) else change.unit.resource
            now = change.resource if isinstance(change, AskOther) else change.unit.resource
            containers = []
            for one in pod.containers:
                requests = dict(one.requests)
                if one.words == change.container:
                    assert requests.pop(now) == change.now
                    requests[then] = requests.get(then, 0) + change.then
                containers.append(replace(one, requests=requests))
            return world, replace(pod, containers=tuple(containers))
        case WaitForPods():
            left = {hold: who for hold, who in world.held.items() if who not in change.pods}
            assert left != world.held
            return replace(world, held=left), pod
        case Uncordon():
            assert change.gpu in world.cordoned
            return replace(world, cordoned=world.cordoned - {change.gpu}), pod
        case RepairGpu():
            assert change.gpu in world.ill
            return replace(world, ill=world.ill - {change.gpu}), pod
        case WaitForGpu():
            assert change.gpu in world.old
            devices = {row.device for row in world.offer[world.gpu(change.gpu)]}
            assert set(world.pods_on(change.gpu)) <= set(change.pods)
            left = {hold: who for hold, who in world.held.items() if device_of(hold[1]) not in devices}
            rest = {gpu: rows for gpu, rows in world.old.items() if gpu != change.gpu}
            return replace(world, held=left, old=rest), pod
        case RaiseReplicas():
            return _with_replicas(world, change), pod
    raise AssertionError(f"no change of a node without a cluster: {change}")


def _with_replicas(world: World, change: RaiseReplicas) -> World:
    entries = []
    for entry in world.policy.entries:
        assert isinstance(entry, GpuEntry)
        if entry.origin == change.origin:
            assert not isinstance(entry.sharing, Exclusive)
            assert entry.sharing.replicas == change.now
            entries.append(replace(entry, sharing=replace(entry.sharing, replicas=change.then)))
        else:
            entries.append(entry)
    policy = replace(world.policy, entries=tuple(entries))
    after = replace(world, policy=policy)
    # GPUs of which shares are held keep the offer of before until these have ended.
    old, new = world.offer, after.wanted
    waits = {
        gpu.index: old[gpu.uuid]
        for gpu in world.inventory
        if gpu.index in world.old or (old[gpu.uuid] != new[gpu.uuid] and world.pods_on(gpu.index))
    }
    return replace(after, old=waits)


def possible(policy: Policy, machine: str) -> bool:
    try:
        resolve(policy, inventory_of(machine), geometry_of)
    except (InputError, Unsatisfiable):
        return False
    return True


def a_pod(*containers: Container) -> PodNeeds:
    names = frozenset(name for one in containers for name in one.requests)
    return PodNeeds("a", "new", containers, title="Pod a/new", gpu_resources=names)

"""The device plugins of all resources, updated after each turn, and a task for each that is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from partage.agent.endpoints.resource_plugin import PluginHooks, ResourcePlugin, ServedResource
from partage.agent.options import AgentOptions
from partage.agent.status.status import RequestCounts
from partage.agent.supervision import Supervisor
from partage.edges.host.waiting import DirectoryChanges
from partage.edges.kubelet.endpoint import ResourceEndpoint
from partage.edges.kubelet.port import EndpointState
from partage.edges.kubelet.sockets import SocketIdentity
from partage.errors import InputError
from partage.model.gpu import Inventory
from partage.model.ids import GpuUuid, ResourceName, ShareId
from partage.model.policy import Options
from partage.model.share import DeviceRow, Resource, plugin_resources
from partage.plan.offer.guarantees import with_current_guarantees
from partage.plan.serve.allocate_response import AllocateResponder
from partage.plan.serve.kubelet_view import KubeletView
from partage.plan.serve.limit_edits import NO_LIMIT_TERMS, LimitTerms
from partage.plan.serve.preferred_allocation import allocator_of
from partage.values import Frozen

log = logging.getLogger(__name__)


class AllocateContext(Frozen):
    """What an Allocate response depends on, besides its resource.

    run_dir: the host's path. cdi_classes: with a spec. guard_dir: host path of the guard, where it is needed.
    unheld: GPUs with guarded shares that are not watched, or whose servers their users command: their
    containers get a weaker guarantee.
    read_only_pipe, limits: as for ``AllocateResponder``.
    """

    inventory: Inventory
    options: Options
    run_dir: str
    cdi_classes: tuple[str, ...] = ()
    guard_dir: str = ""
    unheld: frozenset[GpuUuid] = frozenset()
    read_only_pipe: bool = False
    limits: LimitTerms = NO_LIMIT_TERMS

    def responder(self, resource: Resource) -> AllocateResponder:
        """Answers for shares of this resource."""
        return AllocateResponder(
            resource,
            self.inventory,
            self.options,
            self.run_dir,
            cdi_classes=self.cdi_classes,
            guard_dir=self.guard_dir,
            read_only_pipe=self.read_only_pipe,
            limits=self.limits,
        )


class _Made(Frozen):
    """The inputs of a plugin's allocator and responder."""

    resource: Resource
    terms: AllocateContext


RETIRE_S = 30.0
"""A resource that the policy no longer names is dropped when its list has been empty for so many seconds. The
kubelet has applied the empty list long before."""


class PluginSet:
    """All resources that are offered, or were until recently."""

    def __init__(self, hooks: PluginHooks) -> None:
        self._hooks = hooks
        self._plugins: dict[ResourceName, ResourcePlugin] = {}
        self._made: dict[ResourceName, _Made] = {}
        self._last: tuple[KubeletView, AllocateContext] | None = None
        self._empty_since: dict[ResourceName, float] = {}

    @property
    def by_name(self) -> Mapping[ResourceName, ResourcePlugin]:
        """All plugins, by resource."""
        return self._plugins

    def asked(self) -> dict[str, RequestCounts]:
        """The kubelet's requests for each resource since the start."""
        return {str(name): plugin.asked for name, plugin in list(self._plugins.items())}

    def publish(self, rows: KubeletView, terms: AllocateContext) -> list[ResourcePlugin]:
        """Serve these rows. Returns plugins that are new; the others are updated."""
        if self._last is not None and self._last[0] is rows and self._last[1] == terms:
            return []
        self._last = rows, terms
        resources = plugin_resources(with_current_guarantees(rows.offer, terms.unheld, terms.inventory))
        new = []
        for name in dict.fromkeys((*rows.by_resource, *self._plugins)):
            listed = rows.by_resource.get(name, ())
            resource = resources.get(name, Resource(name, ()))
            plugin = self._plugins.get(name)
            served = self._served(plugin, resource, listed, rows.awaited.get(name, frozenset()), terms)
            if plugin is not None:
                plugin.publish(served)
            elif listed:
                plugin = self._plugins[name] = ResourcePlugin(name, served, self._hooks)
                new.append(plugin)
            self._made[name] = _Made(resource, terms)
        return new

    def retire(self, wanted: Collection[ResourceName], now_s: float) -> list[ResourceName]:
        """Drop resources that are not wanted and have listed nothing for RETIRE_S. Returns their names."""
        empty = [name for name, plugin in self._plugins.items() if not plugin.devices().rows]
        self._empty_since = {name: self._empty_since.get(name, now_s) for name in empty if name not in wanted}
        retired = [name for name, since_s in self._empty_since.items() if now_s - since_s >= RETIRE_S]
        for name in retired:
            del self._plugins[name], self._made[name], self._empty_since[name]
        return retired

    def _served(
        self,
        plugin: ResourcePlugin | None,
        resource: Resource,
        listed: Sequence[DeviceRow],
        awaited: frozenset[ShareId],
        terms: AllocateContext,
    ) -> ServedResource:
        made = self._made.get(resource.name)
        if plugin is not None and made == _Made(resource, terms):
            allocator, responder = plugin.served.allocator, plugin.served.responder
        else:
            allocator = allocator_of(resource, terms.inventory.links, terms.options.allocation)
            responder = terms.responder(resource)
        return ServedResource(tuple(listed), allocator, responder, awaited)


class ServedResources:
    """group: where the tasks run, as soon as there is one."""

    def __init__(
        self,
        options: AgentOptions,
        changes: DirectoryChanges,
        clock: Callable[[], float],
        supervisor: Supervisor,
    ) -> None:
        self._options = options
        self._supervisor = supervisor
        self._changes = changes
        self._clock = clock
        self._served: dict[ResourceName, tuple[ResourceEndpoint, asyncio.Task[None]]] = {}
        self.group: asyncio.TaskGroup | None = None

    def states(self) -> list[EndpointState]:
        """How it stands with each."""
        return [endpoint.state for endpoint, _ in list(self._served.values())]

    def sockets(self) -> list[SocketIdentity]:
        """The sockets that are served now."""
        return [socket for endpoint, _ in self._served.values() for socket in endpoint.sockets]

    def watched(self) -> list[ResourceName]:
        """Those whose list the kubelet watches."""
        return [name for name, (endpoint, _) in self._served.items() if endpoint.state.watching]

    def serve(self, plugin: ResourcePlugin) -> None:
        """Serve and register one more resource."""
        assert self.group is not None
        try:
            endpoint = ResourceEndpoint(
                plugin,
                self._options.kubelet_dir,
                changes=self._changes,
                clock=self._clock,
                takeover=self._options.takeover,
            )
        except InputError as error:
            # Only a name from an earlier policy or another plugin; names of this policy were checked before.
            log.warning(
                "resource cannot be served", extra={"resource": plugin.resource, "reason": str(error)}
            )
            return
        task = self.group.create_task(self._supervisor.keep(f"serve {plugin.resource}", endpoint.run))
        self._served[plugin.resource] = endpoint, task

    def retire(self, resource: ResourceName) -> None:
        """Serve a resource no longer: the kubelet forgets it some minutes after its socket has gone."""
        if resource in self._served:
            _, task = self._served.pop(resource)
            task.cancel()
            log.info("resource dropped", extra={"resource": resource})

    def stop(self) -> None:
        """Serve nothing more."""
        for _, task in self._served.values():
            task.cancel()

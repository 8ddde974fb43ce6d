"""The resources that are served and registered now: a task for each, in the agent's task group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from partage.agent.endpoints.resource_plugin import ResourcePlugin
from partage.agent.options import AgentOptions
from partage.agent.supervision import Supervisor
from partage.edges.host.waiting import DirectoryChanges
from partage.edges.kubelet.endpoint import ResourceEndpoint
from partage.edges.kubelet.port import EndpointState
from partage.edges.kubelet.sockets import SocketIdentity
from partage.errors import InputError
from partage.model.ids import ResourceName

log = logging.getLogger(__name__)


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

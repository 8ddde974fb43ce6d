"""A scripted kubelet for a DRA driver, on grpcio: it shares no gRPC code with ours.

Inside a running loop, call it through ``asyncio.to_thread``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from partage.edges.kubelet._generated import dra_health_v1_pb2 as health_v1
from partage.edges.kubelet._generated import dra_health_v1alpha1_pb2 as health_v1alpha1
from partage.edges.kubelet._generated import dra_v1_pb2 as v1
from partage.edges.kubelet._generated import dra_v1beta1_pb2 as v1beta1
from partage.edges.kubelet._generated import pluginregistration_pb2 as registration
from partage.model.claim import ClaimRef
from tests.kubelet_script import LIMIT_S, grpc

MESSAGES = {"v1": v1, "v1beta1": v1beta1}
HEALTH = {"v1": health_v1, "v1alpha1": health_v1alpha1}


class DriverSocket:
    """One socket of a driver: that of its registration, or that which serves."""

    def __init__(self, path: Path | str) -> None:
        self._channel = grpc.insecure_channel(f"unix://{path}", [("grpc.use_local_subchannel_pool", 1)])

    def close(self) -> None:
        self._channel.close()

    def ask(self, method: str, request: Any, answer: type[Any]) -> Any:
        """One call."""
        call = self._channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=LIMIT_S)

    def info(self) -> registration.PluginInfo:
        info: registration.PluginInfo = self.ask(
            "/pluginregistration.Registration/GetInfo", registration.InfoRequest(), registration.PluginInfo
        )
        return info

    def notify(self, error: str = "") -> None:
        status = registration.RegistrationStatus(plugin_registered=not error, error=error)
        self.ask(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            status,
            registration.RegistrationStatusResponse,
        )

    def prepare(self, *claims: ClaimRef, version: str = "v1") -> Any:
        """By UID, as the API has it."""
        messages: Any = MESSAGES[version]
        request = messages.NodePrepareResourcesRequest(claims=_claims(messages, claims))
        method = f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/NodePrepareResources"
        return self.ask(method, request, messages.NodePrepareResourcesResponse).claims

    def unprepare(self, *claims: ClaimRef, version: str = "v1") -> dict[str, str]:
        """By UID: the error, empty for success."""
        messages: Any = MESSAGES[version]
        request = messages.NodeUnprepareResourcesRequest(claims=_claims(messages, claims))
        method = f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/NodeUnprepareResources"
        answer = self.ask(method, request, messages.NodeUnprepareResourcesResponse).claims
        return {uid: answer[uid].error for uid in answer}

    def watch_health(self, version: str) -> HealthWatch:
        messages: Any = HEALTH[version]
        call = self._channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=messages.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=messages.NodeWatchResourcesResponse.FromString,
        )
        return HealthWatch(call(messages.NodeWatchResourcesRequest()))


class HealthWatch:
    """A stream of lists of devices, as (pool/device, health, message)."""

    def __init__(self, call: Any) -> None:
        self.lists: list[list[tuple[str, int, str]]] = []
        self._call = call
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self.lists.append(
                    [
                        (f"{row.device.pool_name}/{row.device.device_name}", row.health, row.message)
                        for row in message.devices
                    ]
                )
        except grpc.RpcError:
            pass

    def close(self) -> None:
        self._call.cancel()
        self._thread.join(LIMIT_S)


def _claims(messages: Any, claims: Iterable[ClaimRef]) -> list[Any]:
    return [messages.Claim(namespace=one.namespace, uid=one.uid, name=one.name) for one in claims]

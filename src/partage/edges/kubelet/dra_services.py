"""What a DRA driver serves to the kubelet: both versions of its service, and of the health of its devices."""

# ruff: noqa: N802  (gRPC's methods are called as the protocol calls them)
from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from partage.edges.kubelet._generated import dra_health_v1_pb2 as health_v1
from partage.edges.kubelet._generated import dra_health_v1alpha1_pb2 as health_v1alpha1
from partage.edges.kubelet._generated import dra_v1_pb2 as v1
from partage.edges.kubelet._generated import dra_v1beta1_pb2 as v1beta1
from partage.edges.kubelet._generated.dra_health_v1_grpc import DRAResourceHealthBase as HealthV1
from partage.edges.kubelet._generated.dra_health_v1alpha1_grpc import DRAResourceHealthBase as HealthV1Alpha1
from partage.edges.kubelet._generated.dra_v1_grpc import DRAPluginBase as DraV1
from partage.edges.kubelet._generated.dra_v1beta1_grpc import DRAPluginBase as DraV1Beta1
from partage.edges.kubelet.dra_port import DraHandler
from partage.model.claim import ClaimRef, DeviceCondition, PreparedDevice
from partage.model.share import LONGEST_REFUSAL
from partage.text import shortened

log = logging.getLogger(__name__)

HEALTH_EVERY_S, HEALTH_TIMEOUT_S = 10.0, 30
"""How often the health of all devices is told though nothing changed, and after how long without it the
kubelet takes it for unknown, in seconds."""

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The kubelet takes the first that it knows."""


def dra_services(handler: DraHandler) -> list[Any]:
    """``SERVICES``, which call the handler."""
    health = _Health(handler)
    return [_DraV1(handler), _DraV1Beta1(handler), _HealthV1(health), _HealthV1Alpha1(health)]


class _DraV1(DraV1):
    def __init__(self, handler: DraHandler) -> None:
        self._handler = handler

    async def NodePrepareResources(
        self, stream: Stream[v1.NodePrepareResourcesRequest, v1.NodePrepareResourcesResponse]
    ) -> None:
        await _prepare(self._handler, stream, v1.NodePrepareResourcesResponse(), with_shares=True)

    async def NodeUnprepareResources(
        self, stream: Stream[v1.NodeUnprepareResourcesRequest, v1.NodeUnprepareResourcesResponse]
    ) -> None:
        await _unprepare(self._handler, stream, v1.NodeUnprepareResourcesResponse())


class _DraV1Beta1(DraV1Beta1):
    """Without the ids of shares: two shares of one device in one claim cannot be told apart."""

    def __init__(self, handler: DraHandler) -> None:
        self._handler = handler

    async def NodePrepareResources(
        self, stream: Stream[v1beta1.NodePrepareResourcesRequest, v1beta1.NodePrepareResourcesResponse]
    ) -> None:
        await _prepare(self._handler, stream, v1beta1.NodePrepareResourcesResponse(), with_shares=False)

    async def NodeUnprepareResources(
        self, stream: Stream[v1beta1.NodeUnprepareResourcesRequest, v1beta1.NodeUnprepareResourcesResponse]
    ) -> None:
        await _unprepare(self._handler, stream, v1beta1.NodeUnprepareResourcesResponse())


async def _prepare(
    handler: DraHandler,
    stream: Stream[Any, Any],
    answer: Any,  # noqa: ANN401 (of either version)
    *,
    with_shares: bool,
) -> None:
    claims = _refs((await request_of(stream)).claims)
    for uid, devices in (await _answered(handler.prepare, claims)).items():
        if isinstance(devices, str):
            answer.claims[uid].error = devices
            continue
        for device in devices:
            share = {"share_id": device.share_id} if with_shares else {}
            answer.claims[uid].devices.add(**_device(device), **share)
    await stream.send_message(answer)


async def _unprepare(
    handler: DraHandler,
    stream: Stream[Any, Any],
    answer: Any,  # noqa: ANN401 (of either version)
) -> None:
    claims = _refs((await request_of(stream)).claims)
    for uid, error in (await _answered(handler.unprepare, claims)).items():
        answer.claims[uid].error = error
    await stream.send_message(answer)


class _Health:
    """Tells a stream the health of all devices, at each change and regularly."""

    def __init__(self, handler: DraHandler) -> None:
        self._handler = handler

    async def tell(self, send: Callable[[Sequence[DeviceCondition]], Awaitable[None]]) -> None:
        """Until cancelled."""
        while True:
            conditions = self._handler.conditions()
            await send(conditions.rows)
            changed = asyncio.ensure_future(self._handler.changed(conditions.version))
            try:
                await asyncio.wait({changed}, timeout=HEALTH_EVERY_S)
            finally:
                changed.cancel()


class _HealthV1(HealthV1):
    def __init__(self, health: _Health) -> None:
        self._health = health

    async def NodeWatchResources(
        self, stream: Stream[health_v1.NodeWatchResourcesRequest, health_v1.NodeWatchResourcesResponse]
    ) -> None:
        await request_of(stream)

        async def send(rows: Sequence[DeviceCondition]) -> None:
            answer = health_v1.NodeWatchResourcesResponse()
            for row in rows:
                device = health_v1.DeviceIdentifier(pool_name=row.pool, device_name=row.device)
                answer.devices.add(device=device, **_condition(row))
            await stream.send_message(answer)

        await self._health.tell(send)


class _HealthV1Alpha1(HealthV1Alpha1):
    def __init__(self, health: _Health) -> None:
        self._health = health

    async def NodeWatchResources(
        self,
        stream: Stream[health_v1alpha1.NodeWatchResourcesRequest, health_v1alpha1.NodeWatchResourcesResponse],
    ) -> None:
        await request_of(stream)

        async def send(rows: Sequence[DeviceCondition]) -> None:
            answer = health_v1alpha1.NodeWatchResourcesResponse()
            for row in rows:
                device = health_v1alpha1.DeviceIdentifier(pool_name=row.pool, device_name=row.device)
                answer.devices.add(device=device, **_condition(row))
            await stream.send_message(answer)

        await self._health.tell(send)


def _refs(claims: Iterable[Any]) -> list[ClaimRef]:
    return [ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims]


def _device(device: PreparedDevice) -> dict[str, Any]:
    return {
        "request_names": [device.request],
        "pool_name": device.pool,
        "device_name": device.device,
        "cdi_device_ids": device.cdi_devices,
    }


def _condition(row: DeviceCondition) -> dict[str, Any]:
    healthy, unhealthy = health_v1.HealthStatus.HEALTHY, health_v1.HealthStatus.UNHEALTHY
    return {
        "health": healthy if row.healthy else unhealthy,
        "last_updated_time": int(time.time()),
        "health_check_timeout_seconds": HEALTH_TIMEOUT_S,
        "message": shortened(row.message, LONGEST_REFUSAL),
    }


async def _answered(
    ask: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, Any]]], claims: Sequence[ClaimRef]
) -> dict[str, Any]:
    """An answer for each claim. A fault of ours is one for each, and no error of the call: that would be the
    answer for the claims of other drivers' devices, too."""
    try:
        said = await ask(claims)
    except Exception as error:  # the server must survive a bug in one answer
        log.exception("a call for claims failed")
        said = dict.fromkeys(
            (claim.uid for claim in claims), shortened(f"{type(error).__name__}: {error}", LONGEST_REFUSAL)
        )
    return {claim.uid: said.get(claim.uid, "the driver has no answer for this claim") for claim in claims}


async def request_of(stream: Stream[Any, Any]) -> Any:  # noqa: ANN401 (one of seven messages)
    """What the call carries. Raises GRPCError where that is nothing."""
    request = await stream.recv_message()
    if request is None:
        raise GRPCError(Status.INVALID_ARGUMENT, "the call carries no message")
    return request

"""What each client of an MPS server may use, or each unequal share of time-slicing: equal parts, or the
amounts in the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from msgspec.structs import replace

from partage.model.gpu import Driver, Gpu, NoDriver
from partage.model.ids import ResourceName, parse_resource_name
from partage.model.mps import SERVER, MpsNamespace
from partage.model.policy import Mps, TimeSlicing
from partage.model.share import DeviceOffer, Guarantee
from partage.model.strategy import Strategy
from partage.plan.offer.mps_command import branch_of
from partage.units import MIB, format_bytes
from partage.values import Frozen

_VOLTA = (7, 0)
_MORE_CLIENTS_SINCE = 590
"""First driver branch with 60 clients, for the default CUDA_DEVICE_MAX_CONNECTIONS. Source: NVIDIA's MPS
guide of CUDA 13.1.
"""
_NAMESPACES_SINCE = 615
"""First driver branch with version 3 of the control interface, which has named servers and namespaces.
Source: NVIDIA's MPS guide, release 615.
"""


class ClientCap(Frozen):
    """The maximum number of clients of one GPU's MPS server, and the reason."""

    clients: int
    why: str


class Portion(Frozen, order=True):
    """What one client may use. name: as in the policy; None: the resource of the GPU."""

    name: str | None
    memory_bytes: int
    threads_percent: int


class Portions(Frozen):
    """What each client may use, in the order of the policy.

    apart: different portions have namespaces with limits of their own (MPS v3).
    """

    clients: tuple[Portion, ...]
    apart: bool = False

    @property
    def namespaces(self) -> tuple[MpsNamespace, ...]:
        """One for all equal portions, named after the first of them; () if ``apart`` is not set."""
        found: dict[tuple[int, int], MpsNamespace] = {}
        for number, client in enumerate(self.clients if self.apart else ()):
            figures = client.memory_bytes, client.threads_percent
            found.setdefault(figures, MpsNamespace(f"share{number}", *figures))
        return tuple(found.values())

    def pipe(self, client: Portion) -> str:
        """Directory of this client below the daemon's pipe directory; empty: the pipe directory itself."""
        figures = client.memory_bytes, client.threads_percent
        own = (
            namespace.name
            for namespace in self.namespaces
            if (namespace.memory_bytes, namespace.threads_percent) == figures
        )
        return next((f"{SERVER}/{name}" for name in own), "")

    @property
    def limits_outside(self) -> tuple[int, int]:
        """Memory in bytes and percent of threads of clients that are in no namespace.

        Without namespaces those of the largest share, which must be possible. With namespaces those of the
        smallest share: no container connects outside of a namespace, and without limits such a client could
        use everything.
        """
        if not self.apart:
            return self.largest
        return (
            min(client.memory_bytes for client in self.clients),
            min(client.threads_percent for client in self.clients),
        )

    @property
    def largest(self) -> tuple[int, int]:
        """Memory in bytes and percent of threads, each the maximum over all clients."""
        return (
            max(client.memory_bytes for client in self.clients),
            max(client.threads_percent for client in self.clients),
        )

    def described(self, client: Portion) -> str:
        """One of the clients in words; equal for equal shares."""
        held = "" if self._holds(client) else ", held by the environment alone"
        return f"MPS with {format_bytes(client.memory_bytes)} and {client.threads_percent}% of the SMs{held}"

    def _holds(self, client: Portion) -> bool:
        """Whether the daemon's own memory limit equals this client's share."""
        return self.apart or client.memory_bytes == self.largest[0]

    def offered(self, whole: DeviceOffer, client: Portion, *, guarded: bool) -> DeviceOffer:
        """Its share of a device under MPS. guarded: the daemon enforces limits on this GPU.

        Without namespaces the daemon has one limit for all clients: the largest share's. Smaller shares are
        limited by variables that a tenant can remove.
        """
        return replace(
            whole,
            shared=Strategy.MPS,
            replicas=len(self.clients),
            memory_bytes=client.memory_bytes,
            threads_percent=client.threads_percent,
            guarantee=Guarantee.GUARDED if guarded and self._holds(client) else Guarantee.ADVISORY,
            limits_in_env=not self.apart and (client.memory_bytes, client.threads_percent) != self.largest,
            pipe=self.pipe(client),
        )


class TooManyClients(Frozen):
    """Why the clients do not fit on one GPU."""

    message: str
    hint: str = ""


def limits_clients(gpu: Gpu) -> bool:
    """Whether an MPS server limits its clients on this GPU: since Volta."""
    return gpu.compute_capability >= _VOLTA


def client_cap(compute_capability: tuple[int, int], driver: Driver | NoDriver) -> ClientCap:
    """Maximum number of clients of one GPU. Volta has compute capability 7.0 (NVIDIA's plugin compares with
    7.5).
    """
    if compute_capability < _VOLTA:
        return ClientCap(16, "the GPU is older than Volta")
    branch = branch_of(driver)
    if branch >= _MORE_CLIENTS_SINCE:
        return ClientCap(60, f"the limit of driver branch {branch}")
    return ClientCap(48, f"the limit of drivers before branch {_MORE_CLIENTS_SINCE}")


def too_old_for_namespaces(driver: Driver | NoDriver) -> str:
    """Why this driver's control program has no namespaces; empty if it has them."""
    branch = branch_of(driver)
    if branch >= _NAMESPACES_SINCE:
        return ""
    has = f"it is of branch {branch}" if branch else "its version is not known"
    return f"MPS protocol 3 takes a driver of branch {_NAMESPACES_SINCE} or newer, and {has}"


def no_namespaces(gpu: Gpu, driver: Driver | NoDriver, *, mig: bool) -> str:
    """Why the daemon of this device cannot have namespaces (MPS v3); empty if it can.

    mig: the device is a MIG device. NVIDIA's guide requires MIG to be off for limits by namespace, and does
    not document such a server on a MIG device.
    """
    if old := too_old_for_namespaces(driver):
        return old
    if not limits_clients(gpu):
        return "MPS protocol 3 takes a GPU that limits its clients, Volta or newer"
    return "MPS protocol 3 is for whole GPUs: NVIDIA asks for MIG to be off" if mig else ""


def portions(sharing: Mps | TimeSlicing, memory_bytes: int) -> Portions | TooManyClients:
    """The portions of a GPU. A client without an amount gets an equal part of what the others leave. Under
    time-slicing ``threads_percent`` means nothing.
    """
    apart = isinstance(sharing, Mps) and sharing.protocol >= 3
    if not sharing.clients:
        even = Portion(None, memory_bytes // sharing.replicas // MIB * MIB, 100 // sharing.replicas)
        return Portions((even,) * sharing.replicas, apart)
    wanted_memory = [client.memory_bytes for client in sharing.clients]
    memory = _filled(wanted_memory, memory_bytes, MIB)
    if memory is None:
        wanted = format_bytes(sum(part or 0 for part in wanted_memory))
        text = f"want {wanted} of the {format_bytes(memory_bytes)} that it has"
        return _too_much(sharing, text, wanted_memory)
    wanted_threads = [client.threads_percent for client in sharing.clients]
    threads = _filled(wanted_threads, 100, 1)
    if threads is None:
        text = f"want {sum(part or 0 for part in wanted_threads)}% of its SMs"
        return _too_much(sharing, text, wanted_threads)
    names = (client.name for client in sharing.clients)
    return Portions(tuple(Portion(*parts) for parts in zip(names, memory, threads, strict=True)), apart)


def _too_much(sharing: Mps | TimeSlicing, message: str, wanted: Sequence[int | None]) -> TooManyClients:
    hint = "a client without a figure needs a part, too" if None in wanted else ""
    return TooManyClients(f"the {sharing.strategy.traits.word} clients {message}", hint)


def _filled(wanted: Sequence[int | None], total: int, unit: int) -> list[int] | None:
    """``wanted``, with an equal part of the rest for every None, in whole units. None if it does not fit."""
    open_places = wanted.count(None)
    rest = total - sum(part for part in wanted if part is not None)
    even = rest // open_places // unit * unit if open_places else 0
    if rest < 0 or (open_places and even <= 0):
        return None
    return [even if part is None else part for part in wanted]


def client_offerings(
    whole: DeviceOffer, shares: Portions, offered: Callable[[Portion], DeviceOffer]
) -> list[DeviceOffer]:
    """One row for each run of equal clients. offered: the share of one of them.

    Raises ValueError for a client whose name gives no valid resource name.
    """
    rows, first = [], 0
    for portion, run in groupby(shares.clients):
        count = len(list(run))
        share = offered(portion)
        resource = client_resource(whole.resource, portion.name)
        rows.append(replace(share, resource=resource, first=first, count=count))
        first += count
    return rows


def client_resource(resource: ResourceName, name: str | None) -> ResourceName:
    """``big`` beside ``nvidia.com/gpu.shared`` gives ``nvidia.com/gpu.big``; a name with a slash is used as
    it is.

    Raises ValueError if the result is not a resource name.
    """
    if name is None:
        return resource
    return parse_resource_name(name if "/" in name else f"{resource.removesuffix('.shared')}.{name}")

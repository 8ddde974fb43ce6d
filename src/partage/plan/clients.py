"""What each client of an MPS server may have: even parts, or what the policy gives each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from partage.model.gpu import Driver, Gpu, NoDriver
from partage.model.ids import ResourceName, parse_resource_name
from partage.model.policy import Mps, Strategy
from partage.model.share import Guarantee, Offering
from partage.units import MIB, format_bytes

_VOLTA = (7, 0)
_MORE_CLIENTS_SINCE = 590
"""Driver branch from which 60 clients are possible, with the default CUDA_DEVICE_MAX_CONNECTIONS.
Source: NVIDIA's MPS guide of CUDA 13.1."""


@dataclass(frozen=True, slots=True)
class ClientCap:
    """How many clients one GPU's MPS server takes, and why."""

    clients: int
    why: str


@dataclass(frozen=True, slots=True, order=True)
class Portion:
    """What one client may have. name: as the policy gives it, None for the resource of the GPU."""

    name: str | None
    memory_bytes: int
    threads_percent: int


@dataclass(frozen=True, slots=True)
class Portions:
    """What each client may have, in the order of the policy."""

    clients: tuple[Portion, ...]

    @property
    def largest(self) -> tuple[int, int]:
        """Memory in bytes and percent of threads that the server's own defaults have to allow."""
        return (
            max(client.memory_bytes for client in self.clients),
            max(client.threads_percent for client in self.clients),
        )

    def described(self, client: Portion) -> str:
        """One of the clients in words that are equal where shares are."""
        held = "" if client.memory_bytes == self.largest[0] else ", held by the environment alone"
        return f"MPS with {format_bytes(client.memory_bytes)} and {client.threads_percent} % of threads{held}"


@dataclass(frozen=True, slots=True)
class TooMuch:
    """Why the clients do not fit on one GPU."""

    message: str
    hint: str = ""


def limits_clients(gpu: Gpu) -> bool:
    """Whether an MPS server limits its clients on this GPU: from Volta on."""
    return gpu.compute_capability >= _VOLTA


def client_cap(compute_capability: tuple[int, int], driver: Driver | NoDriver) -> ClientCap:
    """Clients of one GPU. Volta is 7.0, whatever NVIDIA's plugin takes it for."""
    if compute_capability < _VOLTA:
        return ClientCap(16, "the GPU is older than Volta")
    branch = driver.version.partition(".")[0] if isinstance(driver, Driver) else ""
    if branch.isdigit() and int(branch) >= _MORE_CLIENTS_SINCE:
        return ClientCap(60, f"the limit of driver branch {branch}")
    return ClientCap(48, f"the limit of drivers before branch {_MORE_CLIENTS_SINCE}")


def portions(sharing: Mps, memory_bytes: int) -> Portions | TooMuch:
    """Share a GPU out. A client without a figure gets an even part of what the others leave."""
    if not sharing.clients:
        even = Portion(None, memory_bytes // sharing.replicas // MIB * MIB, 100 // sharing.replicas)
        return Portions((even,) * sharing.replicas)
    wanted_memory = [client.memory_bytes for client in sharing.clients]
    memory = _filled(wanted_memory, memory_bytes, MIB)
    if memory is None:
        wanted = format_bytes(sum(part or 0 for part in wanted_memory))
        return _too_much(f"want {wanted} of the {format_bytes(memory_bytes)} that it has", wanted_memory)
    wanted_threads = [client.threads_percent for client in sharing.clients]
    threads = _filled(wanted_threads, 100, 1)
    if threads is None:
        return _too_much(f"want {sum(part or 0 for part in wanted_threads)} % of its threads", wanted_threads)
    names = (client.name for client in sharing.clients)
    return Portions(tuple(Portion(*parts) for parts in zip(names, memory, threads, strict=True)))


def _too_much(message: str, wanted: Sequence[int | None]) -> TooMuch:
    hint = "a client without a figure needs a part, too" if None in wanted else ""
    return TooMuch(f"the MPS clients {message}", hint)


def _filled(wanted: Sequence[int | None], total: int, unit: int) -> list[int] | None:
    """``wanted``, with an even part of the rest for every None, in whole units. None if it does not fit."""
    open_places = wanted.count(None)
    rest = total - sum(part for part in wanted if part is not None)
    even = rest // open_places // unit * unit if open_places else 0
    if rest < 0 or (open_places and even <= 0):
        return None
    return [even if part is None else part for part in wanted]


def client_offerings(whole: Offering, shares: Portions, *, guarded: bool) -> list[Offering]:
    """One row for each run of equal clients. guarded: the daemon's own limit binds its clients on this GPU.

    The daemon knows one limit for all clients: the largest share's. Smaller ones are held by variables that a
    tenant can drop. Raises ValueError for a client whose name makes no resource name.
    """
    rows, first = [], 0
    for portion, run in groupby(shares.clients):
        count = len(list(run))
        largest = (portion.memory_bytes, portion.threads_percent) == shares.largest
        holds = guarded and portion.memory_bytes == shares.largest[0]
        rows.append(
            replace(
                whole,
                resource=client_resource(whole.resource, portion.name),
                shared=Strategy.MPS,
                replicas=len(shares.clients),
                first=first,
                count=count,
                memory_bytes=portion.memory_bytes,
                threads_percent=portion.threads_percent,
                guarantee=Guarantee.GUARDED if holds else Guarantee.ADVISORY,
                limits_in_env=not largest,
            )
        )
        first += count
    return rows


def client_resource(resource: ResourceName, name: str | None) -> ResourceName:
    """``big`` beside ``nvidia.com/gpu.shared`` is ``nvidia.com/gpu.big``; a name with a slash is whole.

    Raises ValueError for what makes no resource name.
    """
    if name is None:
        return resource
    return parse_resource_name(name if "/" in name else f"{resource.removesuffix('.shared')}.{name}")

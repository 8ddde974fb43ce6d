"""What a running agent has written about its node, read back from ``<run-dir>/report.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import field

from partage.codec.values import CodecError, from_plain
from partage.faces.report_origin import ReportOrigin
from partage.model.policy import Policy
from partage.model.share import GpuOffer, NodeOffer
from partage.plan.reconcile.node_plan import Snapshot
from partage.values import Frozen


class HeldShare(Frozen):
    """One share that somebody holds. holders: ``namespace/pod/container``; several: ambiguous."""

    gpu: int | None
    resource: str
    id: str
    certainty: str
    holders: tuple[str, ...]


class Reported(Frozen):
    """The last report of an agent.

    at: RFC 3339. policy: its source, empty for none. reasons: why the agent is not well, or degraded.
    troubles: GPU UUID to what is wrong with it. waited_for: rows of GPUs that wait for their holders.
    pending: GPU UUID to what keeps it from being as the policy wants it. planned_from: None where the agent
    has no policy yet, or is of another version.
    """

    at: str
    version: str
    policy: str
    origin: ReportOrigin
    offer: NodeOffer
    held: tuple[HeldShare, ...] = ()
    reasons: tuple[str, ...] = ()
    troubles: Mapping[str, str] = field(default_factory=dict)
    waited_for: tuple[Mapping[str, Any], ...] = ()
    pending: Mapping[str, str] = field(default_factory=dict)
    planned_from: PlannedFrom | None = None

    @property
    def pods_by_gpu(self) -> dict[int, list[str]]:
        """GPU index to the pods that hold shares of it."""
        found: dict[int, list[str]] = {}
        for share in self.held:
            if share.gpu is not None:
                found.setdefault(share.gpu, []).append(" or ".join(map(_pod, share.holders)) or "unknown")
        return found

    @property
    def holders(self) -> dict[str, str]:
        """Share id to the pods that hold it."""
        return {share.id: " or ".join(_pod(name) for name in share.holders) or "?" for share in self.held}


class PlannedFrom(Frozen):
    """What the agent's planner looked at."""

    policy: Policy
    snapshot: Snapshot


class Unreadable(Frozen):
    """There is a report, and it cannot be used."""

    reason: str


def read_report(path: Path | None) -> Reported | Unreadable | None:
    """The report at that path; None where there is none, or no path."""
    if path is None:
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return _reported(document)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Unreadable(f"{path} cannot be read: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Unreadable(f"{path} is not a report of this version of Partage ({error!r})")


def _reported(document: Mapping[str, Any]) -> Reported:
    gpus = document["gpus"]
    offer = from_plain(dict[str, GpuOffer], document["offer"])
    return Reported(
        at=str(document["at"]),
        version=str(document["agent"]["version"]),
        policy=str(document["policy"]["source"]),
        origin=_origin(document["agent"], document["node"]),
        offer=offer,
        held=tuple(_held(row, _gpu_indexes(offer)) for row in document["held"]),
        reasons=tuple(str(row["message"]) for row in (*document["reasons"], *document["degraded"])),
        troubles={row["uuid"]: said for row in gpus if (said := _trouble(row))},
        waited_for=tuple(_waiting(row) for row in gpus if row["phase"] in ("waiting", "withdrawing")),
        pending={row["uuid"]: str(said) for row in gpus if (said := row["reason"])},
        planned_from=_planned_from(document.get("plannedFrom")),
    )


def _origin(agent: Mapping[str, Any], node: Mapping[str, Any]) -> ReportOrigin:
    uuids = {row["uuid"] for row in (*node["gpus"], *node["lost"])}
    return ReportOrigin(
        pid=int(agent["pid"]),
        pid_namespace=str(agent["pidNamespace"]),
        simulated=bool(node["simulated"]),
        boot_id=str(node["bootId"]),
        gpus=frozenset(uuids - {None}),
    )


def _planned_from(plain: object) -> PlannedFrom | None:
    try:
        return None if plain is None else from_plain(PlannedFrom, plain)
    except CodecError:
        return None


def _gpu_indexes(offer: NodeOffer) -> dict[str, int]:
    return {
        share: offering.gpu_index
        for offerings in offer.values()
        for offering in offerings
        for share in offering.share_ids
    }


def _held(row: Mapping[str, Any], indexes: Mapping[str, int]) -> HeldShare:
    holders = tuple(f"{one['namespace']}/{one['pod']}/{one['container']}" for one in row["holders"])
    return HeldShare(indexes.get(row["id"]), row["resource"], row["id"], row["certainty"], holders)


def _trouble(row: Mapping[str, Any]) -> str:
    health = row["health"]
    if row["lost"]:
        return f"lost: {row['lost']}"
    return "" if health["state"] == "healthy" else f"{health['state']}: {health['reason']}"


def _waiting(row: Mapping[str, Any]) -> dict[str, Any]:
    """A GPU that waits: its number, what it is and shall be, and the shares it waits for."""
    keys = ("index", "uuid", "strategy", "wantedStrategy", "waitingFor")
    return {key: row[key] for key in keys}


def _pod(holder: str) -> str:
    return holder.rpartition("/")[0]

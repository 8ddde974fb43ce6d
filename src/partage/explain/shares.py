"""``partage explain share``: who holds a share, since when, and what is guaranteed about it and why, from the
report of an agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from partage.agent.status.readiness import PIPE_READ_ONLY
from partage.answers import common_output
from partage.answers.documents.report import EntryRow, ReportDocument
from partage.answers.documents.resources import ResourceDeviceRow, ResourceGpuRow
from partage.answers.wording import container_name, pod_name, who_holds
from partage.errors import InputError
from partage.explain.decide.gpus import obstacle_words
from partage.explain.decide.pod_and_node import GpuView, NodeView
from partage.explain.document import ExplainedShareRow
from partage.explain.node_views import view_of_report
from partage.explain.verb_nodes import Where, need_reports, see_nodes
from partage.model.ids import DEVICE_CLASSES, DeviceUuid, ResourceName, ShareId, device_of, parse_share_id
from partage.model.share import DeviceOffer, Guarantee
from partage.model.strategy import Strategy
from partage.plan.serve.ledger_entry import Certainty
from partage.text import listed
from partage.units import format_bytes, format_duration

_CERTAINTY = {
    Certainty.TENTATIVE: "the kubelet has just given it away and has not named the container yet",
    Certainty.OBSERVED: "the kubelet names this container as the holder",
    Certainty.PROVEN: "the kubelet named this container before it started",
    Certainty.UNCONFIRMED: "the kubelet names no container with it now, and its end is not proven",
    Certainty.CLAIMED: "a ResourceClaim holds it until no pod needs the claim any more",
    Certainty.ENDING: "the kubelet has forgotten this pod; whether a process of it runs is looked at now",
}


def share_rows(node: str, report: ReportDocument, what: str) -> tuple[ExplainedShareRow, ...]:
    """The shares that ``what`` names: a GPU by its index or UUID, a share by its id, a resource, a pod
    (``namespace/pod``). Shares that are alike are one row; none where nothing has that name.
    """
    view = view_of_report(node, report)
    held = {(entry.resource, entry.id): entry for entry in report.held}
    alike: dict[tuple[object, ...], list[ShareId]] = {}
    first: dict[tuple[object, ...], tuple[DeviceOffer, EntryRow | None]] = {}
    for row in (row for rows in report.offer.values() for row in rows):
        for share in row.share_ids:
            entry = held.get((row.resource, share))
            if not _is_named(what, row, share, entry):
                continue
            key = (row, *(() if entry is None else (entry.holders, entry.since, entry.certainty)))
            alike.setdefault(key, []).append(share)
            first.setdefault(key, (row, entry))
    rows = [_row(report, view, tuple(shares), *first[key]) for key, shares in alike.items()]
    rows += _not_offered(report, view, what)
    return tuple(rows or _without_offer(report, view, what))


def pod_holdings(node: str, report: ReportDocument, pod: str) -> tuple[ExplainedShareRow, ...]:
    """What a pod (``namespace/name``) holds."""
    return tuple(row for row in share_rows(node, report, pod) if row.holders)


def _is_named(what: str, row: DeviceOffer, share: ShareId, entry: EntryRow | None) -> bool:
    if what in (str(row.gpu_index), row.gpu, row.device, share, row.resource):
        return True
    holders = () if entry is None else entry.holders
    return any(what in (pod_name(holder), container_name(holder)) for holder in holders)


def _row(
    report: ReportDocument,
    view: NodeView,
    shares: tuple[ShareId, ...],
    row: DeviceOffer,
    entry: EntryRow | None,
) -> ExplainedShareRow:
    device = _device_row(report, row.resource, row, shares[0])
    stated = row.guarantee if device is None else device.guarantee
    state, standing, step = _standing(view, row, entry, report.at)
    if entry is not None:
        standing = "; ".join((standing, *_unconnected(report, row)))
    return ExplainedShareRow(
        node=view.name,
        gpu=row.gpu_index,
        profile=row.profile,
        resource=row.resource,
        shares=shares,
        state=state,
        holders=() if entry is None else who_holds(entry.holders, entry.claim),
        certainty=None if entry is None else entry.certainty,
        since=None if entry is None else entry.since,
        memory_bytes=row.memory_bytes * len(shares),
        guarantee=stated,
        promised=row.guarantee if device is None else device.promised,
        verified=None if device is None else device.verified,
        why_guarantee=_why(report, row, device, stated),
        standing=standing,
        next=step,
    )


def _unconnected(report: ReportDocument, row: DeviceOffer) -> Iterator[str]:
    """What keeps its containers from the MPS daemon, maybe."""
    for reason in report.degraded:
        where, _, what = reason.message.partition(": ")
        if reason.code == PIPE_READ_ONLY and where.endswith(row.device):
            yield what


def _not_offered(report: ReportDocument, view: NodeView, what: str) -> Iterator[ExplainedShareRow]:
    """Held shares of an earlier offer: they stay until their pods end."""
    offered = {
        (row.resource, share) for rows in report.offer.values() for row in rows for share in row.share_ids
    }
    gpu_of: dict[DeviceUuid, tuple[int, str | None]] = {gpu.uuid: (gpu.index, None) for gpu in report.gpus}
    for gpu in report.node.gpus:
        gpu_of |= {device.uuid: (gpu.index, device.profile) for device in gpu.mig_devices}
    for entry in report.held:
        index, profile = gpu_of.get(device_of(entry.id), (-1, None))
        uuids = [gpu.uuid for gpu in report.gpus if gpu.index == index]
        names = {str(index), *uuids, device_of(entry.id), entry.id, entry.resource}
        names |= {name(holder) for holder in entry.holders for name in (pod_name, container_name)}
        if (entry.resource, entry.id) in offered or what not in names:
            continue
        state, standing, step = _held(entry, report.at)
        yield ExplainedShareRow(
            node=view.name,
            gpu=index,
            profile=profile,
            resource=entry.resource,
            shares=(entry.id,),
            state=state,
            holders=who_holds(entry.holders, entry.claim),
            certainty=entry.certainty,
            since=entry.since,
            why_guarantee="not known: the share is of an earlier offer, or of another device plugin",
            standing=f"{standing}; nothing like it is offered now, and it is kept until its pod ends",
            next=step,
        )


def _without_offer(report: ReportDocument, view: NodeView, what: str) -> Iterator[ExplainedShareRow]:
    """A GPU that offers nothing now, and of which nothing is held."""
    for gpu in report.gpus:
        if what not in (str(gpu.index), gpu.uuid):
            continue
        here = view.obstacles.get(gpu.uuid, ())
        if here:
            reason, change = obstacle_words(view, GpuView(gpu.index, gpu.uuid), here[0])
            why, step = str(reason), str(change)
        elif (seen := report.planner_input) is not None and gpu.uuid in seen.snapshot.demands:
            why = gpu.reason or "its MIG devices are made when claims ask for them, and none has one"
            step = "ask by a ResourceClaim of the class mig.partage.dev, or gpu.partage.dev for all of it"
        else:
            why, step = (
                gpu.reason or "the policy offers nothing of it",
                "partage plan says what is to be there",
            )
        yield ExplainedShareRow(
            node=view.name,
            gpu=gpu.index,
            shares=(),
            state="not offered",
            why_guarantee="nothing is offered, so nothing is guaranteed",
            standing=f"nothing of it is offered now: {why}",
            next=step,
        )


def _device_row(
    report: ReportDocument, resource: ResourceName, row: DeviceOffer, share: ShareId
) -> ResourceDeviceRow | None:
    number = parse_share_id(share)[1] or 0
    gpus: Sequence[ResourceGpuRow] = [
        gpu
        for offered in report.resources
        if offered.name == resource
        for gpu in offered.gpus
        if gpu.uuid == row.gpu
    ]
    return next(
        (
            device
            for gpu in gpus
            for device in gpu.devices
            if device.uuid == row.device and device.first_share <= number < device.first_share + device.count
        ),
        None,
    )


# --- how it stands ------------------------------------------------------------------------------------


def _standing(view: NodeView, row: DeviceOffer, entry: EntryRow | None, at: str) -> tuple[str, str, str]:
    """One word, a sentence, and the next step."""
    obstacles = view.obstacles.get(row.device, ())
    gpu = GpuView(row.gpu_index, row.gpu)
    if entry is not None:
        return _held(entry, at)
    if obstacles:
        reason, change = obstacle_words(view, gpu, obstacles[0])
        return "not given", f"nobody holds it, and nobody gets it: {reason}", str(change)
    if row.resource in DEVICE_CLASSES:
        return "free", "free", f"ask by a ResourceClaim of the class {row.resource}"
    return "free", "free", f"ask for {row.resource}: 1"


def _held(entry: EntryRow, at: str) -> tuple[str, str, str]:
    pods = entry.pods
    text = f"held{f' by {pods}' if pods else ''} since {_moment(entry.since)}{_age(entry.since, at)}: "
    if entry.left or entry.unseen:
        return "held", text + _of_forgotten_pod(entry, at), f"wait, or: partage free {entry.id}"
    if entry.holders:
        step = f"kubectl describe pod {_kubectl(entry)}"
    elif entry.claim:
        namespace, _, name = entry.claim.partition("/")
        step = f"kubectl describe resourceclaim -n {namespace} {name}"
    else:
        step = "wait a moment, then ask again"
    return "held", text + _CERTAINTY[entry.certainty], step


def _of_forgotten_pod(entry: EntryRow, at: str) -> str:
    """What is left of the pod that held it, as far as somebody could look."""
    runs = f"{listed([str(process) for process in entry.left], 4)} of it still runs"
    unseen = f"nobody can look since {_moment(entry.unseen_at or '')}{_age(entry.unseen_at or '', at)}"
    known = [runs] if entry.left else ["it is not known whether a process of it still runs"]
    if entry.unseen:
        known.append(f"{unseen}: {entry.unseen}")
    return f"the kubelet has forgotten this pod, and {'; '.join(known)}"


def _kubectl(entry: EntryRow) -> str:
    holder = entry.holders[0]
    return f"-n {holder.namespace} {holder.pod}"


def _moment(since: str) -> str:
    """``2026-03-01 09:30:00 UTC``; as it is where it is no such time."""
    try:
        return datetime.fromisoformat(since).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return since


def _age(since: str, at: str) -> str:
    """`` (2 h)`` before the report was made; empty where that cannot be told."""
    try:
        seconds = int((datetime.fromisoformat(at) - datetime.fromisoformat(since)).total_seconds())
    except ValueError:
        return ""
    for step in (86400, 3600, 60):
        if seconds >= 2 * step:
            seconds -= seconds % step
            break
    return f" ({format_duration(max(seconds, 0))})"


# --- the guarantee ------------------------------------------------------------------------------------


def _why(
    report: ReportDocument, row: DeviceOffer, device: ResourceDeviceRow | None, stated: Guarantee
) -> str:
    """What the guarantee means, and why it is this one."""
    return f"{stated.means}; {'; '.join(_reasons(report, row, device, stated))}"


def _reasons(
    report: ReportDocument, row: DeviceOffer, device: ResourceDeviceRow | None, stated: Guarantee
) -> Iterator[str]:
    if report.node.open_to_env and stated is Guarantee.ADVISORY:
        yield "pods of this node can set NVIDIA_VISIBLE_DEVICES themselves and reach every GPU"
    elif device is not None and device.guarantee.strength < device.promised.strength:
        yield f"the policy promises {device.promised}, and that was not seen in force now"
    else:
        yield _of_strategy(row, stated)
    for gpu in report.gpus:
        yield from (
            daemon.doubt for daemon in gpu.mps_daemons if daemon.device == row.device and daemon.doubt
        )
    if device is not None and device.verified is None:
        yield "it could not be seen in force: the device or its MPS daemon does not answer"


def _of_strategy(row: DeviceOffer, stated: Guarantee) -> str:
    amount = format_bytes(row.memory_bytes)
    what = "MIG device" if row.profile else "GPU"
    exclusive = f"the container has the {what} to itself"
    sentences: Mapping[tuple[Strategy, Guarantee], str] = {
        (Strategy.EXCLUSIVE, Guarantee.HARD): exclusive,
        (Strategy.EXCLUSIVE, Guarantee.NONE): "compute instances of one GPU instance share its memory",
        (
            Strategy.MPS,
            Guarantee.GUARDED,
        ): f"each process gets {amount} at most, and Partage watches their sum",
        (
            Strategy.MPS,
            Guarantee.ADVISORY,
        ): f"each process is told {amount}, and nothing holds their sum to it",
        (Strategy.TIME_SLICING, Guarantee.ADVISORY): "only settings inside the container limit its memory",
        (Strategy.TIME_SLICING, Guarantee.NONE): "time slices share out the processors, not the memory",
    }
    return sentences.get((row.shared, stated), f"the {what} is shared by {row.shared}")


def explain_share(what: str, where: Where, output: str) -> int:
    """The shares of that name; the exit code. Raises InputError where nothing is called so."""
    from partage.explain.document import ShareExplanationDocument
    from partage.text import listed

    reports = need_reports(see_nodes(where))
    rows = tuple(row for node, report in reports.items() for row in share_rows(node, report, what))
    if not rows:
        names = [str(resource.name) for report in reports.values() for resource in report.resources]
        indexes = [f"{gpu.index}" for report in reports.values() for gpu in report.gpus]
        raise InputError(
            f"nothing here is called {what[:80]!r}, and no pod of that name holds a share",
            f"a GPU ({listed(list(dict.fromkeys(indexes)), 8)}), a resource "
            f"({listed(list(dict.fromkeys(names)), 8)}), NAMESPACE/POD, or the id of a share",
        )
    if output == "table":
        from partage.explain.tables import share_lines

        console = common_output.console()
        for line in share_lines(rows):
            console.print(line)
    else:
        common_output.print_document(ShareExplanationDocument(what=what, shares=rows), output)
    return 0

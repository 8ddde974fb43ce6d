"""What the containers of a claim get: a CDI spec of the claim, and the CDI names that the kubelet passes on.

Environment and mounts are those that the device plugin answers for the same ids. The driver's libraries and
the device files are in the node's own spec; its name of the device goes beside the one of the claim. An
annotation of the spec, which no container gets, is the record of the claim: from there it is rebuilt when its
own file is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from partage.claims.decide.asked import configured
from partage.claims.decide.devices import ClaimDevices
from partage.claims.model.grant import ClaimRecord, ClaimState, Granted, GrantedShare
from partage.claims.model.names import OWN_NAMES, ClaimNames
from partage.codec.values import CodecError, decode, encode
from partage.model.driver_limit import LimitWay
from partage.model.ids import ResourceName
from partage.model.share import ContainerAllocation, DeviceOffer, Mount, Resource, driver_limits
from partage.plan.serve.allocate_response import CDI_VENDOR, AllocateResponder, share_facts
from partage.plan.serve.limit_edits import NO_LIMIT_TERMS, LimitTerms, hook_edits, limit_variables
from partage.text import one_or_each
from partage.units import MIB
from partage.values import Frozen

KIND = f"{OWN_NAMES.driver}/claim"
"""Whatever the driver is called: files of claims that were prepared under another name are found again."""

_VERSION = "0.5.0"
"""The lowest CDI version in which a name may begin with a digit, as UIDs do."""

_NO_LEGACY = "NVIDIA_VISIBLE_DEVICES"
"""``void`` keeps NVIDIA's runtime from injecting devices that CDI injects already."""

_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate")
_TOTAL = "PARTAGE_TOTAL_BYTES"
_RESOURCE = "PARTAGE_RESOURCE"
_GPUSHARE = "ALIYUN_COM_"

Responding = Callable[[Resource], AllocateResponder]
"""Makes the responder of a resource, with options of ``options_for_claims``."""


class ClaimCdi(Frozen):
    """spec: the file's content. ids: full CDI names of each granted share, in their order."""

    spec: dict[str, Any]
    ids: tuple[tuple[str, ...], ...]


def claim_cdi(
    granted: Granted,
    devices: ClaimDevices,
    responding: Responding,
    *,
    guard: bool,
    limits: LimitTerms = NO_LIMIT_TERMS,
) -> ClaimCdi:
    """The spec of a claim: one device for each share.

    The shares of a request come together into a container: each of its devices has the variables of all. A
    container with two requests has those of one of them. guard: the guard's files are on the node. limits:
    what sets the driver's memory limits. The first device of a request brings the hook for all of them.

    Raises AllocationRefused where memory limits cannot be set before a container starts. Also where the ids
    are not those of ``devices``, and KeyError for a device that is not there; neither can be after ``grant``
    with the same devices.
    """
    answers = [_answer(share, devices, responding, guard=guard) for share in granted.shares]
    names = [_name(granted, share) for share in granted.shares]
    found: dict[str, dict[str, Any]] = {}
    for name, share, answer in zip(names, granted.shares, answers, strict=True):
        together = [
            (other, row, given)
            for other, (row, given) in zip(granted.shares, answers, strict=True)
            if other.asked == share.asked
        ]
        held = driver_limits((other.gpu, other.limit_bytes) for other, _, _ in together)
        envs = {_NO_LEGACY: "void"} | _envs(together, devices.names) | limit_variables(held, limits)
        edits: dict[str, Any] = {"env": [f"{key}={value}" for key, value in envs.items()]}
        if held and share is together[0][0] and limits.way is LimitWay.HOOK:
            edits |= hook_edits(held, limits, name)
        if answer[1].mounts:
            edits["mounts"] = [_mount(mount) for mount in answer[1].mounts]
        found[name] = {"name": name, "containerEdits": edits}
    return ClaimCdi(
        spec={"cdiVersion": _VERSION, "kind": KIND, "devices": list(found.values())},
        ids=tuple(
            (f"{KIND}={name}", *answer.cdi_devices) for name, (_, answer) in zip(names, answers, strict=True)
        ),
    )


def _name(granted: Granted, share: GrantedShare) -> str:
    """``<claim uid>-<device>[-<share id>]``: no name ever gets another content, since runtimes keep specs."""
    return "-".join(part for part in (granted.claim.uid, share.device, share.share_id) if part)


def _answer(
    share: GrantedShare, devices: ClaimDevices, responding: Responding, *, guard: bool
) -> tuple[DeviceOffer, ContainerAllocation]:
    """What the device plugin would answer for these ids."""
    # A claim may have several shares of a GPU: it has asked for their number by name.
    row = replace(configured(devices.rows[share.device], share.config, guard=guard), single=False)
    if share.admin_access:
        return row, ContainerAllocation(cdi_devices=(f"{CDI_VENDOR}/gpu={share.uuid}",))
    answer = responding(Resource(row.resource, (row,))).answer(share.ids)
    if row.traits.through_daemon:
        answer = replace(answer, envs={**answer.envs, **_client_limits(share)})
    asked_by = devices.names.class_of(row.resource)
    return row, replace(answer, envs={**answer.envs, _RESOURCE: asked_by})


def _client_limits(share: GrantedShare) -> dict[str, str]:
    """Of each process under MPS, by variables, which can only say less than the daemon does."""
    found = {}
    own = 0 if share.slot else share.cores  # a slot has it itself
    if threads := [part for part in (own, share.config.client_threads_percent) if part]:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(min(threads))
    if (memory_bytes := share.config.client_memory_bytes) is not None:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={min(memory_bytes, share.memory_bytes) // MIB}M"
    return found


def _envs(
    together: Sequence[tuple[GrantedShare, DeviceOffer, ContainerAllocation]], names: ClaimNames
) -> dict[str, str]:
    """The variables of the shares of one request. Those that say what the container has, say it of all."""
    envs: dict[str, str] = {}
    for _, _, answer in together:
        envs |= answer.envs
    if len(together) > 1 and envs:
        envs = {key: value for key, value in envs.items() if not key.startswith(_GPUSHARE)}
        held = [(row, id_) for share, row, _ in together for id_ in share.ids]
        resources = ",".join(dict.fromkeys(names.class_of(row.resource) for row, _ in held))
        envs |= share_facts(ResourceName(resources), [id_ for _, id_ in held], [row for row, _ in held])
        if _TOTAL in envs:
            envs[_TOTAL] = one_or_each(list(_totals(answer for _, _, answer in together)))
    return envs


def _totals(answers: Iterable[ContainerAllocation]) -> Iterable[int]:
    return (int(answer.envs[_TOTAL]) for answer in answers if _TOTAL in answer.envs)


def _mount(mount: Mount) -> dict[str, Any]:
    access = "ro" if mount.read_only else "rw"
    return {
        "hostPath": mount.host_path,
        "containerPath": mount.container_path,
        "options": [access, *_OPTIONS],
    }


_KEY = f"{OWN_NAMES.driver}/record"
_RECORD_VERSION = "0.6.0"
"""The lowest CDI version with annotations."""

_MOST_BYTES = 240 * 1024
"""CDI's own loader refuses a spec with more than 256 KiB of annotations."""


class _Annotated(Frozen):
    annotations: Mapping[str, str] | None = None


def with_record(cdi: ClaimCdi, record: ClaimRecord) -> ClaimCdi:
    """The spec with the record of its claim, where there is room: with up to 4,000 units there is."""
    written = encode(record).decode()
    if len(written.encode()) > _MOST_BYTES:
        return cdi
    return replace(cdi, spec={**cdi.spec, "cdiVersion": _RECORD_VERSION, "annotations": {_KEY: written}})


def record_in(spec: bytes, uid: str) -> ClaimRecord | None:
    """The record that was written into a CDI file of this claim; None: there is none that can be used."""
    try:
        annotations = decode(_Annotated, spec, strict=False).annotations or {}
        record = decode(ClaimRecord, annotations.get(_KEY, "").encode(), strict=False)
    except (CodecError, UnicodeEncodeError):
        return None
    fits = record.claim.uid == uid and record.state is ClaimState.PREPARED
    return record if fits else None

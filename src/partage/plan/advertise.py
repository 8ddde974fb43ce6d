"""From an assignment to what is offered: shares, their memory, their guarantees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from partage.errors import InputError, Problem, Unsatisfiable
from partage.model.gpu import Inventory
from partage.model.ids import ResourceName
from partage.model.policy import Exclusive, Mps, Policy, Strategy, TimeSlicing
from partage.model.share import Guarantee, Offer, Offering, resources_of
from partage.plan.assign import Assignment, PlannedDevice, Target
from partage.plan.clients import Portions, client_cap, client_offerings, portions
from partage.plan.message import MESSAGE_LIMIT_BYTES, SLACK_BYTES, list_bytes, most_for_each
from partage.units import GIB, MIB

_LARGEST_LIST: Final = MESSAGE_LIMIT_BYTES - SLACK_BYTES


def advertise(assignment: Assignment, inventory: Inventory, policy: Policy) -> Offer:
    """What every GPU that answers offers, planned MIG devices included (``Offering.planned``).

    Raises Unsatisfiable with all problems: more MPS clients than architecture and driver allow, clients that
    want more memory or threads than the GPU has, more ids in one resource than one kubelet message holds.
    Raises InputError where the name of a client makes no resource name.
    """
    found = _Problems(policy.source)
    rows: dict[str, list[Offering]] = {gpu.uuid: [] for gpu in inventory if gpu.uuid in assignment.strategies}
    for target in assignment.targets:
        gpu_rows = rows.setdefault(target.gpu.uuid, [])
        gpu_rows.extend(_offerings(target, len(gpu_rows), inventory, found))
    offer = {gpu: tuple(offerings) for gpu, offerings in rows.items()}
    origins = {target.resource: _replicas_path(target) for target in reversed(assignment.targets)}
    found.impossible.extend(_too_long_lists(offer, origins, policy.source))
    found.raise_any()
    return offer


class _Problems:
    """What is wrong, collected; one problem for all GPUs that have it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.impossible: list[Problem] = []
        self._gpus: dict[tuple[str, str, str, bool], list[int]] = {}

    def add(self, target: Target, path: str, message: str, hint: str = "", *, wrong: bool = False) -> None:
        """Note it. wrong: the text is, not the node."""
        self._gpus.setdefault((path, message, hint, wrong), []).append(target.gpu.index)

    def raise_any(self) -> None:
        """Raise what was found, if anything: InputError outranks Unsatisfiable."""
        by_text = [
            (wrong, Problem(self.file, path, "error", f"{_gpus(indexes)}: {message}", hint))
            for (path, message, hint, wrong), indexes in self._gpus.items()
        ]
        problems = [problem for _, problem in by_text] + self.impossible
        if any(wrong for wrong, _ in by_text):
            raise InputError(problems)
        if problems:
            raise Unsatisfiable(problems)


def _gpus(indexes: Sequence[int]) -> str:
    distinct = sorted(set(indexes))
    return f"GPU{'s' if len(distinct) > 1 else ''} {', '.join(map(str, distinct))}"


def _too_long_lists(offer: Offer, origins: Mapping[ResourceName, str], file: str) -> list[Problem]:
    problems = []
    for name, resource in resources_of(offer).items():
        if list_bytes(resource.offerings) <= _LARGEST_LIST:
            continue
        most = most_for_each(resource.offerings, _LARGEST_LIST)
        fitting = sum(min(offering.count, most) for offering in resource.offerings)
        message = f"{name}: {resource.count:,} shares do not fit into the kubelet's message of 4 MiB"
        hint = f"{fitting:,} would fit, at most {most:,} for each device"
        problems.append(Problem(file, origins.get(name, ""), "error", message, hint))
    return problems


# --- one device -------------------------------------------------------------------------------


def _offerings(target: Target, position: int, inventory: Inventory, found: _Problems) -> list[Offering]:
    """The rows of one device; none where there is a problem. position: among the rows of its GPU."""
    whole = _whole_device(target, position)
    sharing = target.sharing
    match sharing:
        case Exclusive():
            offerings = [replace(whole, guarantee=Guarantee.HARD)]
        case TimeSlicing():
            offerings = [_time_sliced(whole, sharing)]
        case Mps():
            offerings = _mps(target, whole, sharing, inventory, found)
        case _:
            assert_never(sharing)
    return [_at_most_advisory(row) for row in offerings] if inventory.open_to_env else offerings


def _whole_device(target: Target, position: int) -> Offering:
    """The device in one share, without a guarantee yet."""
    gpu, mig = target.gpu, target.mig
    nodes: tuple[str, ...] = (f"/dev/nvidia{gpu.minor}",)
    if mig is None:
        device, index, memory, profile = gpu.uuid, str(gpu.index), gpu.memory_bytes, None
    elif isinstance(mig, PlannedDevice):
        device = f"{gpu.uuid}/{mig.item.profile}@{mig.placement.start}"
        index, profile, nodes = f"{gpu.index}:{position}", str(mig.item.profile), ()
        memory = mig.spec.memory_bytes or mig.item.profile.gigabytes * GIB
    else:
        device, index, memory, profile = mig.uuid, f"{gpu.index}:{mig.index}", mig.memory_bytes, mig.profile
        minors = (minor for minor in (mig.gi_minor, mig.ci_minor) if minor is not None)
        nodes += tuple(f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors)
    return Offering(
        device=device,
        gpu=gpu.uuid,
        index=index,
        gpu_index=gpu.index,
        resource=target.resource,
        strategy=target.strategy,
        shared=Strategy.EXCLUSIVE,
        replicas=1,
        memory_bytes=memory,
        guarantee=Guarantee.NONE,
        numa_node=gpu.numa_node,
        nodes=nodes,
        single=target.single,
        planned=isinstance(mig, PlannedDevice),
        profile=profile,
        guard=target.guard,
    )


def _time_sliced(whole: Offering, sharing: TimeSlicing) -> Offering:
    return replace(
        whole,
        shared=Strategy.TIME_SLICING,
        replicas=sharing.replicas,
        count=sharing.replicas,
        memory_bytes=whole.memory_bytes // sharing.replicas // MIB * MIB,
        interval=sharing.interval,
    )


def _mps(
    target: Target, whole: Offering, sharing: Mps, inventory: Inventory, found: _Problems
) -> list[Offering]:
    if target.mig is not None:
        found.add(target, target.origin, "sharing using MPS is not supported for MIG devices")
        return []
    cap = client_cap(target.gpu.compute_capability, inventory.driver)
    if sharing.replicas > cap.clients:
        message = f"{sharing.replicas:,} MPS clients, but at most {cap.clients} are possible: {cap.why}"
        found.add(target, _replicas_path(target), message)
        return []
    shares = portions(sharing, whole.memory_bytes)
    if not isinstance(shares, Portions):
        found.add(target, f"{target.origin}.mps.clients", shares.message, shares.hint)
        return []
    guarded = target.gpu.compute_capability >= (7, 0) and sharing.exclusive_process
    try:
        return client_offerings(whole, shares, guarded=guarded)
    except ValueError as wrong:
        found.add(target, f"{target.origin}.mps.clients", str(wrong), wrong=True)
        return []


def _at_most_advisory(offering: Offering) -> Offering:
    """A tenant who may set NVIDIA_VISIBLE_DEVICES himself is held by nothing."""
    if offering.guarantee.strength <= Guarantee.ADVISORY.strength:
        return offering
    return replace(offering, guarantee=Guarantee.ADVISORY)


def _replicas_path(target: Target) -> str:
    """Where the policy says how many: NVIDIA's entries are the sharing's own, ours name the strategy."""
    if not target.origin or isinstance(target.sharing, Exclusive):
        return target.origin
    if target.origin.startswith("sharing."):
        return f"{target.origin}.replicas"
    strategy = "mps" if isinstance(target.sharing, Mps) else "time-slicing"
    if isinstance(target.sharing, Mps) and target.sharing.clients:
        return f"{target.origin}.mps.clients"
    inside = ".mig" if target.mig is not None and target.strategy is Strategy.MIG else ""
    return f"{target.origin}{inside}.{strategy}.replicas"

"""Judges one strategy for a situation: its policy is resolved on the GPU; under MIG, which devices tenants
get.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from partage.advise.decide.candidate import (
    FEWER_OR_NEWER,
    LARGER,
    Ask,
    Candidate,
    TenantShare,
    WayRefusal,
    fewer_or_larger,
)
from partage.advise.decide.situation import GpuFacts, Preference, Scheduler, Situation, Way, Workload
from partage.errors import InputError, Unsatisfiable
from partage.model.geometry import Geometry, ProfileSpec, instance_memory
from partage.model.gpu import Driver, Inventory
from partage.model.layout import LayoutItem
from partage.model.policy import (
    DesiredMig,
    Exclusive,
    GpuCriteria,
    GpuEntry,
    MemoryUnits,
    Mps,
    Policy,
    RemainingGpus,
    Sharing,
    TimeSlicing,
)
from partage.model.share import DeviceOffer, Guarantee, weakest
from partage.model.strategy import Interval
from partage.plan.offer.desired import resolve
from partage.plan.offer.guarantees import promised
from partage.plan.offer.mps_shares import limits_clients, no_namespaces
from partage.text import count_of
from partage.units import GIB, MIB, format_bytes
from partage.values import Frozen

_GRAPHICS = "gfx"


def equal_profiles(
    geometry: Geometry, situation: Situation, facts: GpuFacts
) -> tuple[ProfileSpec, ...] | WayRefusal:
    """MIG devices of one profile: the largest of which there are enough."""
    specs = _suitable(geometry, situation)
    enough = [spec for spec in specs if spec.max_count >= situation.tenants]
    if not enough:
        most = max(spec.max_count for spec in specs)
        return WayRefusal(
            Way.MIG,
            f"{facts.gpu.product} has at most {count_of(most, 'MIG device')}, and there are "
            f"{situation.tenants} tenants",
            f"at most {count_of(most, 'tenant')} on each GPU, or less isolation",
        )
    best = max(enough, key=lambda spec: (spec.compute_slices, spec.size))
    has = instance_memory(best, geometry, facts.gpu.memory_bytes)
    if situation.memory_bytes is not None and has < situation.memory_bytes:
        return WayRefusal(
            Way.MIG,
            f"each of {count_of(situation.tenants, 'MIG device')} has {format_bytes(has)} "
            f"({best.profile}), and a tenant needs {format_bytes(situation.memory_bytes)}",
            fewer_or_larger(situation, facts),
        )
    return (best,) * best.max_count


def unequal_profiles(
    geometry: Geometry, situation: Situation, facts: GpuFacts
) -> tuple[tuple[ProfileSpec, ...], ...] | WayRefusal:
    """For each tenant the profiles with the least memory that is enough, those with less compute first."""
    specs = sorted(_suitable(geometry, situation), key=lambda spec: (spec.size, spec.compute_slices))
    has = {spec: instance_memory(spec, geometry, facts.gpu.memory_bytes) for spec in specs}
    choices = []
    for needed in situation.sizes:
        fitting = [spec for spec in specs if has[spec] >= needed]
        if not fitting:
            most = format_bytes(max(has.values()))
            why = f"the largest MIG device has {most}, and a tenant needs {format_bytes(needed)}"
            return WayRefusal(Way.MIG, why, LARGER)
        choices.append(tuple(spec for spec in fitting if spec.size == fitting[0].size))
    return tuple(choices)


def _suitable(geometry: Geometry, situation: Situation) -> list[ProfileSpec]:
    """With graphics for rendering, where the GPU has that."""
    graphics = [spec for spec in geometry.profiles if spec.profile.attributes == (_GRAPHICS,)]
    if situation.workload is Workload.RENDERING and graphics:
        return graphics
    return [spec for spec in geometry.profiles if not spec.profile.attributes]


_IN_MACHINE = "inside of its virtual machine; the hypervisor keeps the machines apart"
UNIT_BYTES = GIB
"""In which tenants of different sizes ask for memory."""

_MAXWELL = (5, 0)
_INTERVALS = {Preference.LATENCY: Interval.SHORT, Preference.THROUGHPUT: Interval.LONG}


class ResolvedShares(Frozen):
    """What a policy offers on the GPU of an inventory. guarantee: the weakest."""

    rows: tuple[DeviceOffer, ...]

    @property
    def count(self) -> int:
        """Number of shares."""
        return sum(row.count for row in self.rows)

    @property
    def memory_bytes(self) -> int:
        """Memory of the smallest share."""
        return min(row.memory_bytes for row in self.rows)

    @property
    def by_memory(self) -> bool:
        """Whether they are units of memory, of which a tenant asks for several."""
        return self.rows[0].by_memory

    @property
    def guarantee(self) -> Guarantee:
        """The weakest."""
        return weakest(row.guarantee for row in self.rows)


def judge(way: Way, situation: Situation, facts: GpuFacts) -> Candidate | WayRefusal:
    """The strategy for this situation, if it gives every tenant what it needs."""
    if refused := _refused(way, situation, facts):
        return refused
    if way is Way.MIG:
        return _divided(situation, facts)
    if situation.sizes and way in (Way.MPS, Way.TIME_SLICING):
        return _shared_unequally(way, situation, facts)
    return _resolved(way, situation, facts, ())


def _divided(situation: Situation, facts: GpuFacts) -> Candidate | WayRefusal:
    """MIG devices: equal ones, or the smallest for each tenant."""
    assert facts.geometry is not None, "it was not refused"
    if situation.sizes:
        return _divided_unequally(facts.geometry, situation, facts)
    profiles = equal_profiles(facts.geometry, situation, facts)
    if isinstance(profiles, WayRefusal):
        return profiles
    return _resolved(Way.MIG, situation, facts, profiles)


def _divided_unequally(geometry: Geometry, situation: Situation, facts: GpuFacts) -> Candidate | WayRefusal:
    """The smallest MIG device for each tenant; then, from the largest tenant on, as much compute as the rest
    leaves room for.
    """
    choices = unequal_profiles(geometry, situation, facts)
    if isinstance(choices, WayRefusal):
        return choices
    chosen = [least for least, *_ in choices]
    found = _resolved(Way.MIG, situation, facts, tuple(chosen))
    if isinstance(found, WayRefusal):
        return found
    for place, profiles in enumerate(choices):
        for larger in reversed(profiles[1:]):
            tried = [*chosen[:place], larger, *chosen[place + 1 :]]
            better = _resolved(Way.MIG, situation, facts, tuple(tried))
            if isinstance(better, Candidate):
                found, chosen = better, tried
                break
    return found


def _shared_unequally(way: Way, situation: Situation, facts: GpuFacts) -> Candidate | WayRefusal:
    """Amounts of memory; or equal shares, if they hold the largest tenant and are guaranteed better."""
    equal = _resolved(way, replace(situation, sizes=()), facts, ())
    if situation.scheduler is Scheduler.SLURM:
        if isinstance(equal, Candidate):
            return equal
        why = "in Slurm a job says its part of a GPU itself, with --gres=mps:COUNT"
        return WayRefusal(way, why, "one --memory for all tenants, or --scheduler kubernetes")
    amounts = _resolved(way, situation, facts, ())
    if isinstance(equal, WayRefusal):
        return amounts
    if isinstance(amounts, WayRefusal) or amounts.share.guarantee.strength < equal.share.guarantee.strength:
        return equal
    return amounts


def _refused(way: Way, situation: Situation, facts: GpuFacts) -> WayRefusal | None:
    """What rules the strategy out before a policy is made."""
    tenants = situation.tenants
    match way:
        case Way.EXCLUSIVE if tenants > 1:
            return WayRefusal(
                way,
                f"one tenant has the whole GPU, and there are {tenants}",
                _gpus_for_each(situation, facts),
            )
        case Way.MPS | Way.TIME_SLICING if tenants == 1:
            return WayRefusal(way, "one tenant shares the GPU with nobody")
        case Way.VGPU if not situation.virtualised or not situation.licensed:
            missing = ("--virtualised", situation.virtualised), ("--licensed", situation.licensed)
            hint = " ".join(option for option, said in missing if not said)
            return WayRefusal(way, "vGPUs need virtual machines and a licence", hint)
        case Way.VGPU if situation.sizes:
            return WayRefusal(
                way, "the vGPUs of one GPU have one size, except in a mode of the hypervisor's own"
            )
        case Way.VGPU if facts.gpu.compute_capability < _MAXWELL:
            return WayRefusal(way, f"vGPUs take Maxwell or newer, and this is {facts.gpu.architecture}")
        case Way.MIG if facts.geometry is None:
            return WayRefusal(way, facts.no_geometry, "a GPU with MIG, such as an A30, A100, H100 or H200")
        case Way.MIG if _branch(facts.inventory) < facts.mig_branch:
            needed = f"MIG on {facts.model} takes a driver of branch {facts.mig_branch} or newer"
            return WayRefusal(way, needed, f"such a driver, with --driver {facts.mig_branch}")
    return None


def _gpus_for_each(situation: Situation, facts: GpuFacts) -> str:
    """Whether a GPU for each tenant would help."""
    if situation.largest_bytes > facts.gpu.memory_bytes:
        return LARGER
    return f"take {situation.tenants} GPUs"


def _branch(inventory: Inventory) -> int:
    assert isinstance(inventory.driver, Driver), "the node has a driver"
    return int(inventory.driver.version.partition(".")[0])


def _resolved(
    way: Way, situation: Situation, facts: GpuFacts, profiles: tuple[ProfileSpec, ...]
) -> Candidate | WayRefusal:
    """The proof: the policy is resolved on the GPU, and what it offers is compared with what is needed."""
    entry = _entry(way, situation, facts, profiles)
    inventory = _in_machine(facts.inventory, situation.tenants) if way is Way.VGPU else facts.inventory
    inventory = replace(inventory, restricted_mps=True)  # ``reasons`` says what that takes
    geometry = None if way is Way.VGPU else facts.geometry
    try:
        state = resolve(Policy(entries=(entry,)), inventory, lambda _: geometry)
    except (InputError, Unsatisfiable) as error:
        problem = error.problems[0]
        return WayRefusal(way, problem.message.removeprefix("GPU 0: "), problem.hint or FEWER_OR_NEWER)
    shares = ResolvedShares(
        promised(state.offer, state.watch_of, inventory, state.settings)[inventory.gpus[0].uuid]
    )
    count = situation.tenants if way is Way.VGPU else shares.count
    asks = _asks(situation.sizes, shares)
    if short := _short(situation, shares, count, asks, facts):
        return WayRefusal(way, *short)
    share = TenantShare(
        shares=count,
        resource=shares.rows[0].resource,
        memory_bytes=shares.memory_bytes,
        threads_percent=shares.rows[0].threads_percent if limits_clients(facts.gpu) else None,
        profile=str(profiles[0].profile) if len(set(profiles)) == 1 else None,
        guarantee=shares.guarantee,
        means=f"{shares.guarantee}: {_IN_MACHINE if way is Way.VGPU else shares.guarantee.means}",
        asks=asks,
    )
    return Candidate(way, entry, share)


def _short(
    situation: Situation, shares: ResolvedShares, count: int, asks: Sequence[Ask], facts: GpuFacts
) -> tuple[str, str] | None:
    """What the policy does not give of what is needed, and what would help."""
    product = facts.gpu.product
    if shares.by_memory and (asked := sum(ask.count for ask in asks)) > count:
        has, needed = format_bytes(count * shares.memory_bytes), format_bytes(asked * shares.memory_bytes)
        return f"{product} has {has} to share out, and the tenants need {needed}", fewer_or_larger(
            situation, facts
        )
    if count < situation.tenants:
        return f"the policy offers {count_of(count, 'share')} on {product}", ""
    each = None if situation.sizes else situation.memory_bytes
    if each is not None and shares.memory_bytes < each:
        has, needed = format_bytes(shares.memory_bytes), format_bytes(each)
        return f"a share has {has}, and a tenant needs {needed}", fewer_or_larger(situation, facts)
    if shares.guarantee.strength < situation.isolation.least.strength:
        least = situation.isolation.least
        why = f"the memory of its shares is '{shares.guarantee}', and '{least}' is needed"
        unequal = shares.rows[0].traits.through_daemon and shares.by_memory and _no_namespaces(facts)
        return why, f"less isolation{f'; {unequal}' if unequal else ''}"
    return None


def _asks(sizes: Sequence[int], shares: ResolvedShares) -> tuple[Ask, ...]:
    """What tenants of these sizes ask for: so many units, or the MIG device that was chosen for each."""
    if not sizes:
        return ()
    if shares.by_memory:
        resource, unit = shares.rows[0].resource, shares.memory_bytes
        return tuple(Ask(needed, resource, count := -(-needed // unit), count * unit) for needed in sizes)
    largest_first = sorted(shares.rows, key=lambda row: row.memory_bytes, reverse=True)
    each = [row for row in largest_first for _ in range(row.count)]
    return tuple(
        Ask(needed, row.resource, 1, row.memory_bytes) for needed, row in zip(sizes, each, strict=False)
    )


def _entry(way: Way, situation: Situation, facts: GpuFacts, profiles: tuple[ProfileSpec, ...]) -> GpuEntry:
    items = tuple(LayoutItem(profile.profile) for profile in profiles)
    return GpuEntry(
        origin="gpus[0]",
        # A GPU inside of a virtual machine has the name of its vGPU type, which only the hypervisor knows.
        select=RemainingGpus() if way is Way.VGPU else GpuCriteria(model=facts.names),
        sharing=_sharing(way, situation, facts),
        mig=DesiredMig(items=items) if items else None,
    )


def _sharing(way: Way, situation: Situation, facts: GpuFacts) -> Sharing:
    units = MemoryUnits(UNIT_BYTES) if situation.sizes else None
    replicas = 0 if units else situation.tenants
    match way:
        case Way.MPS:
            return Mps(replicas, units=units, protocol=3 if units and not _no_namespaces(facts) else 2)
        case Way.TIME_SLICING:
            prefer = situation.prefer
            return TimeSlicing(replicas, None if prefer is None else _INTERVALS[prefer], units)
        case _:
            return Exclusive()


def _no_namespaces(facts: GpuFacts) -> str:
    """Why unequal shares under MPS cannot each have a limit that the daemon holds; empty if they can."""
    return no_namespaces(facts.gpu, facts.inventory.driver, mig=False)


def _in_machine(inventory: Inventory, tenants: int) -> Inventory:
    """What one of the virtual machines sees: a GPU without MIG, with an equal part of the memory."""
    gpu = inventory.gpus[0]
    part = gpu.memory_bytes // tenants // MIB * MIB
    return replace(inventory, gpus=(replace(gpu, memory_bytes=part, mig_mode=None),))

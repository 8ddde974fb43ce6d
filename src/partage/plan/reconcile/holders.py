"""What a policy wants of every GPU under MIG, and what has to be wanted to have things as they were."""

from __future__ import annotations

from collections.abc import Iterable

from partage.model.allocation import ContainerHold
from partage.model.gpu import Inventory
from partage.model.ids import ShareId
from partage.model.policy import DesiredMig, MigStrategy, Policy
from partage.model.step import GpuUse, UseKind
from partage.plan.offer.findings import Findings
from partage.plan.offer.select import GeometryOf, select
from partage.plan.serve.ledger import Entry

NOT_NAMED = "(not named yet)"
"""A pod that was given a share, and of which the kubelet has not yet said which it is."""


def wishes_of(policy: Policy, inventory: Inventory, geometry_of: GeometryOf) -> dict[str, DesiredMig]:
    """The MIG layout, or none, that each GPU shall have, by UUID; GPUs that nobody says anything of are
    left alone, and so are all under MIG strategy ``none``.

    Raises InputError for what ``plan.offer.assign`` says better: judge the policy there first.
    """
    findings = Findings(policy.source)
    owners = select(policy, inventory, geometry_of, findings)
    findings.raise_any()
    wishes = {uuid: entry.mig for uuid, entry in owners.items() if entry.mig is not None}
    if policy.options.mig_strategy is MigStrategy.NONE:
        return {uuid: wish for uuid, wish in wishes.items() if not wish.enabled}
    return wishes


def pod_uses(held: Iterable[ContainerHold], inventory: Inventory) -> tuple[GpuUse, ...]:
    """What pods hold, as uses of GPUs and MIG devices; whatever else they hold is left out."""
    return _uses(((f"{row.namespace}/{row.pod}", share) for row in held for share in row.ids), inventory)


def entry_uses(entries: Iterable[Entry], inventory: Inventory) -> tuple[GpuUse, ...]:
    """The same of what a ledger says. Several names for one id: it is held by one of them."""
    named = (
        (" or ".join(f"{one.namespace}/{one.pod}" for one in entry.holders) or NOT_NAMED, entry.id)
        for entry in entries
    )
    return _uses(named, inventory)


def _uses(held: Iterable[tuple[str, str]], inventory: Inventory) -> tuple[GpuUse, ...]:
    """held: pairs of a pod's name and the id of a share."""
    homes: dict[str, str] = {}
    for gpu in inventory:
        homes[gpu.uuid] = gpu.uuid
        homes |= {device.uuid: gpu.uuid for device in gpu.mig_devices}
    uses: dict[GpuUse, None] = {}
    for name, share in held:
        device = ShareId.parse(share).device
        if (home := homes.get(device)) is not None:
            uses[GpuUse(home, UseKind.POD, name, device=None if device == home else device)] = None
    return tuple(uses)

"""What a policy wants of every GPU under MIG, and what has to be wanted to have things as they were."""

from __future__ import annotations

from collections.abc import Iterable

from partage.model.answer import HeldBy
from partage.model.gpu import Inventory
from partage.model.ids import ShareId
from partage.model.policy import MigStrategy, MigWish, Policy
from partage.model.step import Use, UseKind
from partage.plan.findings import Findings
from partage.plan.select import GeometryOf, select


def wishes_of(policy: Policy, inventory: Inventory, geometry_of: GeometryOf) -> dict[str, MigWish]:
    """The MIG layout, or none, that each GPU shall have, by UUID; GPUs that nobody says anything of are
    left alone, and so are all under MIG strategy ``none``.

    Raises InputError for what ``plan.assign`` says better: judge the policy there first.
    """
    findings = Findings(policy.source)
    owners = select(policy, inventory, geometry_of, findings)
    findings.raise_any()
    wishes = {uuid: entry.mig for uuid, entry in owners.items() if entry.mig is not None}
    if policy.options.mig_strategy is MigStrategy.NONE:
        return {uuid: wish for uuid, wish in wishes.items() if not wish.enabled}
    return wishes


def pod_uses(held: Iterable[HeldBy], inventory: Inventory) -> tuple[Use, ...]:
    """What pods hold, as uses of GPUs and MIG devices; whatever else they hold is left out."""
    homes: dict[str, str] = {}
    for gpu in inventory:
        homes[gpu.uuid] = gpu.uuid
        homes |= {device.uuid: gpu.uuid for device in gpu.mig_devices}
    uses = []
    for row in held:
        for device in dict.fromkeys(ShareId.parse(share).device for share in row.ids):
            if (home := homes.get(device)) is not None:
                part = None if device == home else device
                uses.append(Use(home, UseKind.POD, f"{row.namespace}/{row.pod}", device=part))
    return tuple(dict.fromkeys(uses))

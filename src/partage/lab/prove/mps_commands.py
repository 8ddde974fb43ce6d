"""MPS: a tenant that gives commands to the daemon whose pipe it has.

Only against a simulated daemon, which answers as NVIDIA's programs do: a daemon that is there is left alone.
"""

from __future__ import annotations

from partage.lab.prove.attack import attack
from partage.lab.prove.model import AttackOutcome, kept
from partage.lab.prove.mps_memory import is_mps
from partage.lab.prove.mps_tenants import OTHER_UID
from partage.lab.prove.outcomes import (
    above_limit,
    allocated_words,
    allocation_outcome,
    limit_avoided,
    was_limited,
)
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, ExperimentStage, allocate_in_pieces
from partage.model.share import Guarantee
from partage.units import MIB


def _has_whole_pipe(share: PromisedShare) -> bool:
    """Its containers have the daemon's own sockets, not only those of a namespace."""
    return is_mps(share) and not share.offering.pipe


def _raises(stage: ExperimentStage, servers: list[str]) -> list[str]:
    """Commands that lift the limit of all servers, and of those that come."""
    all_of_it = f"0 {stage.share.device_bytes // MIB}M"
    own = [f"set_device_pinned_mem_limit {server} {all_of_it}" for server in servers]
    return [f"set_default_device_pinned_mem_limit {all_of_it}", *own]


@attack(
    "mps-command-as-user", "MPS", Guarantee.GUARDED, AttackNeed.ROOT, AttackNeed.COMMANDS,
    promised="Since driver branch 550 a user that is not root changes no limit of a server of root.",
    tried=f"User {OTHER_UID} lifts all limits through the daemon's socket; then a tenant allocates.",
    on=_has_whole_pipe,
)  # fmt: skip
async def _as_user(stage: ExperimentStage) -> AttackOutcome:
    most = above_limit(stage.share.largest_bytes, stage.share.device_bytes)
    for command in _raises(stage, await stage.servers()):
        await stage.tell(command, OTHER_UID)
    got = await allocate_in_pieces(await stage.tenant(), stage.share.largest_bytes, most)
    return allocation_outcome(got, stage.share.largest_bytes, "the limit of the daemon")


@attack(
    "mps-command-as-root", "MPS", Guarantee.GUARDED, AttackNeed.ROOT, AttackNeed.COMMANDS,
    promised=(
        "Root in a container changes every limit. So a share is guarded only while no process that has the "
        "pipe is root or can become root."
    ),
    tried="Root lifts all limits through the daemon's socket, a tenant allocates, and they are set back.",
    on=_has_whole_pipe,
)  # fmt: skip
async def _as_root(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    most = above_limit(share.largest_bytes, share.device_bytes)
    for command in _raises(stage, await stage.servers()):
        await stage.tell(command)
    got = await allocate_in_pieces(await stage.tenant(), share.largest_bytes, most)
    if was_limited(got, share.largest_bytes):
        return kept(f"{allocated_words(got)}: the daemon did not obey")
    return limit_avoided(share, f"{allocated_words(got)}, over the limit of the daemon")


ATTACKS = (_as_user, _as_root)

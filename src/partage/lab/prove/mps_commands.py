"""MPS: a tenant that works beside the daemon, gives commands to the daemon whose pipe it has, or keeps others
from giving any; which clients a fatal fault ends, and when new ones are served again.
"""

from __future__ import annotations

import asyncio

from partage.lab.place import TenantMode
from partage.lab.prove.attack import (
    above_limit,
    allocated_words,
    allocation_outcome,
    attack,
    limit_avoided,
    make_fault,
    new_client,
    require_working,
    was_limited,
)
from partage.lab.prove.model import AttackOutcome, broken, kept
from partage.lab.prove.mps_memory import is_mps
from partage.lab.prove.mps_tenants import OTHER_UID
from partage.lab.prove.share import PromisedShare
from partage.lab.prove.stage import AttackNeed, CannotTry, ExperimentStage, allocate_in_pieces
from partage.lab.tenant import OK, NotConnected, TenantFailed
from partage.model.share import Guarantee
from partage.units import MIB, format_bytes


@attack(
    "mps-without-pipe", "MPS", Guarantee.GUARDED, AttackNeed.GPU,
    promised=(
        "In exclusive-process mode a tenant that does not use the daemon gets no context; in default mode it "
        "has all of the GPU, and the share is advisory."
    ),
    tried="A tenant sets CUDA_MPS_PIPE_DIRECTORY to a directory without a daemon, while a client works.",
    on=is_mps,
)  # fmt: skip
async def _no_pipe(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    mode = "exclusive-process mode" if share.exclusive else "default mode"
    most = above_limit(share.bytes, share.device_bytes)
    # Exclusive-process mode lets the first process in, so a server has to have the GPU.
    await stage.tenant()
    try:
        bypassing = await stage.tenant(mode=TenantMode.ALONE)
    except NotConnected as refused:
        return kept(f"it got no context ({refused}); the GPU is in {mode}")
    got = await allocate_in_pieces(bypassing, share.bytes, most)
    if was_limited(got, share.bytes):
        return kept(f"{allocated_words(got)}: something else than the daemon limits it")
    return limit_avoided(
        share, f"{allocated_words(got)}, over {format_bytes(share.bytes)}; the GPU is in {mode}"
    )


def _has_whole_pipe(share: PromisedShare) -> bool:
    """Its containers have the daemon's own sockets, not only those of a namespace."""
    return is_mps(share) and not share.offering.pipe


async def _set_limit(stage: ExperimentStage, limit_bytes: int, uid: int | None = None) -> None:
    """A user's commands that set the limit of all servers, and of those that come. uid: None: this user."""
    limit = f"0 {limit_bytes // MIB}M"
    servers = await stage.servers()
    await stage.tell(f"set_default_device_pinned_mem_limit {limit}", uid)
    for server in servers:
        await stage.tell(f"set_device_pinned_mem_limit {server} {limit}", uid)


@attack(
    "mps-command-as-user", "MPS", Guarantee.GUARDED, AttackNeed.ROOT, AttackNeed.COMMANDS,
    promised="Since driver branch 550 a user that is not root changes no limit of a server of root.",
    tried=f"User {OTHER_UID} lifts all limits through the daemon's socket; then a tenant allocates.",
    on=_has_whole_pipe,
)  # fmt: skip
async def _as_user(stage: ExperimentStage) -> AttackOutcome:
    most = above_limit(stage.share.largest_bytes, stage.share.device_bytes)
    await _set_limit(stage, stage.share.device_bytes, OTHER_UID)
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
    await _set_limit(stage, share.device_bytes)
    try:
        got = await allocate_in_pieces(await stage.tenant(), share.largest_bytes, most)
    finally:
        await _set_limit(stage, share.largest_bytes)
    if was_limited(got, share.largest_bytes):
        return kept(f"{allocated_words(got)}: the daemon did not obey")
    return limit_avoided(share, f"{allocated_words(got)}, over the limit of the daemon")


_PATIENCE = 5
"""How many times as long as before the daemon may take before it counts as held."""
_AGAIN_S = 20.0


@attack(
    "mps-hold-connection", "MPS", Guarantee.GUARDED, AttackNeed.ROOT, AttackNeed.COMMANDS,
    promised=(
        "A process that keeps the daemon's connection changes no limit. Clients that are there work on. "
        "Commands and new clients wait until it has gone."
    ),
    tried=(
        f"User {OTHER_UID} connects to the daemon's socket and says nothing. The daemon is asked, a new "
        "client comes, and a client of before allocates."
    ),
    on=_has_whole_pipe,
)  # fmt: skip
async def _hold(stage: ExperimentStage) -> AttackOutcome:
    limit_bytes = stage.share.largest_bytes
    most = above_limit(limit_bytes, stage.share.device_bytes)
    tenant = await stage.tenant()
    clock = asyncio.get_running_loop()
    asked_s = clock.time()
    await stage.others()
    patience_s = 1.0 + _PATIENCE * (clock.time() - asked_s)
    async with stage.daemon.held(OTHER_UID):
        answers = await stage.daemon.answers(patience_s)
        new = await new_client(stage)
        outcome = allocation_outcome(
            await allocate_in_pieces(tenant, limit_bytes, most), limit_bytes, "the limit of the daemon"
        )
    text = "answered all the same" if answers else "answered nobody"
    seen = f"the daemon {text}; a new client {new} meanwhile; a client of before: {outcome.seen}"
    if not await stage.daemon.answers(_AGAIN_S):
        return broken(f"{seen}; the daemon did not answer after the process had gone, either")
    return AttackOutcome(outcome.verdict, f"{seen}; the daemon answered again after the process had gone")


_SERVED_AGAIN_S, _PAUSE_S = 20.0, 0.05


@attack(
    "mps-neighbours-fault", "MPS", Guarantee.GUARDED, AttackNeed.FAULTS,
    promised=(
        "A fatal fault ends all clients of the GPU, and new ones are refused until all have gone; then new "
        "ones are served again. No other GPU is touched."
    ),
    tried="A tenant's kernel writes to an invalid address beside a neighbour; a new client comes; all leave.",
    on=is_mps,
)  # fmt: skip
async def _fault(stage: ExperimentStage) -> AttackOutcome:
    faulting, neighbour = await stage.tenant(), await stage.tenant()
    require_working(await faulting.attempt("launch"), await neighbour.attempt("launch"))
    await make_fault(faulting)
    after = await neighbour.attempt("launch")
    new = await new_client(stage)
    await stage.end()
    hit = "the neighbour worked on" if after == OK else f"the neighbour failed, too ({after})"
    seen = f"{hit}; a new client {new} meanwhile"
    again = await _served_again(stage)
    if again != OK:
        return broken(f"{seen}; after all had gone no new one was served for {_SERVED_AGAIN_S:g} s: {again}")
    return kept(f"{seen}; after all had gone a new one was served")


async def _served_again(stage: ExperimentStage) -> str:
    """``ok`` once a new client works; the answer to the last one where none does in time."""
    end = asyncio.get_running_loop().time() + _SERVED_AGAIN_S
    while True:
        try:
            answer = await (await stage.tenant()).attempt("launch")
        except (TenantFailed, CannotTry) as error:
            answer = str(error)
        await stage.end()
        if answer == OK or asyncio.get_running_loop().time() > end:
            return answer
        await asyncio.sleep(_PAUSE_S)


ATTACKS = (_no_pipe, _as_user, _as_root, _hold, _fault)

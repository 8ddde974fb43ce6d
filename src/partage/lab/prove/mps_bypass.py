"""MPS: a tenant that works beside the daemon."""

from __future__ import annotations

from partage.lab.place import TenantMode
from partage.lab.prove.attack import Attack
from partage.lab.prove.model import AttackOutcome, kept
from partage.lab.prove.mps_memory import is_mps
from partage.lab.prove.outcomes import NO_ROOM, amount, beyond, got_around, was_held
from partage.lab.prove.stage import AttackNeed, ExperimentStage, fill
from partage.lab.tenant import NotConnected
from partage.model.share import Guarantee
from partage.units import format_bytes


async def _no_pipe(stage: ExperimentStage) -> AttackOutcome:
    share = stage.share
    mode = "exclusive-process mode" if share.exclusive else "default mode"
    most = beyond(share.bytes, share.device_bytes)
    if most is None:
        return NO_ROOM
    # Exclusive-process mode lets the first process in, so a server has to have the GPU.
    await stage.tenant()
    try:
        stranger = await stage.tenant(mode=TenantMode.ALONE)
    except NotConnected as refused:
        return kept(f"it got no context ({refused}); the GPU is in {mode}")
    got = await fill(stranger, share.bytes, most)
    if was_held(got, share.bytes):
        return kept(f"{amount(got)}: something else than the daemon holds it")
    return got_around(share, f"{amount(got)}, over {format_bytes(share.bytes)}; the GPU is in {mode}")


ATTACKS = (
    Attack(
        "mps-without-pipe",
        "MPS",
        Guarantee.GUARDED,
        "In exclusive-process mode a tenant that does not use the daemon gets no context; in default mode it "
        "has all of the GPU, and the share is advisory.",
        "A tenant sets CUDA_MPS_PIPE_DIRECTORY to a directory without a daemon, while a client works.",
        is_mps,
        _no_pipe,
        frozenset({AttackNeed.GPU}),
    ),
)

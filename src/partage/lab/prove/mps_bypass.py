"""MPS: a tenant that works beside the daemon."""

from __future__ import annotations

from partage.lab.place import TenantMode
from partage.lab.prove.attack import attack
from partage.lab.prove.model import AttackOutcome, kept
from partage.lab.prove.mps_memory import is_mps
from partage.lab.prove.outcomes import above_limit, allocated_words, limit_avoided, was_limited
from partage.lab.prove.stage import AttackNeed, ExperimentStage, allocate_in_pieces
from partage.lab.tenant import NotConnected
from partage.model.share import Guarantee
from partage.units import format_bytes


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


ATTACKS = (_no_pipe,)

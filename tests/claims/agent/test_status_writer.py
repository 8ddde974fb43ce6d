"""What of the statuses of claims is written: what they have at last, and nothing of those that have ended."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from typing import Any

from msgspec.structs import replace

from partage.claims.agent.afterwards import ClaimStatusWriter
from partage.claims.model.grant import ClaimRecord
from partage.edges.kube.connection import Connection
from partage.edges.kube.resources import ResourceApi
from partage.model.share import Guarantee
from tests.claims.test_files import done
from tests.edges.kube.store import claims_path, object_store
from tests.kubelet_script import until


def with_guarantee(record: ClaimRecord, guarantee: Guarantee) -> ClaimRecord:
    return replace(record, shares=tuple(replace(share, guarantee=guarantee) for share in record.shares))


async def test_only_the_last_is_written_and_nothing_of_a_claim_that_has_ended() -> None:
    async with object_store() as store:
        kept, ended, known = done("kept"), done("ended"), done("known")
        for record in (kept, ended, known):
            ref = record.claim
            metadata = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
            store.put(claims_path(ref.namespace), {"metadata": metadata, "spec": {}, "status": {}})
        quiet = asyncio.Event()

        async def until_quiet() -> None:
            await quiet.wait()

        def patched() -> list[str]:
            paths = [request.path for request in store.server.requests if request.method == "PATCH"]
            return [path.split("/")[-2] for path in paths]

        def guarantee() -> Any:
            status = store.objects[claims_path("team-a")]["kept"]["status"]
            return status["devices"][0]["data"]["guarantee"] if "devices" in status else None

        with closing(Connection(store.server.config(), keep=True)) as connection:
            writer = ClaimStatusWriter(ResourceApi(connection), "gpu.partage.dev", until_quiet)
            task = asyncio.create_task(writer.run())
            writer.say(ended)
            writer.say(kept)
            writer.say(with_guarantee(kept, Guarantee.NONE), kept)
            writer.say(known, known)
            writer.forget(ended.claim.uid)
            quiet.set()
            await until(lambda: guarantee() == "none", what="the last guarantee")
            writer.say(kept, kept)
            await until(lambda: guarantee() == "guarded", what="what was promised, again")
            assert patched() == ["kept", "kept"]
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

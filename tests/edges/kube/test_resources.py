"""ResourceSlices and ResourceClaims: what is asked of the API server."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest

from partage.edges.kube.connection import Connection
from partage.edges.kube.resources import NodeOwner, ResourceApi, SliceObject
from partage.errors import Absent, Conflict
from tests.edges.kube.scripted import Answer, Request, quick
from tests.edges.kube.store import claims_path, object_store

OWNER = NodeOwner("n1", "uid-n1")


def spec(node: str = "n1", driver: str = "gpu.partage.dev") -> dict[str, object]:
    pool = {"name": f"{node}-partage", "generation": 1, "resourceSliceCount": 1}
    return {"driver": driver, "nodeName": node, "pool": pool, "not": {"known": ["here", None]}}


async def test_slices_are_written_as_they_are_and_never_over_another_version() -> None:
    async with object_store() as store:
        api = ResourceApi(Connection(store.server.config(), quick))
        made = await api.create_slice("00000-n1-", OWNER, spec())
        await api.create_slice("00000-n2-", OWNER, spec("n2"))
        await api.create_slice("00001-n1-", OWNER, spec(driver="gpu.nvidia.com"))
        assert await api.slices("n1", "gpu.partage.dev") == (made,)
        assert made.spec == spec()
        changed = await api.replace_slice(made, OWNER, {**spec(), "devices": []})
        with pytest.raises(Conflict):
            await api.replace_slice(made, OWNER, spec())
        with pytest.raises(Conflict):
            await api.delete_slice(made)
        await api.delete_slice(changed)
        with pytest.raises(Absent):
            await api.delete_slice(changed)
        assert await api.slices("n1", "gpu.partage.dev") == ()
        assert await api.server_version() == "v1.37.2"


@pytest.mark.parametrize("name", ["../../n1", "a/b", "c?x=1#y", "%2e%2e", "é\r\nHost: x"])
async def test_a_hostile_name_stays_one_part_of_the_path(name: str) -> None:
    async with object_store() as store:
        paths: list[str] = []

        def note(request: Request) -> Answer | None:
            paths.append(request.path)
            return None

        store.refuse = note
        api = ResourceApi(Connection(store.server.config(), quick))
        with pytest.raises(Absent):
            await api.claim(name, name)
        (path,) = paths
        parts = path.split("/")
        assert parts[1:5] == ["apis", "resource.k8s.io", "v1", "namespaces"]
        assert [unquote(parts[5]), parts[6], unquote(parts[7])] == [name, "resourceclaims", name]
        assert len(parts) == 8


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_name_that_is_no_part_of_a_path_is_not_asked_for(name: str) -> None:
    async with object_store() as store:
        api = ResourceApi(Connection(store.server.config(), quick))
        asked: list[Request] = []
        store.refuse = asked.append
        for namespace, claim in ((name, "c"), ("team", name)):
            with pytest.raises(Absent):
                await api.claim(namespace, claim)
        with pytest.raises(Absent):
            await api.delete_slice(SliceObject(name, spec={}))
        assert asked == []


async def test_what_a_claim_has_is_applied_by_one_manager() -> None:
    async with object_store() as store:
        store.put(claims_path("team"), {"metadata": {"name": "c"}, "status": {}})
        patches: list[Request] = []
        store.refuse = lambda request: patches.append(request) if request.method == "PATCH" else None
        api = ResourceApi(Connection(store.server.config(), quick))
        row = {"driver": "gpu.partage.dev", "pool": "n1-partage", "device": "gpu-1"}
        await api.say_devices("team", "c", "uid-c", [row], "partage")
        (patch,) = patches
        assert patch.headers["content-type"] == "application/apply-patch+yaml"
        assert patch.query == {"fieldManager": "partage", "force": "true"}
        assert patch.json["metadata"] == {"name": "c", "namespace": "team", "uid": "uid-c"}
        assert json.loads(await api.claim("team", "c"))["status"] == {"devices": [row]}

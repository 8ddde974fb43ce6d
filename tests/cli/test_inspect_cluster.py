"""``partage inspect`` of a cluster: pods of other systems with what they asked for."""

import asyncio
import json

import pytest

from partage.cli.main import run
from tests.edges.kube.scripted import status
from tests.explain.test_explain_cluster import Api, a_node, a_pod

MEMORY = {
    "cards": [{"index": 0, "total": 79, "used": 50, "unitBytes": 2**30}],
    "pods": [
        {"namespace": "a", "name": "plain", "units": [10]},
        {"namespace": "a", "name": "theirs", "units": [40]},
    ],
}
WORDS = "HAMi: main nvidia.com/gpu=1 nvidia.com/gpumem=40000"


class NoPods(Api):
    def answer(self, request):
        return status(403, "Forbidden", "no") if "/pods" in request.path else super().answer(request)


def api(kind=Api):
    theirs = a_pod("theirs", "n1", {})
    theirs["metadata"]["annotations"] = {"partage.dev/translated": WORDS}
    node = a_node("n1", {}, annotations={"partage.dev/gpu-memory": json.dumps(MEMORY)})
    return kind([node], [a_pod("plain", "n1", {}), theirs])


async def inspected(capsys, tmp_path, served, *words):
    async with served.served(tmp_path) as config:
        assert await asyncio.to_thread(run, ["inspect", *words, config]) == 0
    return capsys.readouterr()


async def test_a_pod_of_another_system_has_its_words_beside_its_amount(capsys, tmp_path):
    lines = (await inspected(capsys, tmp_path, api(), "--cluster", "-d")).out.splitlines()
    table = lines[lines.index("") + 1 :][:3]
    assert [line.split(maxsplit=3) for line in table] == [
        ["NAME", "NAMESPACE", "GPU0(Allocated)", "WRITTEN FOR"],
        ["plain", "a", "10", "-"],
        ["theirs", "a", "40", WORDS],
    ]


@pytest.mark.parametrize(("kind", "words"), [(NoPods, ["-d"]), (Api, [])])
async def test_the_shape_is_gpushares_where_no_words_are_known(capsys, tmp_path, kind, words):
    seen = await inspected(capsys, tmp_path, api(kind), "--cluster", *words)
    assert "WRITTEN FOR" not in seen.out
    assert ("not known" in seen.err) is (kind is NoPods)

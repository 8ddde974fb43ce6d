"""Scenarios for pods of other systems that were let in as pods with claims.

The webhook's translation, the choice of the scheduler and the answer of the node are the functions that run
in a cluster; what they do together on a real Kubernetes is in ``tests/e2e``.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from time import process_time
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.admission.decide.pod import patched
from partage.admission.decide.template import sizes_of
from partage.admission.decide.translate import AdmissionTerms, translate
from partage.claims.decide.allocation import grant
from partage.claims.decide.book import Taking, book_of_offer
from partage.claims.decide.classes import chart_classes
from partage.claims.decide.scheduling import Placed, PodClaim, Unplaced, allocated, place
from partage.claims.decide.slices import slices_of
from partage.claims.manifests import ClaimObjectReader
from partage.claims.model.grant import Granted
from partage.claims.model.slices import ServerVersion
from partage.codec.values import encode
from partage.edges.files.catalogue import geometry_of
from partage.model.share import DeviceOffer
from partage.scheduler.protocol import BEST
from partage.units import GIB, MIB
from tests.admission.pods import container, pod, translated
from tests.claims.agent.test_claims_of_node import dra_node
from tests.claims.offers import amounts, devices, machine, offers, slices
from tests.edges.kube.store import claims_path
from tests.scheduler.feeding import Fed
from tests.scheduler.objects import MEMORY
from tests.scheduler.objects import claim as claim_object
from tests.scheduler.objects import device as device_object
from tests.scheduler.objects import node as node_object
from tests.scheduler.objects import pod as pod_object
from tests.scheduler.objects import slices as slices_object

CLASSES = chart_classes()
CHART = Path(__file__).parents[1] / "deploy" / "rendered" / "all.yaml"
GPUMEM = "nvidia.com/gpumem"


class Cluster:
    """One node, its scheduler, and what its agent has prepared."""

    def __init__(self, *rows: DeviceOffer) -> None:
        self.book = book_of_offer(offers(*rows), machine(*rows), "node-a", geometry_of)
        self.terms = AdmissionTerms(sizes=sizes_of(self.book.devices))
        self.bound: dict[str, tuple[PodClaim, Placed]] = {}
        self.granted: list[Granted] = []

    def bind(self, document: dict[str, Any], name: str) -> list[str]:
        """The claims of the pod, allocated; [] where they find no place."""
        outcome = translated(document, self.terms)
        asked = [
            PodClaim(f"{name}/{claim.name}", ClaimObjectReader(claim.form.manifest()).spec(), "team")
            for claim in outcome.claims
        ]
        placed = place(asked, self.book, CLASSES)
        if isinstance(placed, Unplaced):
            return []
        new = tuple(Taking(got.device.key, got.claim, (), got.amounts) for got in placed.given)
        self.book = replace(self.book, takings=(*self.book.takings, *new))
        for claim in asked:
            mine = tuple(got for got in placed.given if got.claim == claim.name)
            self.bound[claim.name] = claim, replace(placed, given=mine)
        return [claim.name for claim in asked]

    def delete(self, claim: str) -> None:
        del self.bound[claim]
        takings = tuple(taking for taking in self.book.takings if taking.who != claim)
        self.book = replace(self.book, takings=takings)

    def prepare(self, claim: str) -> Granted:
        """The node's answer."""
        asked, placed = self.bound[claim]
        written = allocated(asked, placed.given, CLASSES)
        assert self.book.served is not None
        answer = grant(written, written.ref, self.book.served, self.granted)
        assert isinstance(answer, Granted), answer
        self.granted.append(answer)
        return answer

    def gpus(self, claim: str) -> list[str]:
        """The GPUs that the claim names."""
        return [got.device.gpu for got in self.bound[claim][1].given]

    def sums(self) -> dict[str, Decimal]:
        """Memory in use of each GPU."""
        found: dict[str, Decimal] = {}
        for taking in self.book.takings:
            found[taking.device[2]] = found.get(taking.device[2], Decimal(0)) + taking.amounts["memory"]
        return found


def gpus_of(granted: Granted) -> list[str]:
    return sorted({str(share.gpu) for share in granted.shares})


@given(st.permutations(range(10)))
def test_scenario_01_ten_equal_translated_pods_have_the_gpus_that_their_claims_name(order: list[int]) -> None:
    cluster = Cluster(*(amounts(number) for number in range(4)))
    asking = pod(container({"nvidia.com/gpu": 1, GPUMEM: 20000}))
    claims = [claim for number in range(10) for claim in cluster.bind(asking, f"p{number}")]
    assert len(claims) == 10
    for number in order:
        assert gpus_of(cluster.prepare(claims[number])) == cluster.gpus(claims[number])
    assert all(used <= 79 * GIB for used in cluster.sums().values())
    assert sum(cluster.sums().values()) == 10 * 20 * GIB


def test_scenario_03_two_containers_a_sidecar_and_an_init_container_have_a_claim_each_of_their_size() -> None:
    sizes = {"main": 30000, "side": 2000, "warm": 30000, "log": 1000}
    document = pod(
        container({"nvidia.com/gpu": 1, GPUMEM: sizes["main"]}),
        container({"nvidia.com/gpu": 1, GPUMEM: sizes["side"]}, name="side"),
        initContainers=[
            container({"nvidia.com/gpu": 1, GPUMEM: sizes["log"]}, name="log", restartPolicy="Always"),
            container({"nvidia.com/gpu": 1, GPUMEM: sizes["warm"]}, name="warm"),
        ],
    )
    cluster = Cluster(amounts(0))
    asked = translated(document, cluster.terms)
    users = [[user.name for user in claim.containers] for claim in asked.claims]
    assert sorted(map(sorted, users)) == [["log"], ["main", "warm"], ["side"]], "an init container has ended"
    claims = cluster.bind(document, "p")
    given = {tuple(names): cluster.prepare(claim) for names, claim in zip(users, claims, strict=True)}
    for names, granted in given.items():
        assert sum(share.memory_bytes for share in granted.shares) == -(-sizes[names[0]] // 1024) * GIB
    assert sum(cluster.sums().values()) == (30 + 2 + 1) * GIB, "the init container's counts once"


async def test_scenario_04_a_claim_of_a_pod_that_was_deleted_before_it_was_prepared_holds_nothing() -> None:
    async with dra_node() as node:
        await node.until(lambda: node.device(0), "the device")
        bound = node.amount("bound", "79Gi")
        node.store.remove(claims_path("team"), bound.name)
        assert await node.refusal(node.amount("next", "79Gi")) == ""


def test_scenario_05_memory_times_count_is_what_the_claim_takes() -> None:
    cluster = Cluster(*(slices(number) for number in range(3)))
    (claim,) = cluster.bind(pod(container({"nvidia.com/gpu": 3, GPUMEM: 3072})), "p")
    assert len({*cluster.gpus(claim)}) == 3
    assert cluster.sums() == dict.fromkeys(cluster.sums(), Decimal(3 * GIB))
    assert len(cluster.sums()) == 3


def test_scenario_06_a_percentage_is_of_the_gpu_that_it_is_taken_of() -> None:
    cluster = Cluster(amounts(0, 23), amounts(1, 79))
    half = pod(container({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}))
    claims = [claim for number in range(4) for claim in cluster.bind(half, f"p{number}")]
    given = [cluster.prepare(claim) for claim in claims]
    memory = [sum(share.memory_bytes for share in granted.shares) // GIB for granted in given]
    assert memory == [11, 11, 39, 39]
    large = pod(container({"nvidia.com/gpu": 1, GPUMEM: 30000}))
    assert cluster.bind(large, "large") == [], "what is left of the small GPU is not offered as a large one's"


def test_scenario_07_of_gpus_in_units_of_a_mebibyte_the_list_is_as_short_as_of_any() -> None:
    def published(unit: int) -> tuple[int, int]:
        rows = [amounts(number, 80 * GIB // unit, unit) for number in range(8)]
        made = slices_of(devices(*rows), machine(*rows), {}, ServerVersion(1, 37, 2), geometry_of)
        return sum(len(one.devices) for one in made), sum(len(encode(one)) for one in made)

    count, length = published(MIB)
    assert count == 8
    assert length < 32 * 1024
    assert abs(length - published(GIB)[1]) < 256
    cluster = Cluster(*(amounts(number, 80 * 1024, MIB) for number in range(8)))
    (claim,) = cluster.bind(pod(container({"nvidia.com/gpu": 1, GPUMEM: 3001})), "p")
    assert cluster.sums() == {cluster.bound[claim][1].given[0].device.device.name: Decimal(3001 * MIB)}


def fed(*names: str, claims: list[Any], pods: list[Any]) -> Fed:
    found = Fed()
    found.start(
        nodes=[node_object(name) for name in names],
        slices=[slices_object(name, [device_object(0)]) for name in names],
        claims=claims,
        pods=pods,
    )
    return found


HALF = claim_object("mine", 1, MEMORY // 2)
WAITS = pod_object("w", 4000, claims=["mine"])


def test_scenario_10_what_is_taken_on_node10_is_free_on_node1() -> None:
    names = ["node1", "node10", "node100"]
    there = claim_object("all", 1, MEMORY, given={"node10": ["gpu-0"]}, consumed={"memory": MEMORY})
    holder = pod_object("b", 4000, claims=["all"], on="node10")
    ranks = fed(*names, claims=[HALF, there], pods=[holder, WAITS]).ranks(WAITS, names)
    assert ranks["node1"] == ranks["node100"] == BEST
    assert ranks["node10"] == 0


def test_scenario_17_where_a_device_plugin_has_the_plain_name_it_keeps_its_pods_and_gets_no_others() -> None:
    terms = AdmissionTerms(listed=frozenset({"nvidia.com/gpu"}))
    assert translate(pod(container({"nvidia.com/gpu": 1})), terms) is None
    document = pod(container({"nvidia.com/gpu": 1, GPUMEM: 3000}))
    after = patched(document, translated(document, terms).patch)
    resources = after["spec"]["containers"][0]["resources"]
    assert resources == {"claims": [{"name": "partage-gpu"}]}, "the plugin is not asked beside"


def test_scenario_18_a_node_that_does_not_exist_is_scored_as_nobody_and_changes_nothing() -> None:
    extender = fed("n0", claims=[HALF], pods=[WAITS])
    before = extender.ranks(WAITS, ["n0"])
    template = {"metadata": {"name": "template-node-for-asg-1"}, "status": {"allocatable": {"cpu": "8"}}}
    status, rows = extender.post({"Pod": WAITS, "Nodes": {"items": [template]}, "NodeNames": None})
    assert status == 200
    assert [row["Host"] for row in rows] == ["template-node-for-asg-1"]
    assert extender.ranks(WAITS, ["n0", "never-there"])["never-there"] == 0
    assert extender.ranks(WAITS, ["n0"]) == before


def test_scenario_22_without_the_webhook_its_pods_fail_and_all_others_are_made() -> None:
    """The API server refuses a pod that it would have to ask about. Which ones: ``matchConditions``."""
    objects = yaml.safe_load_all(CHART.read_text())
    found = [
        webhook
        for each in objects
        if each and each["kind"] == "MutatingWebhookConfiguration" and "admission" in each["metadata"]["name"]
        for webhook in each["webhooks"]
    ]
    assert [webhook["sideEffects"] for webhook in found] == ["NoneOnDryRun", "None"], (
        "of pods, of their makers"
    )
    for webhook in found:
        assert webhook["failurePolicy"] == "Fail"
        assert 1 <= webhook["timeoutSeconds"] <= 30
        assert webhook["matchConditions"], "without conditions every pod of the cluster would fail"


def test_scenario_08_wrong_questions_get_an_error_and_two_replicas_answer_alike() -> None:
    names = [f"n{number}" for number in range(4)]
    first, second = (fed(*names, claims=[HALF], pods=[WAITS]) for _ in range(2))
    asked = {"Pod": WAITS, "Nodes": None, "NodeNames": names}
    before = first.post(asked)
    for wrong in (b"", b"{", b"[]", b'{"Pod": 3, "NodeNames": {}}', b"\xff" * 64):
        status, _ = first.post(wrong)
        assert status == 400
    assert first.post(asked) == second.post(asked) == before
    written = (CHART.parents[3] / "docs" / "how-to" / "waste-less.md").read_text()
    assert "    ignorable: true\n" in written, "away, kube-scheduler goes on by itself"


def test_scenario_09_a_thousand_nodes_and_five_thousand_pods_that_wait() -> None:
    """CPU time: others work on the machine of the tests. Measured on a quiet one: ``make bench``."""
    names = [f"n{number}" for number in range(1000)]
    waiting = [pod_object(f"w{number}", 4000, claims=["mine"]) for number in range(5000)]
    found = Fed()
    found.start(
        nodes=[node_object(name) for name in names],
        slices=[slices_object(name, [device_object(index) for index in range(8)]) for name in names],
        claims=[HALF],
        pods=waiting,
    )
    body = json.dumps({"Pod": WAITS, "Nodes": None, "NodeNames": names}).encode()
    times = []
    for _ in range(30):
        began = process_time()
        status, rows = found.post(body)
        times.append(process_time() - began)
        assert status == 200
        assert len(rows) == 1000
    assert sorted(times)[-2] < 0.05

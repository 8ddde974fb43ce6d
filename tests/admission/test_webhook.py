"""The webhook over HTTPS, as the API server asks it."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from partage.admission.certificates import make_pair
from partage.admission.decide.pod import PatchStep, patched
from partage.admission.decide.settings import DialectSettings
from partage.admission.webhook import MUTATE
from partage.serve_http.http import MOST_BODY
from tests.admission.pods import container, pod
from tests.admission.serving import CLASSES, NAMES, Json, filled, gpu, review, served, until
from tests.edges.kube.scripted import PKI, Answer, Request, status
from tests.edges.kube.store import (
    NODES,
    SLICES,
    TEMPLATES,
    WEBHOOKS,
    ObjectStore,
    object_store,
    templates_path,
)
from tests.scheduler.objects import node, slices

HAMI = pod(container({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}))
TEAM = templates_path("team")


def written(store: ObjectStore) -> list[Request]:
    """What was written about templates."""
    return [
        one for one in store.server.requests if one.method != "GET" and "resourceclaimtemplates" in one.path
    ]


def as_patched(document: Json, response: Json) -> Json:
    steps = json.loads(base64.b64decode(response["patch"]))
    return patched(document, [PatchStep(**step) for step in steps])


async def test_a_pod_becomes_one_with_a_claim_whose_template_is_there() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            response = await hook.mutate(HAMI)
            assert (response["uid"], response["allowed"], response["patchType"]) == ("u1", True, "JSONPatch")
            made = as_patched(HAMI, response)
            (name,) = [claim["resourceClaimTemplateName"] for claim in made["spec"]["resourceClaims"]]
            template = store.objects[TEAM][name]
            request = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
            assert request["capacity"]["requests"] == {"memory": "3000Mi", "cores": "30"}
            (owner,) = template["metadata"]["ownerReferences"]
            assert owner["uid"] == store.objects[WEBHOOKS]["hook"]["metadata"]["uid"]
            # Once more, and by another server: it is there already.
            assert (await hook.mutate(HAMI))["patch"] == response["patch"]
            async with served(store, "b") as second:
                await second.until_ready()
                assert (await second.mutate(HAMI))["patch"] == response["patch"]
            assert [one.method for one in written(store)] == ["POST"]
            asked = 'partage_admission_requests_total{dialect="HAMi",result="translated"}'
            assert await hook.metric(asked) == 2
            assert await hook.metric("partage_admission_seconds_count") == 2


async def test_what_is_said_in_the_template_by_the_api_server_is_the_same_content() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            response = await hook.mutate(HAMI)
            ((name, template),) = store.objects[TEAM].items()
            exactly = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
            exactly |= {"allocationMode": "ExactCount", "count": 1}
            exactly["capacity"]["requests"] = {"memory": "3145728000", "cores": "30"}
            store.put(TEAM, template)
            assert await hook.mutate(HAMI) == response
            # A tenant has put something else at the name: nobody gets a GPU that was not asked for.
            exactly["capacity"]["requests"]["memory"] = "1Gi"
            store.put(TEAM, template)
            said = await hook.refusal(HAMI)
            assert f"the ResourceClaimTemplate {name} of the namespace has another content" in said
            assert await hook.refusal(HAMI, dry_run=True) == said


async def test_a_dry_run_writes_nothing() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            assert (await hook.mutate(HAMI, dry_run=True))["patch"]
            assert written(store) == []


@pytest.mark.parametrize(
    ("asking", "said"),
    [
        (
            pod(container({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "101"})),
            "the pod is written for HAMi, and refused: container main asks for 101 of "
            "nvidia.com/gpumem-percentage, which is 0 to 100",
        ),
        (
            pod(container({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "200000"})),
            "the pod is written for Volcano, and refused: no node could ever hold memory 200000Mi of "
            "gpu.partage.dev: ",
        ),
        (
            pod(container({"nvidia.com/gpu": "3", "nvidia.com/gpumem": "1000"})),
            "3 devices are asked for, and 2 could be given together",
        ),
        (
            pod(
                container({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}),
                annotations={"nvidia.com/vgpu-mode": "mig"},
            ),
            "(in the policy: {select: rest, via: claims, mig: {layout: [...]}})",
        ),
        (
            pod(
                container({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}),
                annotations={"nvidia.com/use-gpuuuid": "GPU-77"},
            ),
            "no node publishes a GPU with a UUID that the pod names",
        ),
    ],
)
async def test_what_cannot_be_is_refused_with_a_sentence(asking: Json, said: str) -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            assert said in await hook.refusal(asking)
            assert written(store) == []


async def test_a_home_may_come_and_go() -> None:
    async with object_store() as store:
        filled(store)
        store.put(NODES, node("n1"))
        asking = pod(container({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}))
        async with served(store) as hook:
            await hook.until_ready()
            assert (await hook.mutate(asking))["allowed"]
            store.remove(SLICES, "n0-slice")

            async def allowed() -> bool:
                return bool((await hook.mutate(asking))["allowed"])

            await until(allowed, False)
            assert "no GPU is there for claims of an amount of its memory" in await hook.refusal(asking)
            # A taint passes; a GPU that has one now could hold it later.
            taint = {"key": "partage.dev/drain", "effect": "NoSchedule"}
            store.put(SLICES, slices("n1", [gpu(0, taints=[taint])]))
            await until(allowed, True)
            store.remove(CLASSES, "gpu.partage.dev")
            await until(allowed, False)
            assert "the cluster has no DeviceClass gpu.partage.dev" in await hook.refusal(asking)


async def test_pods_of_nobody_are_left_alone() -> None:
    async with object_store() as store:
        filled(store)
        store.put(
            NODES,
            node("n0", aliyun_com__gpu_mem="80") | {"status": {"capacity": {"aliyun.com/gpu-mem": "80"}}},
        )
        alone = [
            pod(container({"nvidia.com/gpu": "1"})),
            pod(container({"aliyun.com/gpu-mem": "3"})),
            pod(container({"volcano.sh/vgpu-number": "1"}), labels={"partage.dev/admission": "ignore"}),
        ]
        async with served(store) as hook:
            await hook.until_ready()
            for document in alone:
                assert await hook.mutate(document) == {"uid": "u1", "allowed": True}
            other = review(HAMI, kind={"group": "apps", "version": "v1", "kind": "DaemonSet"})
            assert (await hook.ask("POST", MUTATE, other))[1]["response"] == {"uid": "u1", "allowed": True}
            update = review(HAMI, operation="UPDATE")
            assert (await hook.ask("POST", MUTATE, update))[1]["response"] == {"uid": "u1", "allowed": True}
            assert written(store) == []
            # The plugin is removed, and the name is nobody's any more.
            store.put(NODES, node("n0"))

            async def changed() -> bool:
                return "patch" in await hook.mutate(alone[1])

            await until(changed, True)


@pytest.mark.parametrize(
    ("group", "kind", "mark"),
    [
        ("batch", "Job", "kai.scheduler/batch-min-member"),
        ("apps", "Deployment", "scheduling.volcano.sh/group-min-member"),
    ],
)
async def test_what_makes_pods_that_start_together_is_refused_at_once(
    group: str, kind: str, mark: str
) -> None:
    """No pod says it of itself. What makes other pods goes by, and its pods come by themselves."""

    def maker(template: Json, least: str) -> Json:
        made = {"metadata": {"name": "j", "annotations": {mark: least}}, "spec": {"template": template}}
        return review(made, kind={"group": group, "version": "v1", "kind": kind})

    whole = pod(container({"nvidia.com/gpu": "1"}), schedulerName="kai-scheduler")
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()

            async def response(template: Json, least: str = "2") -> Json:
                answer: Json = (await hook.ask("POST", MUTATE, maker(template, least)))[1]["response"]
                return answer

            for template in (HAMI, whole):
                said = (await response(template))["status"]["message"]
                assert said.startswith("its pods are written for ")
                assert f"{mark} wants pods that start together or not at all" in said
                assert await response(template, "1") == {"uid": "u1", "allowed": True}
            plain = pod(container({"nvidia.com/gpu": "1"}))
            assert await response(plain) == {"uid": "u1", "allowed": True}
            assert written(store) == []
            broken: Any
            for broken in ({}, {"spec": {}}, {"spec": {"template": []}}, None):
                about = review({}, kind={"group": group, "version": "v1", "kind": kind}, object=broken)
                assert (await hook.ask("POST", MUTATE, about))[0] == 400


async def test_schedulers_of_other_systems_are_kept_where_they_run() -> None:
    asking = pod(
        container({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1000"}), schedulerName="volcano"
    )
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            assert (
                as_patched(asking, await hook.mutate(asking))["spec"]["schedulerName"] == "default-scheduler"
            )
    async with object_store() as store:
        filled(store)
        there = {"metadata": {"name": "volcano-scheduler", "namespace": "v"}, "spec": {}}
        store.put("/apis/apps/v1/namespaces/v/deployments", there)
        async with served(store) as hook:
            await hook.until_ready()
            response = await hook.mutate(asking)
            assert as_patched(asking, response)["spec"]["schedulerName"] == "volcano", "at once"
            assert any("the scheduler volcano is kept" in text for text in response["warnings"])


async def test_names_of_hami_are_configured() -> None:
    settings = DialectSettings(hami_memory="example.com/mem")
    asking = pod(container({"nvidia.com/gpu": "1", "example.com/mem": "1000"}))
    async with object_store() as store:
        filled(store)
        async with served(store, settings=settings) as hook:
            await hook.until_ready()
            assert (await hook.mutate(asking))["patch"]


async def test_while_too_little_is_known_nobody_is_refused() -> None:
    async with object_store() as store:
        filled(store)
        store.refuse = lambda request: status(500, "Internal", "x") if "slices" in request.path else None
        async with served(store) as hook:
            await until(hook.ready, 503)
            code, answer = await hook.ask("POST", MUTATE, review(HAMI))
            assert (code, answer["error"]) == (503, "not ready")
            assert any("slices: " in reason for reason in answer["waitsFor"])
            store.refuse = lambda request: None
            await hook.until_ready()
            assert (await hook.mutate(HAMI))["allowed"]


@pytest.mark.parametrize("too_old", ["v1.35.9", "v1.30.1"])
async def test_without_claims_the_version_is_named(too_old: str) -> None:
    async with object_store() as store:
        filled(store)
        store.version = too_old
        store.refuse = lambda request: (
            status(404, "NotFound", "none") if "resource.k8s.io" in request.path else None
        )
        async with served(store) as hook:
            await hook.until_ready()
            said = await hook.refusal(HAMI)
            assert f"claims need Kubernetes 1.36.4 or newer, and this is {too_old[1:]}" in said


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"kind": "AdmissionReview"}', b"[" * 100_000, b"\xff\xfe"],
)
async def test_what_is_no_review_is_bad_input(body: bytes) -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            code, answer = await hook.ask("POST", MUTATE, body)
            assert code == 400
            assert "this is no review of a pod" in answer["error"]
            assert (await hook.mutate(HAMI))["allowed"]


async def test_bodies_are_bounded_and_only_reviews_are_posted() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            assert (await hook.ask("POST", MUTATE, None, **{"Content-Length": str(MOST_BODY + 1)}))[0] == 413
            assert (await hook.ask("POST", "/metrics", {}))[0] in (400, 404)
            assert (await hook.ask("GET", MUTATE))[0] == 400
            assert (await hook.ask("GET", "/livez"))[0] == 200


HALF = f"POST {MUTATE} HTTP/1.1\r\nHost: {NAMES[0]}\r\nContent-Length: {{length}}\r\n\r\n{{{{"


@pytest.mark.parametrize(
    "sent",
    [None, b"", b"POST /mutate HT", HALF.format(length=100).encode(), HALF.format(length=2 << 20).encode()],
    ids=["no TLS", "nothing", "half a line", "half a body", "half of a large body"],
)
async def test_slow_clients_keep_nobody_waiting(sent: bytes | None) -> None:
    """A tenant that reaches the port holds more connections than there may be."""
    async with object_store() as store:
        filled(store)
        async with served(store, most_clients=8) as hook:
            await hook.until_ready()
            tls = ssl.create_default_context(cadata=hook.trusted)
            clients = []
            for _ in range(12):
                client = socket.create_connection(("127.0.0.1", hook.port), timeout=5)
                clients.append(client)
                if sent is not None:
                    clients[-1] = await asyncio.to_thread(
                        tls.wrap_socket, client, server_hostname="127.0.0.1"
                    )
                    clients[-1].sendall(sent)
            try:
                async with asyncio.timeout(4):  # the API server waits for 6 s
                    assert (await hook.mutate(HAMI))["patch"]
            finally:
                for client in clients:
                    client.close()


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            pod(*(container({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "9"}, f"c{n}") for n in range(33))),
            "the containers of the pod ask for 66 GPUs or parts of them together, and 64 are the most",
        ),
        (
            pod(*(container({"volcano.sh/vgpu-number": "1"}, f"c{n}") for n in range(14_000))),
            "the pod has 14000 containers, and 500 are the most that are looked through",
        ),
    ],
    ids=["66 GPUs", "14,000 containers"],
)
async def test_pods_that_would_keep_others_waiting_are_refused_at_once(document: Json, said: str) -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            assert said in await hook.refusal(document)
            assert written(store) == []


async def test_64_containers_with_amounts_of_their_own_are_let_in() -> None:
    amounts = [{"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(100 + number)} for number in range(64)]
    document = pod(*(container(limits, f"c{number}") for number, limits in enumerate(amounts)))
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()

            async def allowed() -> bool:  # on a busy machine after a second try, as the answer says
                return bool((await hook.mutate(document))["allowed"])

            await until(allowed, True)
            made = as_patched(document, await hook.mutate(document))
            names = {claim["resourceClaimTemplateName"] for claim in made["spec"]["resourceClaims"]}
            assert names == {*store.objects[TEAM]}
            assert len(names) == 64


async def test_many_pods_at_once_are_let_in_with_one_template() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store, most_clients=16) as hook:
            await hook.until_ready()
            gate = asyncio.Semaphore(15)

            async def one(number: int) -> Json:
                async with gate:
                    return await hook.mutate(HAMI, uid=f"u{number}")

            answers = await asyncio.gather(*(one(number) for number in range(120)))
            assert {answer["uid"] for answer in answers} == {f"u{number}" for number in range(120)}
            assert len({answer["patch"] for answer in answers}) == 1
            assert [one.method for one in written(store)] == ["POST"]


async def test_a_namespace_makes_no_more_templates_than_people_need() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            for number in range(100):
                assert (await hook.mutate(_of_mib(1000 + number)))["allowed"]
            assert "asked for over 100 different amounts in 10 minutes" in await hook.refusal(_of_mib(2000))
            assert (await hook.mutate(_of_mib(1001)))["allowed"]
            assert (await hook.mutate(_of_mib(2000), namespace="other"))["allowed"]


def _of_mib(mib: int) -> Json:
    return pod(container({"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib)}))


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (status(403, "Forbidden", "exceeded quota: q"), 403, "its template cannot be made"),
        (status(500, "InternalError", "etcd"), 503, "could not be written now"),
        (Answer(hang=True), 503, "did not answer"),
    ],
)
async def test_a_template_that_cannot_be_made(answer: Answer, code: int, said: str) -> None:
    async with object_store() as store:
        filled(store)
        store.refuse = lambda request: answer if "resourceclaimtemplates" in request.path else None
        async with served(store) as hook:
            await hook.until_ready()
            response = await hook.mutate(HAMI)
            assert not response["allowed"]
            assert response["status"]["code"] == code
            assert said in response["status"]["message"]


@pytest.mark.parametrize("namespace", ["..", ".", "", "a/b", "team?x=1"])
async def test_a_namespace_is_one_part_of_a_path(namespace: str) -> None:
    async with object_store() as store:
        filled(store)
        async with served(store) as hook:
            await hook.until_ready()
            response = await hook.mutate(HAMI, namespace=namespace)
            if not response["allowed"]:
                assert "its template cannot be made" in response["status"]["message"]
            assert list(store.objects.get(TEMPLATES, {})) == []
            assert TEAM not in store.objects


async def test_files_of_tls_are_read_again(tmp_path: Path) -> None:
    for name in ("server.crt", "server.key"):
        shutil.copy(PKI / name, tmp_path)
    async with object_store() as store:
        filled(store)
        async with served(store, pki=tmp_path) as hook:
            await hook.until_ready()
            pair, _ = make_pair(["127.0.0.1", "localhost"], 1e9 * 1.75)
            (tmp_path / "server.crt").write_text(pair.certificate)
            (tmp_path / "server.key").write_text(pair.key)
            place = "127.0.0.1", hook.port
            served_now = await asyncio.to_thread(ssl.get_server_certificate, place)
            assert served_now.strip() == pair.certificate.strip()


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_quota_that_counts_nothing_of_a_claim_is_no_way_around_it(refuses: bool) -> None:
    quotas = "/api/v1/namespaces/team/resourcequotas"
    async with object_store() as store:
        filled(store)
        hard = {"requests.nvidia.com/gpumem": "6000"}
        store.put(quotas, {"metadata": {"name": "gpus", "namespace": "team"}, "spec": {"hard": hard}})
        async with served(store, refuses_uncounted=refuses) as hook:
            await hook.until_ready()
            said = "the ResourceQuota gpus of namespace team limits requests.nvidia.com/gpumem"
            response = await hook.mutate(HAMI)
            assert response["allowed"] is not refuses
            assert said in (response["status"]["message"] if refuses else response["warnings"][0])
            assert bool(written(store)) is not refuses
            assert (await hook.mutate(HAMI, namespace="elsewhere"))["allowed"]

"""Templates are there while a pod may need them, and gone when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from partage.admission.decide.need import BytesOfGpu, GpuNeed, GpuRules
from partage.admission.decide.template import (
    ASKED_AT,
    KEPT_S,
    LET_IN_S,
    MADE_FOR,
    MARK_S,
    ClaimForm,
    claim_form,
    same_content,
)
from partage.admission.templates import PodTemplates
from partage.edges.kube.connection import Connection
from partage.edges.kube.port import ObjectReference
from partage.units import MIB
from tests.admission.serving import quick
from tests.edges.kube.scripted import Request
from tests.edges.kube.store import ObjectStore, object_store, pods_path, templates_path

Json = dict[str, Any]
TEAM, PODS = templates_path("team"), pods_path("team")
OWNER = ObjectReference(
    "MutatingWebhookConfiguration", "hook", "uid-hook", api_version="admissionregistration.k8s.io/v1"
)


def form_of(mib: int) -> ClaimForm:
    return claim_form(GpuNeed(1, BytesOfGpu(mib * MIB)), GpuRules(), None)


FORM = form_of(3000)


def naming(name: str, template: str = FORM.name, phase: str = "Pending") -> Json:
    claims = [{"name": "g", "resourceClaimTemplateName": template}]
    meta = {"name": name, "namespace": "team"}
    return {"metadata": meta, "spec": {"resourceClaims": claims}, "status": {"phase": phase}}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def templates(store: ObjectStore, clock: Callable[[], float]) -> PodTemplates:
    made = PodTemplates(Connection(store.server.config(), quick), wall=clock)
    made.owner = OWNER
    return made


def there(store: ObjectStore, form: ClaimForm = FORM) -> bool:
    return form.name in store.objects.get(TEAM, {})


async def test_a_template_goes_when_no_pod_names_it_and_nobody_asked_for_long() -> None:
    clock = Clock()
    async with object_store() as store:
        of = templates(store, clock)
        await of.ensure("team", FORM, dry_run=False)
        store.put(PODS, naming("p"))
        clock.now_s += KEPT_S + 1
        await of.sweep()
        assert there(store)  # a pod names it
        store.put(PODS, naming("p", phase="Succeeded"))
        await of.sweep()
        assert not there(store)
        assert (of.made, of.swept) == (1, 1)


async def test_what_people_applied_stays() -> None:
    """``partage migrate`` gives templates the same names."""
    clock = Clock()
    async with object_store() as store:
        of = templates(store, clock)
        store.put(TEAM, FORM.manifest("team"))
        await of.ensure("team", FORM, dry_run=False)
        clock.now_s += 10 * KEPT_S
        await of.sweep()
        assert there(store)
        assert [one.method for one in store.server.requests if one.method != "GET"] == []


async def test_a_pod_that_is_let_in_during_a_sweep_keeps_its_template() -> None:
    """Between reading pods and deleting, a pod is let in by another replica."""
    clock = Clock()
    async with object_store() as store:
        of, other = templates(store, clock), templates(store, clock)
        await of.ensure("team", FORM, dry_run=False)
        clock.now_s += KEPT_S + 1
        let_in: list[asyncio.Task[None]] = []

        async def answer(request: Request) -> Any:
            found = store.answer(request)
            if request.path == PODS and not let_in:
                let_in.append(asyncio.create_task(other.ensure("team", FORM, dry_run=False)))
                await let_in[0]
            return found

        store.server.answer = answer
        await of.sweep()
        assert there(store)
        assert store.conflicts == 1


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.floats(1, KEPT_S)),
            st.tuples(st.just("let in"), st.floats(0, LET_IN_S - 30)),
            st.tuples(st.just("sweep"), st.just(0.0)),
            st.tuples(st.just("pods end"), st.just(0.0)),
        ),
        max_size=25,
    )
)
def test_whoever_was_let_in_finds_the_template_when_the_pod_is_made(steps: list[tuple[str, float]]) -> None:
    """let in: the pod is written so many seconds later; all that were written have the template."""

    async def story() -> None:
        clock = Clock()
        async with object_store() as store:
            of = templates(store, clock)
            written: list[tuple[float, str]] = []
            for number, (step, seconds) in enumerate(steps):
                for due in [one for one in written if one[0] <= clock.now_s]:
                    written.remove(due)
                    assert there(store), steps  # the controller makes the claim now
                    store.put(PODS, naming(due[1]))
                match step:
                    case "wait":
                        until_s = clock.now_s + seconds
                        while written and min(written)[0] <= until_s:
                            due = min(written)
                            written.remove(due)
                            clock.now_s = max(clock.now_s, due[0])
                            await of.sweep()
                            assert there(store), steps
                            store.put(PODS, naming(due[1]))
                        clock.now_s = until_s
                    case "let in":
                        await of.ensure("team", FORM, dry_run=False)
                        written.append((clock.now_s + seconds, f"p{number}"))
                    case "sweep":
                        await of.sweep()
                    case _:
                        store.objects.pop(PODS, None)
            if store.objects.get(PODS):
                assert there(store)

    asyncio.run(story())


async def test_a_mark_is_renewed_before_it_is_old_and_no_sooner() -> None:
    clock = Clock()
    async with object_store() as store:
        of = templates(store, clock)
        await of.ensure("team", FORM, dry_run=False)
        first = store.objects[TEAM][FORM.name]["metadata"]["annotations"][ASKED_AT]
        clock.now_s += MARK_S - 1
        await of.ensure("team", FORM, dry_run=False)
        assert store.objects[TEAM][FORM.name]["metadata"]["annotations"][ASKED_AT] == first
        clock.now_s += 2
        await of.ensure("team", FORM, dry_run=True)
        assert store.objects[TEAM][FORM.name]["metadata"]["annotations"][ASKED_AT] == first
        await of.ensure("team", FORM, dry_run=False)
        assert store.objects[TEAM][FORM.name]["metadata"]["annotations"][ASKED_AT] > first


def written(owner: ObjectReference) -> dict[str, str]:
    """An OwnerReference has these fields, and no namespace."""
    return {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}


async def test_a_template_belongs_to_the_configuration_of_now() -> None:
    """One of a webhook that was uninstalled is about to be deleted."""
    clock = Clock()
    async with object_store() as store:
        of = templates(store, clock)
        await of.ensure("team", FORM, dry_run=False)
        assert store.objects[TEAM][FORM.name]["metadata"]["ownerReferences"] == [written(OWNER)]
        of.owner = replace(OWNER, uid="uid-new")
        await of.ensure("team", FORM, dry_run=False)
        assert store.objects[TEAM][FORM.name]["metadata"]["ownerReferences"] == [written(of.owner)]
        assert store.objects[TEAM][FORM.name]["metadata"]["labels"][MADE_FOR] == "pods"


@pytest.mark.parametrize(
    ("theirs", "same"),
    [
        ({"a": {"capacity": {"requests": {"memory": "1024Mi"}}}}, True),
        (
            {"a": {"capacity": {"requests": {"memory": "1Gi"}}, "allocationMode": "ExactCount", "count": 1}},
            True,
        ),
        ({"a": {"capacity": {"requests": {"memory": "1G"}}}}, False),
        ({"a": {"capacity": {"requests": {"memory": "1Gi"}}, "count": 2}}, False),
        ({"a": {"capacity": {"requests": {"memory": "1Gi"}}, "adminAccess": True}}, False),
        ({"a": {"capacity": {"requests": {"memory": "x"}}}}, False),
        ({}, False),
    ],
)
def test_what_is_the_same_content(theirs: Json, same: bool) -> None:
    assert same_content({"a": {"capacity": {"requests": {"memory": "1Gi"}}}}, theirs) is same

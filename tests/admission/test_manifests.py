"""Objects of files: which become what, with which templates, and what is said of them."""

import pytest

from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.template import sizes_of
from partage.admission.decide.translate import AdmissionTerms
from partage.admission.manifests import TranslationTerms, settings_of, translated_object
from partage.claims.check import ClaimTerms
from partage.claims.decide.book import ClaimBook, book_of_offer
from partage.claims.decide.classes import chart_classes
from partage.edges.files.catalogue import geometry_of
from partage.kubernetes.manifests.input_files import read_input_file
from partage.units import GIB
from tests.admission.pods import TERMS, container, pod
from tests.claims.offers import amounts, mig, offers, slices, whole
from tests.plan.offers import gpu, node

GPU, MEM, PERCENT = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
PLAIN = {"metadata": {"labels": {"app": "a"}}, "spec": pod(container({GPU: 1, MEM: 3000}))["spec"]}


def book(*rows):
    return book_of_offer(offers(*rows), node(*(gpu(row.gpu_index) for row in rows)), "n", geometry_of)


def on(found: ClaimBook) -> TranslationTerms:
    judged_by = ClaimTerms(chart_classes(), lambda _: (), found)
    return TranslationTerms(AdmissionTerms(sizes=sizes_of(found.devices)), judged_by, "do it")


def become(document, terms=None):
    return translated_object(document, "f.yaml", "", None, terms or TranslationTerms(TERMS))


def said(found):
    return [f"{one.problem.severity}: {one.problem.message} | {one.problem.hint}" for one in found.findings]


OWN = [
    ("v1", "Pod", lambda template: {"spec": template["spec"], "metadata": template["metadata"]}, ()),
    ("apps/v1", "Deployment", lambda template: {"spec": {"template": template}}, ("spec", "template")),
    ("apps/v1", "StatefulSet", lambda template: {"spec": {"template": template}}, ("spec", "template")),
    ("batch/v1", "Job", lambda template: {"spec": {"template": template}}, ("spec", "template")),
    (
        "batch/v1",
        "CronJob",
        lambda template: {"spec": {"jobTemplate": {"spec": {"template": template}}}},
        ("spec", "jobTemplate", "spec", "template"),
    ),
]


@pytest.mark.parametrize(
    ("version", "kind", "made", "keys"), OWN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_pods_of_kubernetes_own_kinds_are_rewritten_where_they_are(version, kind, made, keys):
    document = {"apiVersion": version, "kind": kind, **made(PLAIN)}
    document["metadata"] = {**document.get("metadata", {}), "name": "a", "namespace": "team"}
    found = become(document)
    inside = found.document
    for key in keys:
        inside = inside[key]
    (template,) = found.templates
    (claim,) = inside["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert template["metadata"]["namespace"] == "team"
    assert inside["metadata"]["labels"] == {"app": "a"}
    assert found.translated
    assert not become(found.document).translated  # twice changes nothing
    (text,) = said(found)
    assert "written for HAMi: becomes a pod with a claim for memory 3000Mi of gpu.partage.dev (main)" in text


def test_a_template_without_metadata_gets_some():
    document = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": PLAIN["spec"]}}}
    assert (
        "partage.dev/translated" in become(document).document["spec"]["template"]["metadata"]["annotations"]
    )


def test_volcanos_job_is_read_and_not_converted():
    spec = {"tasks": [{"replicas": 2, "template": PLAIN}]}
    job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}
    found = become(job)
    assert found.refused
    assert found.document == job
    assert "read but not converted: each pod would ask for a claim for memory 3000Mi" in said(found)[0]


def test_a_group_that_the_object_names_is_refused():
    marks = {"kai.scheduler/batch-min-member": "2"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"annotations": marks},
        "spec": {"template": PLAIN},
    }
    assert "start together" in said(become(job))[0]


@pytest.mark.parametrize(
    ("limits", "rows", "text"),
    [
        ({GPU: 1, MEM: 3072}, [amounts(0)], ""),
        ({GPU: 1, MEM: 3000}, [amounts(0)], "memory 3000Mi counts as 3Gi"),
        ({GPU: 1, MEM: 100000}, [amounts(0)], "79Gi in all"),
        ({GPU: 1, MEM: 3072}, [whole(0)], "in the policy: {select: rest, via: claims, mps: {unit: 1Gi}}"),
        ({GPU: 1, MEM: 3072}, [], "in the policy: {select: rest, via: claims, mps: {unit: 1Gi}}"),
        (
            {GPU: 2, MEM: 3072},
            [amounts(0), amounts(1)],
            "in the policy: {select: rest, via: claims, time-slicing:",
        ),
        ({GPU: 2, MEM: 3072}, [slices(0), slices(1)], ""),
        ({GPU: 2, PERCENT: 50}, [slices(0), slices(1)], ""),
        (
            {GPU: 1, "nvidia.com/priority": 1},
            [mig(0, 0)],
            "in the policy: {select: rest, via: claims, exclusive: {}}",
        ),
    ],
)
def test_what_the_policy_has_no_place_for_names_the_line_that_makes_one(limits, rows, text):
    texts = said(become(pod(container(limits)), on(book(*rows))))
    assert "do it" in texts[0]
    assert (
        any(text in one for one in texts[1:])
        if text
        else texts[1:] == [one for one in texts[1:] if "no effect" in one]
    )


def test_claims_of_a_pod_have_to_find_their_place_together():
    both = pod(container({GPU: 1, MEM: 50 * 1024}, "a"), container({GPU: 1, MEM: 40 * 1024}, "b"))
    texts = said(become(both, on(book(slices(0)))))
    assert any("not all claims of the pod find a place" in text for text in texts)
    assert len(said(become(both, on(book(slices(0), slices(1)))))) == 1


def test_sizes_are_those_that_nodes_publish():
    sizes = sizes_of(book(amounts(0), amounts(1, 39), amounts(2), whole(3)).devices)
    assert [(size.memory_bytes, size.step_bytes) for size in sizes.amounts] == [
        (39 * GIB, GIB),
        (79 * GIB, GIB),
    ]
    assert sizes_of(book(amounts(0, 1)).devices).amounts[0].step_bytes == GIB


def test_hamis_config_map_among_the_files_says_the_names(tmp_path):
    file = tmp_path / "hami.yaml"
    file.write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  device-config.yaml: |\n"
        "    nvidia: {resourceCountName: corp/gpu, deviceMemoryScaling: 1.5}\n"
        "  broken: '{ resourceCountName'\n"
    )
    found = settings_of([read_input_file(str(file))], DialectSettings())
    assert (found.hami_count, found.scaling, found.hami_memory) == ("corp/gpu", 1.5, MEM)

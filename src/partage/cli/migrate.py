"""``partage migrate``: write manifests of other systems as manifests with claims."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from partage.admission.options import GPU_MEM_UNITS, gpu_mem_unit_option
from partage.answers import cluster_options, common_node, common_options, common_output, completion
from partage.answers.verb import verb
from partage.errors import InputError, Unsatisfiable

if TYPE_CHECKING:
    from partage.admission.decide.settings import DialectSettings
    from partage.admission.manifests import TranslatedObject, TranslationTerms
    from partage.claims.decide.book import BookDevice
    from partage.edges.kube.reading import ClusterReader
    from partage.kubernetes.manifests.input_files import ManifestInput
    from partage.model.policy import Policy


@verb("migrate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=completion.files)
@gpu_mem_unit_option
@click.option("--cluster", is_flag=True, help="Take the sizes of GPUs from the slices of the cluster.")
@cluster_options.kubeconfig_option("With --cluster: ")
@common_options.policy_option("Take the sizes of GPUs from it, and refuse what it has no place for.")
@common_options.config_option
@common_options.machine_option
@common_options.driver_root_option
@common_options.output_option("yaml", "json")
def command(  # noqa: PLR0917 - click calls it by keyword
    files: tuple[str, ...],
    gpu_mem_unit: str,
    cluster: bool,
    kubeconfig: str | None,
    policy: str | None,
    config: str | None,
    machine: str | None,
    output: str,
) -> int:
    """Rewrite manifests for HAMi, Volcano, KAI, Run:ai, ACK, nos and GKE as pods with claims.

    FILE is a manifest; - is standard input, and a directory stands for the files in it. All objects are
    printed: Pods, Deployments, StatefulSets, Jobs, CronJobs with claims of the same meaning, the
    ResourceClaimTemplates that they need, and the others as they are. A ConfigMap of HAMi among the files
    says how it names its resources. What a pod becomes, and what of it has no effect, is said on stderr.

    A percentage or fraction of a GPU needs the sizes of the GPUs: --policy with --machine, or --cluster.

    Nothing is printed if one of the pods cannot be meant as a claim. Exit code 2: there is such a pod, or
    wrong input; 3: the policy has no place for it; 5: the cluster does not answer.
    """
    if cluster and policy is not None:
        raise click.UsageError("--cluster and --policy exclude each other")
    from partage.admission.manifests import quotas_in

    manifests = list(_manifests(files))
    settings = _settings(manifests, gpu_mem_unit)
    if policy is not None:
        terms = _of_policy(settings, common_node.read_policy(policy, config).policy, machine)
    else:
        terms = _of_cluster(settings, kubeconfig, ask=cluster)
    terms = replace(terms, quotas=quotas_in(manifests))
    found = list(_translated(manifests, terms))
    _refuse(found)
    common_output.print_problems(finding.problem for each in found for finding in each.findings)
    if not any(each.translated for each in found):
        common_output.say("no pod here is written for another system: nothing is changed", err=True)
    _print(list(_objects(found)), output)
    return 0


def _manifests(files: Sequence[str]) -> Iterator[ManifestInput]:
    from partage.edges.files.policy_directory import files_of
    from partage.kubernetes.manifests.input_files import ManifestInput, read_input_file

    for named in files:
        for file in files_of(named):
            paper = read_input_file(file)
            if not isinstance(paper, ManifestInput):
                raise InputError(
                    f"{file} is no Kubernetes manifest",
                    "a Pod, Deployment, Job, ... with apiVersion and kind",
                )
            yield paper


def _settings(manifests: Sequence[ManifestInput], unit: str) -> DialectSettings:
    from partage.admission.decide.settings import DialectSettings
    from partage.admission.manifests import settings_of

    return settings_of(manifests, DialectSettings(gpu_mem_bytes=GPU_MEM_UNITS[unit]))


def _of_policy(settings: DialectSettings, policy: Policy, machine: str | None) -> TranslationTerms:
    from partage.admission.decide.template import sizes_of
    from partage.admission.decide.translate import AdmissionTerms
    from partage.admission.manifests import TranslationTerms
    from partage.claims.check import ClaimTerms
    from partage.claims.decide.book import ClaimBook
    from partage.claims.decide.classes import chart_classes
    from partage.claims.model.names import OWN_NAMES
    from partage.cli.check import offer_of
    from partage.cli.checked_files import models_with

    offer = offer_of("", policy, common_node.need_driver(common_node.observe(machine)), OWN_NAMES)
    book = offer.book or ClaimBook()
    listed = frozenset(map(str, offer.offered))
    judged_by = ClaimTerms(chart_classes(), models_with, book, tuple(listed))
    return TranslationTerms(AdmissionTerms(settings, sizes_of(book.devices), listed), judged_by)


def _of_cluster(settings: DialectSettings, kubeconfig: str | None, *, ask: bool) -> TranslationTerms:
    """Without asking, no size is known."""
    from partage.admission.decide.template import sizes_of
    from partage.admission.decide.translate import AdmissionTerms
    from partage.admission.manifests import TranslationTerms
    from partage.claims.model.names import NVIDIA_NAMES, OWN_NAMES

    sizes = None
    if ask:
        devices = cluster_options.ask_cluster(kubeconfig, _devices)
        drivers = {device.driver for device in devices}
        if NVIDIA_NAMES.driver in drivers and OWN_NAMES.driver not in drivers:
            raise Unsatisfiable(
                f"the GPUs of this cluster are published under the driver name {NVIDIA_NAMES.driver}, which "
                "does not say of which of them a claim can have a part",
                f"dra.driverName: {OWN_NAMES.driver} in Partage's chart",
            )
        sizes = sizes_of(devices)
    return TranslationTerms(AdmissionTerms(settings, sizes))


async def _devices(reader: ClusterReader) -> tuple[BookDevice, ...]:
    from partage.claims.decide.book import devices_in
    from partage.claims.model.slices import slice_of_json
    from partage.codec.values import CodecError

    found = []
    for row in await reader.slices():
        try:
            found.append(slice_of_json(row.get("spec")))
        except CodecError:
            continue  # of another driver, in a shape that is not known here
    return devices_in(found)


def _translated(manifests: Sequence[ManifestInput], terms: TranslationTerms) -> Iterator[TranslatedObject]:
    from partage.admission.manifests import translated_object
    from partage.kubernetes.manifests.input_files import objects

    for paper in manifests:
        for path, document, line_of in objects(paper):
            yield translated_object(document, paper.file, path, line_of, terms)


def _refuse(found: Sequence[TranslatedObject]) -> None:
    """Raises InputError, Unsatisfiable if a pod cannot be translated, or has no place."""
    wrong = [
        finding
        for each in found
        for finding in each.findings
        if finding.problem.severity == "error" or each.refused
    ]
    if not wrong:
        return
    problems = [replace(finding.problem, severity="error") for finding in wrong]
    raise Unsatisfiable(problems) if all(finding.here for finding in wrong) else InputError(problems)


def _objects(found: Sequence[TranslatedObject]) -> Iterator[Any]:
    """Each with the templates that it needs and that were not there before it."""
    there = set()
    for each in found:
        for template in each.templates:
            name = each.namespace, template["metadata"]["name"]
            if name not in there:
                there.add(name)
                yield template
        yield each.document


def _print(objects: Sequence[Any], output: str) -> None:
    if output == "json":
        common_output.print_document({"apiVersion": "v1", "kind": "List", "items": objects}, output)
        return
    for number, each in enumerate(objects):
        if number:
            sys.stdout.write("---\n")
        common_output.print_document(each, output)

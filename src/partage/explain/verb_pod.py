"""``partage explain FILE`` and ``partage explain pod``: why pods do not run, and what would let them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.answers import common_output
from partage.answers.cluster_options import ask_cluster
from partage.claims.model.names import OWN_NAMES
from partage.errors import Absent, InputError, Rejected, Unsatisfiable
from partage.explain.cluster_views import rows_at
from partage.explain.pod_claims import (
    NOT_SERVED,
    ClaimObjects,
    KnownClaims,
    claims_of_cluster,
    claims_of_objects,
    with_books,
    with_claims,
)
from partage.explain.verb_nodes import SeenNodes, Where, see_cluster, see_nodes

if TYPE_CHECKING:
    from partage.edges.kube.reading import ClusterReader, Object
    from partage.explain.decide.pod_and_node import NodeView, PodNeeds
    from partage.explain.document import ExplainedPodRow
    from partage.explain.pod_claims import Found, TakenObjects

    _Completed = Callable[[PodNeeds], PodNeeds]

_ASK = "under resources.limits of a container: nvidia.com/gpu: 1; partage show says what a node offers"


def explain_file(file: str, where: Where, output: str) -> int:
    """The pods of a manifest; the exit code."""
    from partage.explain.document import explained_pod
    from partage.explain.pod_needs import pods_of

    found = _read(file)
    if where.in_cluster:
        raw = [pod for path, document, line_of in found for pod in pods_of(document, file, path, line_of)]
        namespaces = {pod.namespace for pod in raw if pod.claim_sources}
        names = {
            name for pod in raw for container in pod.containers for name in container.requests if "/" in name
        }
        (nodes, running), there = ask_cluster(
            where.kubeconfig, partial(_nodes_and_claims, namespaces, names, found)
        )
        seen = see_cluster(where, nodes, running)
        if there is not None:
            of_cluster = claims_of_cluster(there)
            seen = replace(seen, nodes=with_books(seen.nodes, there, of_cluster))
    else:
        seen, there = see_nodes(where), None
    taken = _taken(found, file, seen)
    known = claims_of_objects(taken.objects, file)
    if there is not None:
        known = known.over(of_cluster)
        seen = replace(seen, nodes=tuple(replace(node, classes=known.classes) for node in seen.nodes))
    elif not where.in_cluster:
        seen = replace(seen, nodes=tuple(_meant(node, known) for node in seen.nodes))
        if known.names is not OWN_NAMES:
            said = f"its agent is taken to have the driver name that the claims mean: {known.names.driver}"
            remarks = {node.name: (*seen.remarks.get(node.name, ()), said) for node in seen.nodes}
            seen = replace(seen, remarks=remarks)
    seen_asks = _with_resources(seen)
    asking = [with_claims(pod, known) for pod in map(seen_asks, taken.pods)]
    asking = [pod for pod in asking if pod.asks or pod.claim_sources]
    refused = [explained_pod(seen_asks(pod), (), {}, sentence) for pod, sentence in taken.refused]
    if not asking and not refused:
        raise InputError(f"{file}: no container asks for a GPU or a share of one", _ASK)
    return _print([*refused, *(_explained(pod, seen) for pod in asking)], output)


def _taken(found: Sequence[Found], file: str, seen: SeenNodes) -> TakenObjects:
    from partage.edges.files.catalogue import geometry_of
    from partage.explain.pod_claims import admission_terms, is_asking, taken

    asks = is_asking(document for _, document, _ in found)
    # The views of a cluster's nodes are made only for pods that need them.
    return taken(found, file, admission_terms(seen.nodes if asks else (), geometry_of))


def _meant(node: NodeView, known: KnownClaims) -> NodeView:
    """With the classes and names that the claims of a manifest mean."""
    return replace(node, classes=known.classes, claim_names=known.names)


def _read(file: str) -> list[Found]:
    from partage.kubernetes.manifests.input_files import ManifestInput, objects, read_input_file

    paper = read_input_file(file)
    if not isinstance(paper, ManifestInput):
        raise InputError(
            f"{file} is no Kubernetes manifest", "a Pod, Deployment, Job, ... with apiVersion and kind"
        )
    return list(objects(paper))


def _with_resources(seen: SeenNodes) -> _Completed:
    from partage.explain.decide.pod_and_node import IMPLICIT
    from partage.explain.pod_needs import with_gpu_resources

    offered = {name for node in seen.nodes for name in node.names}
    classes = {
        device_class.name: device_class for node in seen.nodes for device_class in node.classes.values()
    }
    offered |= {device_class.extended for device_class in classes.values()} | {
        f"{IMPLICIT}{name}" for name in classes
    }
    return lambda pod: with_gpu_resources(pod, offered)


async def _nodes_and_claims(
    namespaces: Collection[str], names: Collection[str], found: Sequence[Found], reader: ClusterReader
) -> tuple[tuple[Sequence[Object], Sequence[Object]], ClaimObjects | None]:
    """namespaces: of pods with claims. names: resources that pods ask for. found: the objects of the pods."""
    from partage.explain.pod_claims import is_asking

    nodes, pods = await reader.nodes(), await reader.pods()
    asks = not namespaces and is_asking((document for _, document, _ in found), _listed(nodes))
    return (nodes, pods), await _claims_if_any(reader, namespaces, names, nodes, asks=asks)


def _listed(nodes: Sequence[Object]) -> frozenset[str]:
    """Names of resources that some node lists."""
    from partage.explain.cluster_views import texts_at

    amounts = (texts_at(node, "status", "allocatable") for node in nodes)
    return frozenset(name for each in amounts for name, amount in each.items() if amount != "0")


async def _claims_if_any(
    reader: ClusterReader,
    namespaces: Collection[str],
    names: Collection[str],
    nodes: Sequence[Object],
    *,
    asks: bool = False,
) -> ClaimObjects | None:
    """None where no pod has claims, and the scheduler would make none: every node lists what is asked for by
    name. Who may not read what is there for claims gets an answer without it, unless pods name claims.
    asks: a pod would have claims, as it is written for another system.
    """
    from partage.explain.cluster_views import texts_at

    if namespaces:
        return await _claims(reader, namespaces)
    listed = [texts_at(node, "status", "allocatable") for node in nodes]
    if not asks and all(amounts.get(name, "0") != "0" for amounts in listed for name in names):
        return None
    try:
        return await _claims(reader, ())
    except Rejected:
        return None


async def _claims(reader: ClusterReader, namespaces: Collection[str]) -> ClaimObjects:
    try:
        slices = await reader.slices()
    except Absent:
        return ClaimObjects(server=await reader.server_version(), trouble=NOT_SERVED)
    templates = [
        row for name in sorted(namespaces) for row in await reader.claim_templates(name or reader.namespace)
    ]
    return ClaimObjects(
        slices=slices,
        claims=await reader.claims(),
        templates=templates,
        classes=await reader.device_classes(),
        server=await reader.server_version(),
    )


def _explained(pod: PodNeeds, seen: SeenNodes, standing: str = "") -> ExplainedPodRow:
    from partage.edges.files.catalogue import geometry_of
    from partage.explain.decide.explain import explain_pod
    from partage.explain.decide.never import Trials
    from partage.explain.document import explained_pod

    trials = Trials()
    verdicts = tuple(explain_pod(pod, node, geometry_of, trials) for node in seen.nodes)
    return explained_pod(pod, verdicts, seen.remarks, standing)


def _print(rows: Sequence[ExplainedPodRow], output: str) -> int:
    if output == "table":
        from partage.explain.tables import pod_lines

        console = common_output.console()
        for number, row in enumerate(rows):
            if number:
                console.print()
            for line in pod_lines(row, everything=common_output.is_wide()):
                console.print(line)
    else:
        from partage.explain.document import ExplanationDocument

        common_output.print_document(ExplanationDocument(pods=tuple(rows)), output)
    return 0 if all(row.fits for row in rows) else 1


# --- a pod of the cluster ---------------------------------------------------------------------------


def explain_live_pod(name: str, namespace: str | None, where: Where, output: str) -> int:
    """A pod of the cluster; the exit code."""
    from partage.explain.cluster_views import standing_of, text_at

    there, pod_name = _full_name(name, namespace)
    pod, events, nodes, running, claims = ask_cluster(
        where.kubeconfig, lambda reader: _live(reader, there or reader.namespace, pod_name)
    )
    seen = see_cluster(where, nodes, running)
    needs = _needs(pod)
    if claims is not None:
        known = claims_of_cluster(claims, pod)
        seen = replace(seen, nodes=with_books(seen.nodes, claims, known))
        needs = with_claims(needs, known)
    needs = _with_resources(seen)(_with_former(needs, pod, seen))
    phase = text_at(pod, "status", "phase")
    if phase == "Succeeded":
        return _print([_ended(needs)], output)
    if text_at(pod, "spec", "nodeName") and phase != "Failed":
        return _print([_running(needs, pod, seen, events)], output)
    if not needs.asks and not needs.claim_sources:
        raise InputError(f"no container of {needs.key} asks for a GPU or a share of one", _ASK)
    standing = " ".join(filter(None, (_not_rewritten(needs, pod, seen), standing_of(pod, events))))
    # A pod that a node has refused keeps its nodeName; the next one of its controller has none.
    return _print([_explained(replace(needs, node=""), seen, standing)], output)


def _with_former(needs: PodNeeds, pod: Object, seen: SeenNodes) -> PodNeeds:
    """With what it was before, if it was written for another system."""
    from partage.edges.files.catalogue import geometry_of
    from partage.explain.pod_claims import admission_terms, with_former

    if not needs.claim_sources:
        return needs
    (there,) = with_former((needs,), {**pod, "kind": "Pod"}, admission_terms(seen.nodes, geometry_of))
    return there


def _not_rewritten(needs: PodNeeds, pod: Object, seen: SeenNodes) -> str:
    from partage.edges.files.catalogue import geometry_of
    from partage.explain.pod_claims import admission_terms, not_rewritten

    return "" if needs.claim_sources else not_rewritten(pod, admission_terms(seen.nodes, geometry_of))


def _full_name(name: str, namespace: str | None) -> tuple[str, str]:
    """Namespace, empty for that of the kubeconfig, and name. Raises InputError."""
    first, slash, second = name.partition("/")
    if slash and namespace is not None and first != namespace:
        raise InputError(f"{name!r} and --namespace {namespace} differ", "name the namespace once")
    there, pod = (first, second) if slash else (namespace or "", first)
    for word in (there, pod) if slash or namespace else (pod,):
        if not word or not word.replace("-", "").replace(".", "").isalnum() or not word.isascii():
            raise InputError(
                f"{name[:60]!r} is not the name of a pod", "NAMESPACE/NAME, or -n NAMESPACE NAME"
            )
    return there, pod


async def _live(
    reader: ClusterReader, namespace: str, name: str
) -> tuple[Object, Sequence[Object], Sequence[Object], Sequence[Object], ClaimObjects | None]:
    try:
        pod = await reader.pod(namespace, name)
    except Absent as error:
        raise Unsatisfiable(
            f"there is no pod {namespace}/{name} in this cluster", f"kubectl get pods -n {namespace}"
        ) from error
    events, nodes, pods = await reader.events(namespace, name), await reader.nodes(), await reader.pods()
    claimed = (namespace,) if rows_at(pod, "spec", "resourceClaims") else ()
    asked = {name for container in _needs(pod).containers for name in container.requests if "/" in name}
    return pod, events, nodes, pods, await _claims_if_any(reader, claimed, asked, nodes)


def _needs(pod: Object) -> PodNeeds:
    from partage.explain.pod_needs import pods_of

    (needs,) = pods_of({**pod, "kind": "Pod"})
    return needs


def _ended(needs: PodNeeds) -> ExplainedPodRow:
    from partage.explain.document import explained_pod

    row = explained_pod(needs, (), {}, f"{needs.key} has ended, and holds nothing.")
    return replace(row, runs=True)


def _running(needs: PodNeeds, pod: Object, seen: SeenNodes, events: Sequence[Object]) -> ExplainedPodRow:
    """A pod on a node: what it holds there, as the report or else the Node says; what keeps it from its start
    there.
    """
    from partage.explain.cluster_views import holdings_on_node, running_since, start_trouble, text_at
    from partage.explain.document import explained_pod
    from partage.explain.shares import pod_holdings

    node = text_at(pod, "spec", "nodeName")
    standing = f"{needs.key} is on node {node}{running_since(pod)}."
    report = seen.reports.get(node)
    holds = () if report is None else pod_holdings(node, report, needs.key)
    if not holds:
        view = next((node_view for node_view in seen.nodes if node_view.name == node), None)
        standing += holdings_on_node(needs, view)
    trouble = start_trouble(pod, events)
    standing += f" {trouble}" if trouble else ""
    return replace(explained_pod(needs, (), {}, standing), holds=holds, runs=not trouble)

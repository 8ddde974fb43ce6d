"""``partage explain FILE`` and ``partage explain pod``: why pods do not run, and what would let them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.answers import common_output
from partage.errors import Absent, InputError, Unsatisfiable
from partage.explain.verb_nodes import SeenNodes, Where, ask_cluster, see_cluster, see_nodes

if TYPE_CHECKING:
    from partage.edges.kube.reading import ClusterReader, Object
    from partage.explain.decide.pod import PodNeeds
    from partage.explain.document import ExplainedPodRow

    _Completed = Callable[[PodNeeds], PodNeeds]

_ASK = "under resources.limits of a container: nvidia.com/gpu: 1; partage show says what a node offers"


def explain_file(file: str, where: Where, output: str) -> int:
    """The pods of a manifest; the exit code."""
    pods = _read(file)
    if where.in_cluster:
        nodes, running = ask_cluster(where, _nodes_and_pods)
        seen = see_cluster(where, nodes, running)
    else:
        seen = see_nodes(where)
    asking = [pod for pod in map(_with_resources(seen), pods) if pod.asks]
    if not asking:
        raise InputError(f"{file}: no container asks for a GPU or a share of one", _ASK)
    return _print([_explained(pod, seen) for pod in asking], output)


def _read(file: str) -> list[PodNeeds]:
    from partage.explain.pod_needs import pods_of
    from partage.kubernetes.manifests.input_files import ManifestInput, objects, read_input_file

    paper = read_input_file(file)
    if not isinstance(paper, ManifestInput):
        raise InputError(
            f"{file} is no Kubernetes manifest", "a Pod, Deployment, Job, ... with apiVersion and kind"
        )
    return [
        pod for path, document, line_of in objects(paper) for pod in pods_of(document, file, path, line_of)
    ]


def _with_resources(seen: SeenNodes) -> _Completed:
    from partage.explain.pod_needs import with_gpu_resources

    offered = {name for node in seen.nodes for name in node.names}
    return lambda pod: with_gpu_resources(pod, offered)


async def _nodes_and_pods(reader: ClusterReader) -> tuple[Sequence[Object], Sequence[Object]]:
    return await reader.nodes(), await reader.pods()


def _explained(pod: PodNeeds, seen: SeenNodes, standing: str = "") -> ExplainedPodRow:
    from partage.edges.files.catalogue import geometry_of
    from partage.explain.decide.admission import Trials
    from partage.explain.decide.explain import explain_pod
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
    pod, events, nodes, running = ask_cluster(
        where, lambda reader: _live(reader, there or reader.namespace, pod_name)
    )
    seen = see_cluster(where, nodes, running)
    needs = _with_resources(seen)(_needs(pod))
    phase = text_at(pod, "status", "phase")
    if phase == "Succeeded":
        return _print([_ended(needs)], output)
    if text_at(pod, "spec", "nodeName") and phase != "Failed":
        return _print([_running(needs, pod, seen)], output)
    if not needs.asks:
        raise InputError(f"no container of {needs.key} asks for a GPU or a share of one", _ASK)
    # A pod that a node has refused keeps its nodeName; the next one of its controller has none.
    return _print([_explained(replace(needs, node=""), seen, standing_of(pod, events))], output)


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
) -> tuple[Object, Sequence[Object], Sequence[Object], Sequence[Object]]:
    try:
        pod = await reader.pod(namespace, name)
    except Absent as error:
        raise Unsatisfiable(
            f"there is no pod {namespace}/{name} in this cluster", f"kubectl get pods -n {namespace}"
        ) from error
    return pod, await reader.events(namespace, name), await reader.nodes(), await reader.pods()


def _needs(pod: Object) -> PodNeeds:
    from partage.explain.pod_needs import pods_of

    (needs,) = pods_of({**pod, "kind": "Pod"})
    return needs


def _ended(needs: PodNeeds) -> ExplainedPodRow:
    from partage.explain.document import explained_pod

    row = explained_pod(needs, (), {}, f"{needs.key} has ended, and holds nothing.")
    return replace(row, runs=True)


def _running(needs: PodNeeds, pod: Object, seen: SeenNodes) -> ExplainedPodRow:
    """A pod on a node: what it holds there, as the report or else the Node says."""
    from partage.explain.cluster_views import holdings_on_node, running_since, text_at
    from partage.explain.document import explained_pod
    from partage.explain.shares import pod_holdings

    node = text_at(pod, "spec", "nodeName")
    standing = f"{needs.key} is on node {node}{running_since(pod)}."
    report = seen.reports.get(node)
    holds = () if report is None else pod_holdings(node, report, needs.key)
    if not holds:
        view = next((node_view for node_view in seen.nodes if node_view.name == node), None)
        standing += holdings_on_node(needs, view)
    return replace(explained_pod(needs, (), {}, standing), holds=holds, runs=True)

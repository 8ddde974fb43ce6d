"""The nodes of ``explain``: this one, simulated ones, those of reports, those of a cluster.

No slow imports at the top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from msgspec import field
from msgspec.structs import replace

from partage.answers import common_node, common_options, common_output
from partage.answers.process_start import lean_imports
from partage.errors import DaemonError, InputError
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument
    from partage.edges.files.policy import LoadedPolicy
    from partage.edges.kube.reading import Object
    from partage.explain.decide.pod_and_node import NodeView

_NO_AGENT = "no agent runs here: who holds what is not known, so every share counts as free"

T = TypeVar("T")


class Where(Frozen):
    """What the command line says about nodes."""

    policy: str | None
    config: str | None
    machines: tuple[str, ...]
    reports: Path | None
    run_dir: str | None
    kubeconfig: str | None
    in_cluster: bool


class SeenNodes(Frozen):
    """Nodes, what to know about each, and the reports that they are from, as far as there are any."""

    nodes: tuple[NodeView, ...]
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reports: Mapping[str, ReportDocument] = field(default_factory=dict)


def see_nodes(where: Where) -> SeenNodes:
    """The nodes without a cluster. Raises PartageError."""
    _check(where)
    if where.reports is not None:
        return _of_folder(where.reports)
    loaded: list[LoadedPolicy] = []  # standard input can be read once
    found = [_one_node(where, machine, loaded) for machine in where.machines or (None,)]
    names = _distinct([node.name for node, _, _ in found])
    rows = [(name, node, remarks, report) for name, (node, remarks, report) in zip(names, found, strict=True)]
    return SeenNodes(
        tuple(replace(node, name=name) for name, node, _, _ in rows),
        {name: remarks for name, _, remarks, _ in rows},
        {name: report for name, _, _, report in rows if report is not None},
    )


def _check(where: Where) -> None:
    if where.reports is not None and (
        where.machines or where.policy is not None or where.run_dir is not None
    ):
        raise click.UsageError("--reports goes without --machine, --policy and --run-dir")
    if len(where.machines) > 1 and where.run_dir is not None:
        raise click.UsageError("--run-dir is of one node, and --machine names several")


def _distinct(names: Sequence[str]) -> list[str]:
    """Nodes of one name get numbers."""
    return [
        name if names.count(name) == 1 else f"{name} #{names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    ]


def _one_node(
    where: Where, machine: str | None, loaded: list[LoadedPolicy]
) -> tuple[NodeView, tuple[str, ...], ReportDocument | None]:
    """This node or a simulated one: as its agent reports it, or as the policy would have it. loaded: the
    policy, once it has been read.
    """
    import socket

    from partage.explain.node_views import view_of_plan, view_of_report

    name = machine or socket.gethostname().partition(".")[0]
    report = common_node.agent_report(machine, where.run_dir)
    labels = common_options.node_labels()
    if report is not None and where.policy is None:
        return view_of_report(name, report, labels), report.messages, report
    from partage.answers.node_plan import make_plan

    if not loaded:
        loaded.append(common_node.read_policy(where.policy, where.config, report))
    planned = make_plan(loaded[0], machine, where.run_dir, report=report, named=where.policy is not None)
    common_output.print_problems(planned.warnings)
    return view_of_plan(name, planned, labels), () if machine else (_NO_AGENT,), None


def _of_folder(folder: Path) -> SeenNodes:
    from partage.explain.node_views import view_of_report

    nodes, remarks, reports = [], {}, {}
    for name, report, trouble in read_folder(folder):
        nodes.append(view_of_report(name, report))
        remarks[name] = (
            *((f"not up to date: {trouble}",) if trouble else ()),
            *report.messages,
        )
        reports[name] = report
    return SeenNodes(tuple(nodes), remarks, reports)


def read_folder(folder: Path) -> list[tuple[str, ReportDocument, str]]:
    """Name, report and trouble of each node of a folder. Raises InputError if there is none."""
    with lean_imports(tls=True):  # the module can ask agents, too
        from partage.serve_http.pages.sources import ReportFolder

    found = []
    for report in ReportFolder(folder).read():
        if report.report is None:
            common_output.print_problems(
                [
                    replace(problem, file=report.name, severity="warning")
                    for problem in InputError(report.trouble).problems
                ]
            )
        else:
            found.append((report.name, report.report, report.trouble))
    if not found:
        raise InputError(f"{folder} has no report that can be read", "files NAME.json, or NAME/report.json")
    return found


# --- a cluster ---------------------------------------------------------------------------------------


def see_cluster(where: Where, nodes: Sequence[Object], pods: Sequence[Object]) -> SeenNodes:
    """The nodes of a cluster, with what the agents of some report of their GPUs (``--reports``)."""
    from partage.explain.cluster_views import NO_REPORT, views_of_cluster

    if where.machines or where.policy is not None or where.run_dir is not None:
        raise click.UsageError("with a cluster, nodes are not named with --machine, --policy or --run-dir")
    reported = SeenNodes(()) if where.reports is None else _of_folder(where.reports)
    views = views_of_cluster(nodes, pods, {node.name: node for node in reported.nodes})
    blind = {view.name: (NO_REPORT,) for view in views if view.names and not view.gpus}
    return SeenNodes(views, {**blind, **reported.remarks}, reported.reports)


def need_reports(seen: SeenNodes) -> Mapping[str, ReportDocument]:
    """The reports. Raises DaemonError where there is none."""
    if not seen.reports:
        raise DaemonError(
            "no agent runs here, and only an agent knows who holds what",
            "partage explain on the node of the GPU, or --reports DIR",
        )
    return seen.reports

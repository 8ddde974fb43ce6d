"""``partage labels``: the labels of a node."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from partage.answers import common_node, common_options, common_output
from partage.answers.documents.document import Document
from partage.answers.verb import verb

if TYPE_CHECKING:
    from partage.plan.labels import Labels


class LabelsDocument(Document, kw_only=True):
    """The labels of a node: full key to value."""

    kind: Literal["Labels"] = "Labels"
    labels: Mapping[str, str]


@verb("labels")
@common_options.policy_options
@common_options.machine_option
@common_options.run_dir_option
@click.option("--timestamp", is_flag=True, help="Add nvidia.com/gfd.timestamp, seconds since 1970.")
@click.option(
    "--to",
    metavar="FILE",
    help="Also write them to a file that node-feature-discovery reads, such as "
    "/etc/kubernetes/node-feature-discovery/features.d/partage.",
)
@common_options.output_option("table", "json", "yaml", "nfd")
def command(
    *,
    policy: str | None,
    config: str | None,
    machine: str | None,
    run_dir: str | None,
    timestamp: bool,
    to: str | None,
    output: str,
) -> None:
    """Print the labels of the node: those of NVIDIA's GPU Feature Discovery, and Partage's own.

    If an agent runs: the labels of what it offers now. With --policy: as they will be once the policy is
    carried out. Nothing is sent to a cluster; the agent does that (partage agent --cluster).
    """
    labels = _labels(policy, config, machine, run_dir, time.time() if timestamp else None)
    if to is not None:
        _write(Path(to), labels)
    if output == "nfd":
        from partage.edges.files.node_labels import features

        sys.stdout.write(features(labels))
    elif output == "table":
        for key, value in labels.items():
            common_output.say(f"{key}={value}")
    else:
        common_output.print_document(LabelsDocument(labels=labels), output)


def _write(path: Path, labels: Labels) -> None:
    """Raises InputError."""
    from partage.edges.files.node_labels import write_features

    try:
        write_features(path, labels)
    except OSError as error:
        raise common_output.cannot_be_written(str(path), error) from error


def _labels(
    policy: str | None, config: str | None, machine: str | None, run_dir: str | None, now_s: float | None
) -> Labels:
    from msgspec.structs import replace

    from partage.answers.documents.plan import all_steps
    from partage.answers.node_plan import make_plan
    from partage.edges.files.catalogue import geometry_of
    from partage.model.step import StartDaemonAt
    from partage.plan.labels import node_labels
    from partage.plan.reconcile.gpu_after import gpu_after

    loaded = common_node.read_policy(policy, config)
    report = common_node.agent_report(machine, run_dir)
    planned = make_plan(loaded, machine, run_dir, report=report, named=policy is not None)
    common_output.print_problems(planned.warnings)
    inventory, offer = planned.inventory, planned.offer
    if planned.report is not None and policy is None:
        offer = planned.report.offer
    else:
        steps = [step for step in all_steps(planned.plan) if not isinstance(step, StartDaemonAt)]
        gpus = tuple(gpu_after(gpu, steps, geometry_of(gpu)) for gpu in inventory)
        inventory = replace(inventory, gpus=gpus)
    return node_labels(inventory, offer, planned.policy.options, geometry_of, now_s)

"""``partage rightsize``: the right size of a share, from what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage.agent.options import STATE_DIR
from partage.answers import common_options, common_output
from partage.answers.verb import path_option, verb
from partage.errors import InputError

if TYPE_CHECKING:
    from partage.rightsize.changes import Wanted
    from partage.rightsize.decide import GpuSize, Recommendation
    from partage.rightsize.document import RightsizeDocument
    from partage.rightsize.sources import ObservedUse, PrometheusPlace

_OWN = ""
"""``--history`` without a path."""


@verb("rightsize")
@click.option("--prometheus", metavar="URL", help="A Prometheus that scrapes the agents, http://HOST:9090.")
@path_option("--token-file", help="The token it wants.")
@click.option(
    "--window",
    default="7d",
    show_default=True,
    metavar="TIME",
    help="With --prometheus: how far back to look: 90m, 36h, 7d.",
)
@click.option("--namespace", metavar="NAME", help="Only workloads of this namespace.")
@path_option(
    "--trace",
    help="A recorded trace instead: CSV with time, namespace, pod, container, memory_bytes.",
)
@click.option(
    "--history",
    "histories",
    is_flag=False,
    flag_value=_OWN,
    multiple=True,
    metavar="[PATH]",
    help="The history that agents keep themselves: of this node; or, with PATH, a copied directory or answer "
    "of /history.json, or a directory of them. May be repeated.",
)
@common_options.directory_option(
    "--state-dir", STATE_DIR, "With --history: the state directory of this node's agent"
)
@click.option(
    "--gpu",
    metavar="MODEL",
    help="Size for this GPU model: h100-sxm5-80gb, l4. With --history, that of the nodes is the default.",
)
@click.option(
    "--strategy",
    type=click.Choice(("mps", "time-slicing", "mig")),
    default="mps",
    show_default=True,
    help="For -o policy and -o patch: how the GPUs are to be shared.",
)
@click.option("--unit", metavar="AMOUNT", help="Recommend numbers of units of memory (1Gi), not shares.")
@path_option(
    "--manifests",
    multiple=True,
    metavar="PATH",
    help="For -o patch: manifests, or a directory of them, with the Deployments, StatefulSets and Jobs. "
    "May be repeated.",
)
@click.option("--plot", metavar="FILE", help="Also draw used, present and needed memory: .png or .svg.")
@common_options.output_option("table", "json", "yaml", "policy", "patch")
def command(
    *,
    prometheus: str | None,
    token_file: Path | None,
    window: str,
    namespace: str | None,
    trace: Path | None,
    histories: tuple[str, ...],
    state_dir: Path,
    gpu: str | None,
    strategy: str,
    unit: str | None,
    manifests: tuple[Path, ...],
    plot: str | None,
    output: str,
) -> None:
    """Recommend the size of shares from what workloads used.

    For each workload: its highest use, how steady it is, and how busy it keeps the GPU; then how much memory
    its share needs with headroom, into how many shares a GPU can be split for it, and the smallest MIG
    profile. If the figures are not enough (memory taken in advance, too few samples, use of unknown
    processes), it says so, and what to do.

    Memory is sized by the highest use, compute by the 95th percentile. A pod's workload is its name without
    the suffix that Deployments, Jobs and StatefulSets add.

    Exit code 2: an option, the trace or the history is wrong; 3: -o policy or -o patch, and nothing can be
    recommended; 5: Prometheus does not answer.
    """
    if [prometheus is not None, trace is not None, bool(histories)].count(True) != 1:
        raise click.UsageError("one of --prometheus, --trace and --history is needed")
    if manifests and output != "patch":
        raise click.UsageError("--manifests is for -o patch")
    if plot is not None:
        from partage.answers.render.drawing import check_plot

        check_plot(plot)
    from partage.edges.files.usage_days import DIRECTORY
    from partage.rightsize.changes import Wanted, check_unit
    from partage.rightsize.decide import recommend
    from partage.rightsize.document import rightsize_document
    from partage.rightsize.sources import PrometheusPlace

    unit_bytes = None if unit is None else _unit_bytes(unit, strategy)
    of_agents = [state_dir / DIRECTORY if history == _OWN else Path(history) for history in histories]
    place = None if prometheus is None else PrometheusPlace(prometheus, token_file, window)
    seen = _observed(of_agents, trace, place, gpu, namespace)
    check_unit(unit_bytes, seen.size)
    recommendations = [recommend(evidence, seen.size, seen.unattributed) for evidence in seen.evidence]
    if not recommendations:
        raise InputError(
            f"{seen.source} It has no workload that used GPU memory", "check the window and --namespace"
        )
    answer = rightsize_document(recommendations, seen.size, seen.source, seen.unattributed, unit_bytes)
    if plot is not None:
        _draw(plot, answer)
    if output in {"policy", "patch"}:
        _print_yaml(recommendations, Wanted(strategy, seen.size, unit_bytes), output, manifests)
    elif output == "table":
        _print(seen.size, answer)
    else:
        common_output.print_document(answer, output)


def _observed(
    histories: Sequence[Path],
    trace: Path | None,
    prometheus: PrometheusPlace | None,
    gpu: str | None,
    namespace: str | None,
) -> ObservedUse:
    """What was observed, from the one source that was given."""
    from partage.rightsize.sources import from_history, from_prometheus, from_trace, gpu_size

    if histories:
        return from_history(histories, gpu, namespace)
    if gpu is None:
        raise click.UsageError("--gpu is needed: which GPU model to size for")
    if trace is not None:
        return from_trace(trace, gpu_size(gpu), namespace)
    assert prometheus is not None, "one of them was given"
    return from_prometheus(prometheus, gpu_size(gpu), namespace, _progress)


def _draw(plot: str, answer: RightsizeDocument) -> None:
    from partage.answers.render.drawing import check_picture_name
    from partage.rightsize.tables import plot as draw

    common_output.write_file(plot, draw(answer, check_picture_name(plot)))


def _unit_bytes(text: str, strategy: str) -> int:
    from partage.units import MIB, parse_bytes

    if strategy == "mig":
        raise click.UsageError("--unit is for --strategy mps and time-slicing: a MIG device has a fixed size")
    try:
        amount = parse_bytes(text)
    except ValueError as error:
        raise InputError(f"--unit {text[:40]!r}: {error}", "1Gi, 512Mi") from error
    if amount < MIB or amount % MIB:
        raise InputError(f"--unit {text[:40]!r} is not a whole number of MiB", "1Gi, 512Mi")
    return amount


def _print(size: GpuSize, answer: RightsizeDocument) -> None:
    from partage.rightsize.tables import fleet_sentence, remarks, workloads_table
    from partage.units import format_bytes

    console = common_output.console()
    console.print(f"Sized for {size.product}, {format_bytes(size.memory_bytes)}. {answer.source}")
    console.print()
    console.print(workloads_table(answer))
    console.print()
    for line in remarks(answer):
        console.print(f"! {line}", style="yellow")
    console.print(fleet_sentence(answer))


def _print_yaml(
    recommendations: Sequence[Recommendation], wanted: Wanted, output: str, manifests: Sequence[Path]
) -> None:
    import yaml

    from partage.kubernetes.manifests.owners import read_owners
    from partage.rightsize.changes import commented, patches, policy, policy_remarks

    if output == "policy":
        made = policy(recommendations, wanted)
        common_output.say_lines("".join(map(commented, policy_remarks(recommendations, wanted))))
        common_output.say_lines(yaml.safe_dump(made, sort_keys=False))
        return
    for patch in list(patches(recommendations, wanted, read_owners(manifests))):
        common_output.say_lines("---\n" + commented(patch.comment))
        if patch.body is not None:
            common_output.say_lines(yaml.safe_dump(patch.body, sort_keys=False))


def _progress(name: str) -> None:
    common_output.say(f"asking for {name}", err=True)

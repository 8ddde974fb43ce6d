"""``partage explain``: why a pod does not run, who holds a share, why a job waits; and what to do."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from partage.answers import common_options
from partage.answers.verb import common_option, path_option, verb
from partage.explain.verb_nodes import Where
from partage.slurm.version import slurm_bin_option

KINDS = ("pod", "share", "job")


@verb("explain")
@click.argument("words", nargs=-1, required=True, metavar="FILE | pod NAME | share WHAT | job ID")
@common_options.policy_options
@common_option(
    "--machine",
    "machines",
    multiple=True,
    metavar="NAME|FILE",
    envvar=common_options.MACHINE_VARIABLE,
    gives_way_to=common_options.OTHER_NODES,
    help="A simulated node in place of this one: 8xa100-40gb, or a machine file. Repeatable.",
)
@path_option(
    "--reports",
    metavar="DIR",
    help="Nodes by the reports of their agents, NAME.json or NAME/report.json, as for partage web.",
)
@click.option("--cluster", is_flag=True, help="The nodes of the cluster, in place of this one.")
@click.option(
    "--kubeconfig",
    metavar="FILE",
    envvar="KUBECONFIG",
    help="How to reach the cluster (~/.kube/config). On the command line it means --cluster, too.",
)
@click.option("-n", "--namespace", metavar="NAME", help="Of the pod; in place of NAMESPACE/NAME.")
@common_options.driver_root_option
@common_options.run_dir_option
@slurm_bin_option("With job: the directory of scontrol and squeue.")
@common_options.output_option("table", "json", "yaml")
@click.pass_context
def command(  # noqa: PLR0917 - click calls it by keyword
    ctx: click.Context,
    words: tuple[str, ...],
    policy: str | None,
    config: str | None,
    machines: tuple[str, ...],
    reports: Path | None,
    cluster: bool,
    kubeconfig: str | None,
    namespace: str | None,
    run_dir: str | None,
    slurm_bin: Path | None,
    output: str,
) -> int:
    """Explain why a pod or job waits, and who holds a share. Each answer says what to do next.

    FILE: a manifest of a Pod, Deployment, Job or the like; - is standard input. The answer says for each node
    and GPU why the pod does not fit, and which smallest change would help. The pod is tried on this node as
    its agent reports it, on simulated nodes (--machine, --policy), on the nodes of --reports, or on those of
    a cluster. Its ResourceClaims are tried, too, with templates and classes of the same file or the cluster.

    pod NAMESPACE/NAME: the same for a pod of the cluster. Of a pod that runs: what it holds.

    share WHAT: who holds it, since when, and what is guaranteed about it. WHAT is the index of a GPU, a UUID,
    the id of a share, a resource or NAMESPACE/POD.

    job ID: why a job of Slurm waits, or what it holds.

    Nothing is changed. Exit code 0: it fits a node now, runs, or was found; 1: it fits no node now, or the
    job waits; 2: wrong input; 3: no such pod or job; 4: no agent or no driver; 5: the cluster or Slurm does
    not answer.
    """
    given = ctx.get_parameter_source("kubeconfig") is ParameterSource.COMMANDLINE
    where = Where(policy, config, machines, reports, run_dir, kubeconfig, in_cluster=cluster or given)
    kind, name = _kind_and_name(words)
    if kind == "share" and where.in_cluster:
        raise click.UsageError(
            "only agents know who holds a share: name their reports with --reports DIR, or run it on the node"
        )
    if kind == "job" and (where.in_cluster or where.machines or where.policy or where.reports):
        raise click.UsageError("a job is looked up in the Slurm of this host, and goes without nodes")
    if namespace is not None and kind != "pod":
        raise click.UsageError("--namespace goes with pod")
    if kind == "share":
        from partage.explain.shares import explain_share

        return explain_share(name, where, output)
    if kind == "job":
        from partage.explain.verb_job import answer_job

        return answer_job(name, run_dir, slurm_bin, output)
    from partage.explain.verb_pod import explain_file, explain_live_pod

    if kind == "pod":
        return explain_live_pod(name, namespace, where, output)
    return explain_file(name, where, output)


_PREFIXES = {"pod": "pod", "pods": "pod", "po": "pod", "share": "share", "job": "job"}
"""How kubectl writes a kind before a name: ``pod/notebook``."""


def _is_a_name(word: str) -> bool:
    """Whether a word alone is no file, and does not look like one."""
    looks_like_a_file = Path(word).suffix in (".yaml", ".yml", ".json") or word.startswith((".", "/", "~"))
    return word != "-" and word not in KINDS and not looks_like_a_file and not Path(word).exists()


def _which_form(name: str) -> str:
    """What somebody may have meant by a name alone."""
    kind, slash, rest = name.partition("/")
    if slash and kind in _PREFIXES:
        return f"a kind and a name are two words: partage explain {_PREFIXES[kind]} {rest}"
    if name.isdecimal():
        ways = f"who holds a GPU: partage explain share {name}; a job of Slurm: partage explain job {name}"
    elif name.startswith(("GPU-", "MIG-")):
        ways = f"who holds it: partage explain share {name}"
    else:
        ways = f"a pod of the cluster: partage explain pod {name}; its shares: partage explain share {name}"
    return f"there is no file {name}; {ways}"


def _kind_and_name(words: tuple[str, ...]) -> tuple[str, str]:
    """``pod a/b`` is a kind and a name, ``pod.yaml`` a file."""
    if len(words) == 1:
        if _is_a_name(words[0]):
            raise click.UsageError(_which_form(words[0]))
        if words[0] in KINDS and not Path(words[0]).exists():
            raise click.UsageError(f"say which {words[0]}: partage explain {words[0]} NAME")
        return "file", words[0]
    if words[0] not in KINDS:
        kinds = ", ".join(KINDS)
        raise click.UsageError(f"{words[0]!r} is none of {kinds}; a manifest is named alone")
    if len(words) > 2:
        raise click.UsageError(f"unexpected argument {words[2]!r}")
    return words[0], words[1]

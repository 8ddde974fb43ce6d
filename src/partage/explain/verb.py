"""``partage explain``: why a pod does not run, who holds a share, why a job waits; and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
from click.core import ParameterSource

from partage.answers import common_options, common_output
from partage.answers.verb import common_option, verb
from partage.errors import InputError, Unsatisfiable
from partage.explain.decide.job import JobVerdict, SlurmNow, explain_job
from partage.explain.document import JobExplanationDocument, JobHoldingRow
from partage.explain.verb_nodes import Where
from partage.slurm.model import JobDevice, JobRecord, QueuedJob
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
@click.option(
    "--reports",
    type=click.Path(path_type=Path),
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


def answer_job(name: str, run_dir: str | None, programs: Path | None, output: str) -> int:
    """A job by its number; the exit code. Raises ClusterError, Unsatisfiable, InputError."""
    if not (name.isascii() and name.isdigit() and len(name) < 12):
        raise InputError(
            f"{name[:40]!r} is not the number of a job",
            "a number as in the first column of squeue; for a task of an array: squeue -O JobID,ArrayJobID",
        )
    from partage.slurm.host.control import SlurmControl
    from partage.slurm.host.job_records import read_records
    from partage.slurm.model import JobId

    control = SlurmControl(programs)
    now = SlurmNow(control.settings(), control.nodes(), control.queue())
    number = int(name)
    job = next((queued_job for queued_job in now.queue if queued_job.job == number), None)
    if job is None:
        raise Unsatisfiable(
            f"Slurm has no job {number} in its queue: it has ended, or there was none",
            f"sacct -j {number} says how it ended, where accounting is on",
        )
    records = read_records(Path(run_dir or common_options.DEFAULT_RUN_DIR))
    document = job_document(job, now, records.of(JobId(number)))
    if output == "table":
        from partage.explain.tables import job_lines

        console = common_output.console()
        for line in job_lines(document):
            console.print(line)
    else:
        common_output.print_document(document, output)
    return 0 if document.standing == "runs" else 1


_NOT_NOTED = (
    "what is guaranteed is noted on the node of the job: partage explain job there (the prolog of "
    "deploy/slurm writes it)"
)


def job_document(job: QueuedJob, now: SlurmNow, noted: JobRecord | str | None) -> JobExplanationDocument:
    """The answer. noted: what the prolog of this node has noted of the job; a sentence: why that cannot be
    read."""
    unread, record = (noted, None) if isinstance(noted, str) else (_NOT_NOTED, noted)
    verdict = explain_job(job, now) if job.waits else _started(job, record)
    return JobExplanationDocument(
        job=job.job,
        user=job.user,
        partition=job.partition,
        asks=job.asks or job.asks_in_all,
        standing=verdict.kind,
        why=verdict.why,
        todo=verdict.todo,
        slurm_says=job.reason,
        since=None if job.waits or job.started_s is None else moment(job.started_s),
        nodes=verdict.nodes,
        holds=() if job.waits else tuple(_holds(job, record, unread)),
    )


def moment(seconds: float) -> str:
    """RFC 3339, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _started(job: QueuedJob, record: JobRecord | None) -> JobVerdict:
    if record is not None and record.refused:
        return JobVerdict("refused", record.refused, f"its tasks end with this; submit job {job.job} again")
    where = ", ".join(job.nodes) or "?"
    if not any(job.holds.values()) and record is None:
        return JobVerdict("runs", f"it runs on {where} and holds no GPU", "nothing has to be done")
    return JobVerdict("runs", f"it runs on {where}", "nothing has to be done")


def _holds(job: QueuedJob, record: JobRecord | None, unread: str) -> Iterator[JobHoldingRow]:
    """unread: why a device has no record."""
    noted = {} if record is None else {device.index: device for device in record.devices}
    for node, some in job.holds.items():
        for held in some:
            for index in held.indexes or (None,):
                device = noted.get(index) if index is not None else None
                if device is not None:
                    yield _noted(node, device)
                else:
                    yield JobHoldingRow(node, index, None, None, held.gres, None, None, unread)


def _noted(node: str, device: JobDevice) -> JobHoldingRow:
    gres = f"{device.gres}:{device.units} of {device.units_of}" if device.units else f"gpu:{device.type}"
    return JobHoldingRow(
        node=node,
        index=device.index,
        device=device.name,
        uuid=device.uuid,
        gres=gres,
        memory_bytes=device.memory_bytes,
        guarantee=device.guarantee,
        why=device.guarantee.means,
    )

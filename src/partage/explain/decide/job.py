"""Why a job of Slurm waits, node by node and GPU by GPU, and what would let it start. Pure.

What becomes of its request is judged by the rules of ``slurm.decide.request``; who holds what is as Slurm
says.

Slurm's words: enum job_state_reason and job_state_reason_string of Slurm 22.05 and 24.11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from partage.explain.decide.amounts import fewest
from partage.slurm.decide.node_view import SHARED, GresCount, SlurmNodeView, live_view, parse_gres
from partage.slurm.decide.request import Outcome, RequestVerdict, judge_request
from partage.slurm.model import JobId, LiveNode, LiveSettings, QueuedJob
from partage.text import listed
from partage.values import Answer, Frozen


class SlurmWord(Frozen):
    """why: a sentence; todo: what to do, with ``{job}`` for the job's number."""

    why: str
    todo: str


_RELEASE = "scontrol release {job}"
_SHOW = "scontrol show job {job} says more"

WORDS = {
    "JobHeldUser": SlurmWord("its user holds it back", _RELEASE),
    "JobHeldAdmin": SlurmWord(
        "an administrator holds it back", "ask an administrator for scontrol release {job}"
    ),
    "BeginTime": SlurmWord(
        "it may not begin before the time that it was given",
        "wait, if its node has put it back into the queue (AdminComment in scontrol show job {job}); else "
        "scontrol update jobid={job} starttime=now",
    ),
    "Dependency": SlurmWord(
        "another job has to end first", "wait, or scontrol update jobid={job} dependency="
    ),
    "DependencyNeverSatisfied": SlurmWord(
        "what it depends on of another job can no longer happen",
        "scancel {job}, or scontrol update jobid={job} dependency=",
    ),
    "PartitionDown": SlurmWord(
        "its partition is down", "ask an administrator, or scontrol update jobid={job} partition=OTHER"
    ),
    "PartitionInactive": SlurmWord(
        "its partition is inactive", "ask an administrator, or scontrol update jobid={job} partition=OTHER"
    ),
    "PartitionTimeLimit": SlurmWord(
        "it asks for more time than its partition allows", "scontrol update jobid={job} timelimit=LESS"
    ),
    "PartitionNodeLimit": SlurmWord(
        "it asks for more nodes than its partition allows", "ask for fewer nodes, or for another partition"
    ),
    "Licenses": SlurmWord(
        "licenses that it asks for are in use", "wait; scontrol show licenses says who has them"
    ),
    "Reservation": SlurmWord("its reservation has not begun", "scontrol show reservation says when it does"),
    "ReservationDeleted": SlurmWord(
        "its reservation is gone", "scontrol update jobid={job} reservationname="
    ),
    "BadConstraints": SlurmWord(
        "no node has what it asks for", "change its request: partage slurm check --request"
    ),
    "InvalidAccount": SlurmWord("its account is not valid", "scontrol update jobid={job} account=ANOTHER"),
    "InvalidQOS": SlurmWord("its QOS is not valid", "scontrol update jobid={job} qos=ANOTHER"),
    "JobArrayTaskLimit": SlurmWord(
        "its job array runs as many tasks as it may at once", "wait, or raise the limit of the array (%)"
    ),
    "JobHoldMaxRequeue": SlurmWord(
        "it was started in vain too often", "look at its output, then " + _RELEASE
    ),
    "JobLaunchFailure": SlurmWord(
        "it could not be started", "look at the log of slurmd on its node, then " + _RELEASE
    ),
    "Prolog": SlurmWord("the prolog of its node still runs", "wait a moment"),
    "Cleaning": SlurmWord("it is being started again, and its last run is cleaned up", "wait a moment"),
}

NODES = ("Resources", "ReqNodeNotAvail", "Nodes", "")
"""Words after which the nodes say more."""

BEHIND = "Priority"
"""Other jobs are before it in the queue."""


def said_by_slurm(reason: str) -> SlurmWord | None:
    """The word as a sentence; None where the nodes or the queue have to be looked at."""
    word = reason.partition(",")[0].strip()
    if word in WORDS:
        return WORDS[word]
    if word.startswith(("Assoc", "QOS", "MaxJobs", "Grp")):
        what = "GPUs or other GRES" if "GRES" in word.upper() else "what its account or QOS may have at once"
        return SlurmWord(
            f"a limit is reached on {what} (Slurm's word for the limit: {word})",
            "wait until jobs of this account end; sacctmgr show assoc, or show qos, says the limits",
        )
    if any(word.startswith(known) for known in (*NODES[:-1], BEHIND)) or not word:
        return None
    return SlurmWord(f"Slurm gives a reason that is not known here: {word}", _SHOW)


class JobGpu(Answer):
    """One GPU of a node, by Slurm's index. why: why it gives the job nothing; empty: it could. todo: what to
    do; may be empty."""

    index: int
    why: str
    todo: str = ""


class JobNodeVerdict(Answer):
    """One node. why: why the job does not start there; empty: its GPUs would do. jobs: those that have to
    end."""

    name: str
    why: str
    todo: str = ""
    jobs: tuple[JobId, ...] = ()
    gpus: tuple[JobGpu, ...] = ()


class JobVerdict(Frozen):
    """standing: ``waits``, ``never`` (it will not start by itself), ``runs``. why: a sentence; todo: the next
    step. slurm_says: Slurm's own word. nodes: those that matter, the nearest first."""

    standing: str
    why: str
    todo: str
    slurm_says: str = ""
    nodes: tuple[JobNodeVerdict, ...] = ()


class SlurmNow(Frozen):
    """What Slurm says now: its settings, all nodes by name, all jobs."""

    settings: LiveSettings
    nodes: Mapping[str, LiveNode]
    queue: tuple[QueuedJob, ...]

    @property
    def views(self) -> tuple[SlurmNodeView, ...]:
        """The nodes with GRES, for the rules."""
        return tuple(live_view(node) for node in self.nodes.values() if node.gres)


def explain_job(job: QueuedJob, now: SlurmNow) -> JobVerdict:
    """A job of the queue that waits."""
    verdict = judged(job, now)
    if verdict is not None and verdict.outcome is not Outcome.ACCEPTED:
        todo = verdict.hint or "change its request"
        why = f"{job.asks}: {verdict.why}, so it {_OUTCOMES[verdict.outcome]}"
        return JobVerdict("never", why, f"{todo}; then scancel {job.job} and submit it again", job.reason)
    word = said_by_slurm(job.reason)
    if word is not None:
        return _by_word(job, word)
    nodes = tuple(sorted(_nodes(job, now), key=lambda node: (bool(node.why), not node.jobs, len(node.jobs))))
    if job.reason.startswith(BEHIND):
        return _behind(job, now, nodes)
    return _by_nodes(job, nodes)


_OUTCOMES = {
    Outcome.REFUSED: "can run on no node",
    Outcome.WAITS: "waits for ever",
    Outcome.FAILS: "would start and fail",
}


def judged(job: QueuedJob, now: SlurmNow) -> RequestVerdict | None:
    """What becomes of its request by Slurm's rules; None for one that names no GPUs of each node."""
    if not job.asks:
        return None
    settings = now.settings
    return judge_request(job.asks, now.views, settings.gres_types, settings.version, spread=settings.spread)


def _by_word(job: QueuedJob, word: SlurmWord) -> JobVerdict:
    why = word.why + (f": {job.dependency}" if job.dependency and job.reason.startswith("Dependency") else "")
    return JobVerdict("waits", why, word.todo.format(job=job.job), job.reason)


def _behind(job: QueuedJob, now: SlurmNow, nodes: tuple[JobNodeVerdict, ...]) -> JobVerdict:
    """Jobs before it in the queue, above all one that can never start."""
    ahead = [
        other
        for other in now.queue
        if other.waits
        and other.job != job.job
        and other.partition == job.partition
        and _holds_others_up(other)
    ]
    for queued_job in ahead:
        verdict = judged(queued_job, now)
        if verdict is not None and verdict.outcome is Outcome.WAITS:
            return JobVerdict(
                "waits",
                f"job {queued_job.job} of {queued_job.user or '?'} is before it in partition "
                f"{job.partition}, and waits for ever: {verdict.why}",
                f"its owner or an administrator ends it: scancel {queued_job.job}",
                job.reason,
                nodes,
            )
    names = listed([str(other.job) for other in ahead]) or "other jobs"
    free = any(not node.why for node in nodes)
    more = "; GPUs that it could have are free, and are kept for jobs before it" if free else ""
    return JobVerdict(
        "waits",
        f"jobs with a higher priority are before it in partition {job.partition}: {names}{more}",
        "wait; sprio and squeue --start say when it may start; a shorter --time can let it start earlier",
        job.reason,
        nodes,
    )


def _holds_others_up(job: QueuedJob) -> bool:
    return job.reason.startswith("Resources")


def _by_nodes(job: QueuedJob, nodes: tuple[JobNodeVerdict, ...]) -> JobVerdict:
    nearest = nodes[0] if nodes else None
    if nearest is None:
        why = "it asks for no GPUs of a node, so CPUs, memory or nodes are missing"
        return JobVerdict("waits", why, f"scontrol show job {job.job} says what it asks for", job.reason)
    if not nearest.why:
        why = f"GPUs that it asks for are free on {nearest.name}, so something else is missing there"
        todo = f"scontrol show node {nearest.name} says what is left, squeue --start when it may start"
        if job.asks.startswith("mps") and any(gpu.why and gpu.todo for gpu in nearest.gpus):
            why += ": CPUs, memory, or Slurm uses one GPU of the node at a time for mps"
            todo += (
                "; partage slurm check says whether gres.conf lacks Flags=all_sharing, or a line of mps with "
                "Count=0 for the GPUs without mps (partage slurm config writes both)"
            )
        return JobVerdict("waits", why, todo, job.reason, nodes)
    return JobVerdict("waits", f"{nearest.name}: {nearest.why}", nearest.todo, job.reason, nodes)


# --- nodes and GPUs -----------------------------------------------------------------------------------


def _nodes(job: QueuedJob, now: SlurmNow) -> Iterator[JobNodeVerdict]:
    asked = _asked(job)
    if asked is None:
        return
    for view in now.views:
        if job.required and view.name not in job.required:
            continue
        if job.asks and not _could_run(job, view, now):
            continue
        yield _node(now.nodes[view.name], view, asked, now)


def _asked(job: QueuedJob) -> GresCount | None:
    """What decides: the first of its GRES that is a GPU or shares of one."""
    try:
        counts = parse_gres(job.asks or job.asks_in_all)
    except ValueError:
        return None
    return next((count for count in counts if count.name == "gpu" or count.name in SHARED), None)


def _could_run(job: QueuedJob, view: SlurmNodeView, now: SlurmNow) -> bool:
    settings = now.settings
    verdict = judge_request(job.asks, [view], settings.gres_types, settings.version, spread=settings.spread)
    return verdict.outcome is Outcome.ACCEPTED


def _node(node: LiveNode, view: SlurmNodeView, asked: GresCount, now: SlurmNow) -> JobNodeVerdict:
    gpus, free, holders = _gpus(view, asked, now)
    if (why := _closed(node)) is not None:
        return JobNodeVerdict(node.name, *why, gpus=gpus)
    need = 1 if asked.count is None else asked.count
    if asked.name in SHARED:
        if any(not gpu.why for gpu in gpus):
            return JobNodeVerdict(node.name, "", gpus=gpus)
        jobs = _fewest_on_one(view, asked, need, now)
        largest = max(free.values(), default=0)
        why_ = f"{need} of {asked.name} of one GPU are asked for, and at most {largest} are free on one"
        return JobNodeVerdict(node.name, why_, _end(jobs), jobs, gpus)
    count = sum(free.values())
    if count >= need:
        return JobNodeVerdict(node.name, "", gpus=gpus)
    jobs = fewest(holders, need - count) or ()
    what = f"gpu:{asked.type}" if asked.type else "gpu"
    return JobNodeVerdict(
        node.name, f"{need} x {what} is asked for, and {count} is free", _end(jobs), jobs, gpus
    )


def _closed(node: LiveNode) -> tuple[str, str] | None:
    """Why the node takes no job at all, and what to do."""
    reason = f": {node.reason}" if node.reason else ""
    by = f" ({node.reason_by})" if node.reason_by else ""
    if node.invalid:
        return (
            f"its slurmd has less than slurm.conf says{reason}",
            "partage slurm check --live on the node",
        )
    if node.away:
        return f"its slurmd does not answer{reason}", f"repair the node; scontrol show node {node.name}"
    if node.drained:
        return (
            f"it is drained and takes no new jobs{reason}{by}",
            f"once that is done: scontrol update nodename={node.name} state=resume",
        )
    return None


def _gpus(
    view: SlurmNodeView, asked: GresCount, now: SlurmNow
) -> tuple[tuple[JobGpu, ...], dict[int, int], Counter[JobId]]:
    """Each GPU; what is free of it; and how many GPUs of the wanted kind each job holds."""
    gpus, free, holders = [], dict[int, int](), Counter[JobId]()
    need = 1 if asked.count is None else asked.count
    for index, gpu in enumerate(view.gpus):
        users = _users(view.name, index, now)
        names = listed([f"job {job.job} ({job.user or '?'}, {gres})" for job, gres, _ in users])
        if asked.name in SHARED:
            units = view.shares.get(asked.name, ())
            total = units[index] if index < len(units) else 0
            if not total:
                gpus.append(JobGpu(index, f"it is {_kind(gpu.type)}, without {asked.name}"))
                continue
            whole = any(gres.startswith("gpu") for _, gres, _ in users)
            left = 0 if whole else total - sum(count for _, _, count in users)
            free[index] = left
            jobs = _fewest_here(users, need - left, whole=whole)
            why = "" if left >= need else f"{left} of {total} {asked.name} is free; held by {names}"
            gpus.append(JobGpu(index, why, "" if not why else _end(jobs)))
            continue
        if asked.type and gpu.type != asked.type:
            gpus.append(JobGpu(index, f"it is {_kind(gpu.type)}"))
            continue
        free[index] = int(not users)
        holders.update(dict.fromkeys((job.job for job, _, _ in users), 1))
        ends = tuple(job.job for job, _, _ in users)
        gpus.append(JobGpu(index, f"held by {names}" if users else "", _end(ends) if users else ""))
    return tuple(gpus), free, holders


def _kind(gpu_type: str) -> str:
    return f"gpu:{gpu_type}" if gpu_type else "a GPU without a type"


def _users(node: str, index: int, now: SlurmNow) -> list[tuple[QueuedJob, str, int]]:
    """The jobs that hold something of a GPU, what, and how many units of it."""
    return [
        (job, held.gres, held.count)
        for job in now.queue
        for held in job.holds.get(node, ())
        if index in held.indexes
    ]


def _fewest_here(
    users: Sequence[tuple[QueuedJob, str, int]], missing: int, *, whole: bool
) -> tuple[JobId, ...]:
    if whole:
        return tuple(job.job for job, _, _ in users)
    return fewest({job.job: count for job, _, count in users}, missing) or ()


def _fewest_on_one(view: SlurmNodeView, asked: GresCount, need: int, now: SlurmNow) -> tuple[JobId, ...]:
    """Of the GPU where the fewest jobs have to end."""
    ways = []
    for index, total in enumerate(view.shares.get(asked.name, ())):
        users = _users(view.name, index, now)
        whole = any(gres.startswith("gpu") for _, gres, _ in users)
        left = 0 if whole else total - sum(count for _, _, count in users)
        if total >= need and (jobs := _fewest_here(users, need - left, whole=whole)):
            ways.append(jobs)
    return min(ways, key=len, default=())


def _end(jobs: tuple[JobId, ...]) -> str:
    """What to do for these jobs to end."""
    if not jobs:
        return ""
    names = listed([str(job) for job in jobs])
    word = "job" if len(jobs) == 1 else "jobs"
    verb = "has" if len(jobs) == 1 else "have"
    return f"wait until {word} {names} {verb} ended, or end {'it' if len(jobs) == 1 else 'them'} (scancel)"

"""What a node that Slurm manages needs next, so that Slurm and its GPUs agree. Pure.

Slurm knows a GPU or MIG device by its place in a list, and a change of that list under a running job gives
its GPU to another one. So the node is drained first, always; then all jobs with GPUs end; then the layout
changes, the files are written, slurmd reads them, and the node is resumed. Every move follows from what is
there now, so an agent that was killed goes on where it was, or the node stays drained and says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import field

from partage.slurm.decide import releases
from partage.slurm.decide.node_files import Files
from partage.slurm.decide.node_view import SHARED, parse_gres
from partage.slurm.model import LiveJob, LiveNode, SlurmVersion
from partage.values import Frozen, Tagged

MARK = "partage agent: "
"""How the reason of a node begins that the agent drained. Where a prolog of Partage's
drains, it begins with ``partage:``, and the agent does not resume the node."""

_STRANGE = re.compile(r"[^A-Za-z0-9 .,:;/()_'+=<>-]+", re.ASCII)
_LONGEST = 300
_SOME = 5
_AWAY = "waits for slurmd to register"
_GRES = r"gres/\S+ count (?:reported lower than configured|too low)"
_SLURMS_OWN = re.compile(rf"{_GRES}|^Not responding$")
_NOT_GPUS = re.compile(rf"^(?!.*{_GRES}).*\bLow (?:RealMemory|CPUs|socket|TmpDisk)")
"""Why else slurmctld calls a node invalid (``validate_node_specs`` in src/slurmctld/node_mgr.c): a DIMM has
failed, and nothing that Partage could do helps."""


class LoadFiles(Tagged, tag="load"):
    """Have slurmd read them. reconfigure: by ``scontrol reconfigure``; else slurmd is (re)started."""

    reconfigure: bool


class MoveInput(Frozen):
    """A node at one moment.

    node: None: slurmctld does not answer. jobs: those on the node; None: not asked. processes: those on GPUs
    that belong to a job by their cgroup, ``python (pid 4711) of job 71``. version: of Slurm. trouble: why the
    node cannot serve jobs whatever is done, a sentence. undescribed: why it is not known what the files have
    to say. change: which layout has to be made; ready: it can be made now; stuck: why not. files: of this
    node; unwritten: why they cannot be written now, or what somebody else has to do about them. loaded:
    slurmd has read them; told: slurmctld has, too, where they are its own. asked: how they were asked
    to, a short while ago; refused: why that failed. reconfigured: Slurm has followed a request of this agent
    to reconfigure since the files are there. wanted: what the node has, ``Gres=``; empty: not known.
    writes_counts: the node's line in slurm.conf is among its files. resumed: the ``stamp`` of the node when
    Partage resumed it last.
    """

    node: LiveNode | None
    version: SlurmVersion
    jobs: tuple[LiveJob, ...] | None = None
    processes: tuple[str, ...] = ()
    trouble: str = ""
    undescribed: str = ""
    change: str = ""
    ready: bool = False
    stuck: str = ""
    files: Files = Files.RIGHT
    unwritten: str = ""
    loaded: bool = True
    told: bool = True
    asked: LoadFiles | None = None
    refused: str = ""
    reconfigured: bool = False
    wanted: str = ""
    writes_counts: bool = False
    resumed: str = ""


class Rest(Tagged, tag="rest"):
    """Nothing now. why: what it waits for, a sentence; empty: all is as it should be."""

    why: str = ""


class DrainNode(Tagged, tag="drain"):
    """Have the node get no new jobs, with this reason."""

    reason: str


class MakeLayout(Tagged, tag="layout"):
    """Carry out what the planner says is ready."""


class WriteFiles(Tagged, tag="write"):
    """Write the node's files."""


class ResumeNode(Tagged, tag="resume"):
    """Have the node get jobs again."""


Move = Rest | DrainNode | MakeLayout | WriteFiles | LoadFiles | ResumeNode


def next_move(now: MoveInput) -> Move:
    """The one thing to do now. Do it, look again, ask again."""
    node = now.node
    if node is None:
        return Rest("slurmctld does not answer")
    due = what_is_due(now)
    if not due:
        return _nothing_due(now, node)
    if not node.drained or _takes_over(now, node):
        return DrainNode(_reason(due))
    if now.trouble:
        return _told(now, node, due)
    if now.jobs is None:
        return Rest("it is not known which jobs run here")
    if holders := [job for job in now.jobs if job.holds_gpus]:
        return Rest(f"waits for {_listed(holders)}")
    if now.processes:  # of a job that slurmctld does not know, or no longer
        return Rest(f"waits for {', '.join(now.processes[:_SOME])}")
    return _on_a_free_node(now, node, due)


def what_is_due(now: MoveInput) -> str:
    """Why the node cannot get jobs as it is, a sentence; empty: it can."""
    node = now.node
    assert node is not None
    if now.trouble or now.change:
        return now.trouble or now.change
    if now.files is Files.WRONG:
        return "gres.conf is not what the node has"
    if not now.loaded:
        return "slurmd has still to read gres.conf"
    if not now.told:
        return "slurmctld has still to read the files of this node"
    if node.invalid and not _NOT_GPUS.search(node.reason):
        return f"Slurm calls the node invalid: {_plain(now, node) or 'slurmd has less than slurm.conf says'}"
    if drained_by_partage(now) and _miscounted(now, node):
        return "slurmctld has other GPUs in mind than the node has"
    return ""


def drained_by_partage(now: MoveInput) -> bool:
    """Whether the node is drained for a reason of Partage's, since it was resumed last."""
    node = now.node
    return (
        node is not None
        and node.drained
        and node.reason.startswith(MARK)
        and (not now.resumed or stamp(node) != now.resumed)
    )


def stamp(node: LiveNode) -> str:
    """The reason of a node, with the moment at which it was given. Slurm keeps a reason after a resume, and
    also uses it for a drain of its own then."""
    return f"{node.reason} [{node.reason_by}]"


def _takes_over(now: MoveInput, node: LiveNode) -> bool:
    """Slurm itself has drained the node because it is invalid, and Partage is about to repair that."""
    if not node.invalid or drained_by_partage(now):
        return False
    stale = bool(now.resumed) and stamp(node) == now.resumed
    return not node.reason or stale or _SLURMS_OWN.search(node.reason) is not None


def _plain(now: MoveInput, node: LiveNode) -> str:
    """Slurm's reason without ours in front of it."""
    reason = node.reason
    if now.resumed and stamp(node) == now.resumed:
        return ""
    prefix = MARK + "Slurm calls the node invalid: "
    return "" if reason.startswith(MARK) and not reason.startswith(prefix) else reason.removeprefix(prefix)


def _nothing_due(now: MoveInput, node: LiveNode) -> Move:
    if now.undescribed:
        return Rest(now.undescribed)
    if drained_by_partage(now):
        if node.away:  # Partage has drained the node, so it brings it back
            return _unless_asked(now, LoadFiles(reconfigure=False))
        return ResumeNode()
    if now.files is Files.REMARKS and not now.unwritten:
        return WriteFiles()
    if node.drained:
        return Rest(f"drained by somebody else: {node.reason or 'no reason'}")
    if _miscounted(now, node):
        return Rest(f"{_counts(now, node)}: {_advice(now)}")
    return Rest()


def _told(now: MoveInput, node: LiveNode, due: str) -> Move:
    """The reason that Slurm shows is the one that counts now."""
    if drained_by_partage(now) and node.reason != _reason(due):
        return DrainNode(_reason(due))
    return Rest(due)


def _reason(due: str) -> str:
    """As Slurm keeps and prints it unchanged: one line of plain signs."""
    return " ".join(_STRANGE.sub(" ", MARK + due).split())[:_LONGEST].rstrip()


def _on_a_free_node(now: MoveInput, node: LiveNode, due: str) -> Move:
    """The node is drained, and no job has a GPU of it."""
    if now.change:
        return MakeLayout() if now.ready else Rest(f"{now.change}: {now.stuck or 'not yet'}")
    if now.files is Files.WRONG:
        return _told(now, node, f"{due}: {now.unwritten}") if now.unwritten else WriteFiles()
    return _have_it_read(now, node)


def _have_it_read(now: MoveInput, node: LiveNode) -> Move:
    """Since 23.11 by a reconfigure, which starts every daemon of the cluster anew: once for what the files
    say. It starts no slurmd that is down, and what it has not brought, another one does not bring: then
    slurmd of this node is restarted."""
    if node.away and not drained_by_partage(now):
        return Rest(_AWAY)  # who drained it may have stopped slurmd, too
    newer = now.version >= releases.RECONFIGURE_APPLIES
    read = now.loaded and now.told and not node.away
    miscounted = _miscounted(now, node)
    helps = now.writes_counts or not (read and miscounted)
    if newer and helps and not (now.reconfigured or node.away):
        return _unless_asked(now, LoadFiles(reconfigure=True))
    if read and miscounted and not (newer and now.asked):
        return _told(now, node, f"{_counts(now, node)}: {_advice(now)}")
    return _unless_asked(now, LoadFiles(reconfigure=False))


def _unless_asked(now: MoveInput, move: LoadFiles) -> Move:
    """A reconfigure restarts slurmd, too: what it brings is waited for before anything else."""
    if now.asked is None or (move.reconfigure and not now.asked.reconfigure):
        return move
    return Rest(now.refused or "slurmd reads gres.conf")


def _miscounted(now: MoveInput, node: LiveNode) -> bool:
    return bool(now.wanted) and counts_differ(node.gres, now.wanted)


def _counts(now: MoveInput, node: LiveNode) -> str:
    return f"slurmctld has Gres={node.gres or '(none)'} for this node, and it has Gres={now.wanted}"


def _advice(now: MoveInput) -> str:
    """What somebody has to do about other counts."""
    newer = now.version >= releases.RECONFIGURE_APPLIES
    if newer and now.writes_counts:
        return "does slurm.conf include the node's file?"
    then = "scontrol reconfigure" if newer else "restart slurmctld, which keeps the old one on reconfigure"
    return then if now.writes_counts else f"write that in slurm.conf, then {then}"


def _listed(jobs: list[LiveJob]) -> str:
    words = [f"{job.job}{f' of {job.user}' if job.user else ''}" for job in jobs[:_SOME]]
    more = f" and {len(jobs) - _SOME} more" if len(jobs) > _SOME else ""
    return f"{'job' if len(jobs) == 1 else 'jobs'} {', '.join(words)}{more}"


# --- counts ---------------------------------------------------------------------------------------


class _Counted(Frozen):
    gpus: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, int] = field(default_factory=dict)


def counts_differ(says: str, wanted: str) -> bool:
    """Whether two ``Gres=`` mean other counts. Slurm shows shares by the type of their GPU, also none."""
    try:
        return _counted(says) != _counted(wanted)
    except ValueError:
        return True


def _counted(text: str) -> _Counted:
    gpus: dict[str, int] = {}
    shares: dict[str, int] = {}
    for gres in parse_gres(re.sub(r"\([^()]*\)", "", text)):
        count = 1 if gres.count is None else gres.count
        if gres.name in SHARED and count:
            shares[gres.name] = shares.get(gres.name, 0) + count
        elif gres.name == "gpu" and count:
            gpus[gres.type] = gpus.get(gres.type, 0) + count
    return _Counted(gpus, shares)

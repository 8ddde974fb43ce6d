"""Slurm's words for why a job waits, as sentences with a next step.

Source: enum job_state_reason and job_state_reason_string of Slurm 22.05 and 24.11.
"""

from __future__ import annotations

from partage.values import Frozen


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
    if any(word.startswith(one) for one in (*NODES[:-1], BEHIND)) or not word:
        return None
    return SlurmWord(f"Slurm gives a reason that is not known here: {word}", _SHOW)

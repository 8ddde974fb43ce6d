"""Checks of the policy on this node, and of what MPS left behind. Pure."""

from __future__ import annotations

from partage.doctor.decide.finding import Check, Finding, RemoveMpsDirectory, error, warning
from partage.doctor.decide.observation import Agent, MpsState, Observation, ObservedPolicy, SlurmState, Unseen
from partage.errors import Problem
from partage.text import gpus

_SHOWN = 6


def _refused(now: Observation) -> Finding | None:
    problems = [problem for problem in _policy(now).problems if problem.severity == "error"]
    if not problems:
        return None
    return error(
        "policy-refused",
        "The policy cannot be carried out on this node",
        _sentences(problems),
        f"Correct the policy{f': {text}' if (text := _fix(problems)) else ''}. partage check FILE "
        "--this-node judges it again",
    )


def _sockets(now: Observation) -> Finding | None:
    problems = _policy(now).sockets
    if not problems:
        return None
    return error(
        "socket-path-long",
        "A directory or a resource has such a long name that Linux cannot make a socket there",
        _sentences(problems),
        text[:1].upper() + text[1:] if (text := _fix(problems)) else "Choose a shorter name",
    )


def _differ(now: Observation) -> Finding | Unseen | None:
    differs = _policy(now).differs
    if isinstance(differs, Unseen):
        return differs
    begun_by_jobs = _begun_by_jobs(now)
    differs = tuple(difference for difference in differs if difference.index not in begun_by_jobs)
    if not differs:
        return None
    indexes = [difference.index for difference in differs]
    verb = "is" if len(set(indexes)) == 1 else "are"
    waits = [difference for difference in differs if difference.waits]
    running = isinstance(now.agent, Agent) and now.agent.runs
    if running and len(waits) == len(differs):
        fix = "Wait, or end the pods that are named; the agent continues then"
    elif running:
        fix = "partage show says what each GPU waits for. The agent tries again; its log has the error"
    else:
        fix = "partage plan shows the steps, and partage apply carries them out; or start the agent"
    return warning(
        "gpus-differ",
        f"{gpus(indexes)} {verb} not as the policy wants: {_policy(now).source}",
        (f"GPU {difference.index}: {difference.detail}" for difference in differs[:_SHOWN]),
        fix,
    )


def _begun_by_jobs(now: Observation) -> frozenset[int]:
    """GPUs whose MPS daemons the prolog of a job of Slurm starts: without a job there is none."""
    if now.kubelet is not None or not isinstance(now.slurm, SlurmState):
        return frozenset()
    return frozenset(gpu.index for gpu in now.inventory if gpu.uuid in _policy(now).mps)


def _unlimited(now: Observation) -> Finding | None:
    problems = _policy(now).unlimited
    if not problems:
        return None
    return warning(
        "limits-missing",
        "The policy wants memory limits of the driver's (memory: hard), and this node cannot have them: its "
        "shares are offered without",
        _sentences(problems),
        "Change what is named, or leave 'memory: hard' out. partage plan says what each share guarantees",
    )


def _mps_left(now: Observation) -> Finding | None:
    """Directories of daemons that have ended, and no agent that would start or remove them."""
    state = _mps(now)
    if isinstance(now.agent, Agent) and now.agent.runs:
        return None
    dead = [directory for directory in state.directories if not directory.alive]
    if not dead:
        return None
    return warning(
        "mps-left",
        "MPS daemons have ended and left their directories: programs that find them wait for a daemon that "
        "does not come",
        (f"{directory.path}: no process uses it" for directory in dead[:_SHOWN]),
        "partage doctor --fix removes them",
        *(RemoveMpsDirectory(directory.path, directory.device) for directory in dead),
    )


def _mps_strange(now: Observation) -> Finding | None:
    """Daemons of somebody else, on GPUs that Partage shares or hands out."""
    state = _mps(now)
    others = [process for process in state.processes if not process.pipe.startswith(f"{state.below}/")]
    if not others or not isinstance(now.policy, ObservedPolicy):
        return None
    return warning(
        "mps-of-others",
        "An MPS daemon that is not Partage's runs on this node: programs on its GPUs go through it, "
        "and no limit of Partage holds there",
        (
            f"pid {process.pid}, {process.name}, pipe directory {process.pipe or 'not known'}"
            for process in others[:_SHOWN]
        ),
        "If it is left over, end it: echo quit | CUDA_MPS_PIPE_DIRECTORY=DIR nvidia-cuda-mps-control. If it "
        "belongs to NVIDIA's device plugin, partage takeover says how to change over",
    )


def _sentences(problems: list[Problem] | tuple[Problem, ...]) -> list[str]:
    return [
        ": ".join(part for part in (problem.file, problem.path, problem.message) if part)
        for problem in problems[:_SHOWN]
    ]


def _fix(problems: list[Problem] | tuple[Problem, ...]) -> str:
    hints = list(dict.fromkeys(problem.hint for problem in problems if problem.hint))
    return "; ".join(hints[:2])


def _policy(now: Observation) -> ObservedPolicy:
    assert isinstance(now.policy, ObservedPolicy)
    return now.policy


def _mps(now: Observation) -> MpsState:
    assert isinstance(now.mps, MpsState)
    return now.mps


_POLICY = "the policy on this node"

CHECKS = (
    Check("policy-refused", _POLICY, ("policy",), _refused,
          frozenset({"gpus-differ", "labels-stale", "sockets-left", "socket-path-long"})),
    Check("socket-path-long", "paths of sockets", ("policy",), _sockets),
    Check("gpus-differ", "GPUs against the policy", ("policy",), _differ,
          frozenset({"mig-mode-pending", "mig-without-devices"})),
    Check("limits-missing", _POLICY, ("policy",), _unlimited),
    Check("mps-left", "MPS daemons", ("mps",), _mps_left),
    Check("mps-of-others", "MPS daemons", ("mps",), _mps_strange, frozenset({"compute-mode-left"})),
)  # fmt: skip

"""Checks of Partage's own agent: does it run, once, and what does it say of itself? Pure."""

from __future__ import annotations

import re

from partage.doctor.decide.finding import Check, Finding, MakeDirectory, error
from partage.doctor.decide.gpus import named_gpus
from partage.doctor.decide.observation import Agent, Kubelet, Observation, ObservedPolicy
from partage.errors import Severity
from partage.values import Frozen

_PREFIX = "agent:"
_OF_GPU = re.compile(r"GPU (\d+) \(", re.ASCII)
_STOPPED = frozenset({
    "gpus-differ", "sockets-left", "labels-stale", "compute-mode-left", "mig-mode-pending",
    "mig-without-devices",
})  # fmt: skip
"""What an agent that runs would put right, or would not leave."""


def _two(now: Observation) -> Finding | None:
    agent = _agent(now)
    if len(agent.processes) < 2:
        return None
    return error(
        "two-agents",
        "Two agents of Partage run on this node, and each of them changes the GPUs as its own policy says",
        (f"pid {process.pid}: {process.command}" for process in agent.processes),
        "Keep one. A unit of systemd beside the chart's DaemonSet is the usual reason: systemctl disable "
        "--now partage-agent, or keep the DaemonSet off this node",
    )


def _stopped(now: Observation) -> Finding | None:
    agent = _agent(now)
    if agent.runs or not agent.served:
        return None
    return error(
        "agent-not-running",
        "The agent of Partage does not run: "
        + (
            "new pods get no GPU"
            if isinstance(now.kubelet, Kubelet)
            else "nothing keeps the GPUs as they should be"
        ),
        (
            f"an agent has served this node: {agent.state_file} was written last on {agent.served}",
            "no process holds the locks of its directories",
            *([agent.report_problem] if agent.report_problem else []),
        ),
        "Start it, and read why it ended: systemctl status partage-agent and journalctl -u partage-agent, or "
        "kubectl get pods -A -l app.kubernetes.io/name=partage -o wide and kubectl logs",
    )


def _state(now: Observation) -> Finding | None:
    agent = _agent(now)
    if not agent.state_problem:
        return None
    return error(
        "state-unusable",
        "What Partage remembers of this node cannot be read: after a restart it starts without the last "
        "policy, and GPUs in doubt wait until their pods end",
        f"{agent.state_file}: {agent.state_problem}",
        "Read it as root. If it is damaged: the agent sets it aside when it starts, and writes a new one; "
        "look at the disk (dmesg, smartctl), because Partage writes the file in one piece",
    )


def _directories(now: Observation) -> Finding | None:
    agent = _agent(now)
    if not agent.missing:
        return None
    return error(
        "directory-missing",
        "A directory of the running agent was removed: it cannot write its state there",
        (f"{path} does not exist" for path in agent.missing),
        "partage doctor --fix makes it. The agent writes there again then, or restart it",
        *map(MakeDirectory, agent.missing),
    )


class _Row(Frozen):
    """What to say and do for a code of /healthz."""

    severity: Severity
    message: str
    fix: str


_READ_LOG = "Read the agent's log: journalctl -u partage-agent, or kubectl logs"
_WAIT = "Nothing is wrong with the node. partage rollout says what it waits for"

REASONS: dict[str, _Row] = {
    "starting": _Row("warning", "The agent has just started", "Wait some seconds, then ask again"),
    "loop-stalled": _Row("error", "The agent hangs",
                         "Restart it, and report it with the file of partage doctor --bundle"),
    "task-ended": _Row("error", "A part of the agent ends again and again",
                       "Restart it, and report it with the file of partage doctor --bundle"),
    "helper-down": _Row("error", "The agent's helper, which talks to the driver, does not answer", _READ_LOG),
    "no-policy": _Row("error", "The agent has no policy that it can serve",
                      "Correct the policy, or the label of the Node that names it: partage check FILE"),
    "other-plugin": _Row("error", "Another device plugin offers the same GPUs",
                         "Keep one of the two: partage takeover replaces NVIDIA's plugin"),
    "kubelet-silent": _Row("error", "The kubelet does not answer the agent", "Look at journalctl -u kubelet"),
    "not-registered": _Row("error", "The kubelet has not accepted all resources of the agent",
                           "Does the kubelet run, and does --kubelet-dir fit it?"),
    "policy-refused": _Row("error", "The agent refuses its new policy, and serves the one before",
                           "Correct the file: partage check FILE names the line"),
    "policy-unknown": _Row("error", "A label of the Node names a policy that is not there",
                           "Correct the label partage.dev/policy or nvidia.com/device-plugin.config"),
    "labels-unknown": _Row("error", "Labels of the Node choose the policy, and the agent cannot read them",
                           "May it read its Node? kubectl auth can-i get nodes --as its ServiceAccount"),
    "mig-config-failed": _Row("error", "The MIG layout of the label nvidia.com/mig.config cannot be made",
                              "Correct the label, or read the reason; it is tried again automatically"),
    "rollout-waits": _Row("warning", "A newer policy waits for its turn here", _WAIT),
    "rollout-paused": _Row("warning", "A newer policy waits: the rollout is paused", _WAIT),
    "rollout-stopped": _Row("warning", "A newer policy waits: the rollout has stopped", _WAIT),
    "gpu-unhealthy": _Row("error", "The agent does not offer a GPU, because it is not healthy",
                          "Reset the GPU once nothing uses it, or reboot; docs/explanation/health.md"),
    "holders-unknown": _Row("warning", "It is not known which pods hold which shares",
                            "Give the agent the kubelet's PodResources socket: --pod-resources"),
    "holds-unproven": _Row("warning", "It cannot be proven that shares are free, so GPUs that change wait",
                           "Let the agent read the kubelet's checkpoint in --kubelet-dir"),
    "process-left": _Row("warning", "A process of a pod that the kubelet has forgotten still runs",
                         "End it, or give its share away all the same: partage free SHARE"),
    "process-unknown": _Row("warning", "It is not known whether a process of a forgotten pod still runs",
                            f"{_READ_LOG}; or do not wait for it: partage free SHARE"),
    "processes-unseen": _Row("warning", "Nobody can look for processes that a forgotten pod has left",
                             "Give the helper the host's processes: hostPID, and a helper of this version"),
    "shares-conflict": _Row("error", "Containers hold shares of a GPU that exclude each other",
                            "End one of the pods that are named, and look for a second device plugin"),
    "kubelet-keeps-socket": _Row("warning", "The kubelet keeps a socket of the agent that has ended",
                                 "Restart the kubelet: systemctl restart kubelet. Running pods stay"),
    "not-watched": _Row("error", "The kubelet reads no list of devices from the agent",
                        "Look at the kubelet's log. The resource is registered again automatically"),
    "state-not-saved": _Row("error", "The agent cannot write its state",
                            "Make --state-dir writable, or free space on its disk"),
    "history-not-saved": _Row("warning", "The agent cannot write its history of use",
                              "Is the disk of the state directory full, or read-only? Only what partage "
                              "rightsize --history reads is missing"),
    "claims-not-served": _Row("error", "ResourceClaims get nothing of this node, or not all",
                              "Look at the agent's log. Claims need Kubernetes 1.36.4 or newer, the chart's "
                              "dra.enabled, and the feature gates that are named"),
    "slurm-waits": _Row("warning", "The node is not yet as Slurm is to have it",
                        "The message says what is waited for: a job that runs, slurmctld, or a GPU"),
    "cdi-incomplete": _Row("error", "The agent's CDI specification has none of the driver's libraries",
                           "Install the NVIDIA container toolkit on the node: its nvidia-cdi-refresh writes "
                           "/var/run/cdi/nvidia.yaml, of which the agent takes the libraries. Or write it "
                           "now: nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml. For an agent "
                           "that is no pod: correct nvidia-ctk-path in the policy"),
    "device-file-missing": _Row("error", "Device files of MIG devices are missing", "Run nvidia-modprobe -f"),
    "persistence-off": _Row("warning", "Persistence mode is off", "Run nvidia-persistenced"),
    "mps-daemon": _Row("error", "An MPS daemon takes no clients", "If it says fault, end the pods on that "
                       "GPU; else look at log/ in the daemon's directory"),
    "mps-daemon-bound": _Row("warning", "An MPS daemon ends with the container or service that started it",
                             "End the pods on that GPU before you upgrade the agent; or start it through "
                             "systemd: --mps-daemons systemd"),
    "mps-directory-full": _Row("warning", "A directory of an MPS daemon has no room left: new programs may "
                               "not become its clients", "A tenant has filled pipe or shm: end the pods on "
                               "that GPU, it is emptied when the daemon starts again. If it is log: does the "
                               "helper run? It cuts the logs"),
    "mps-pipe-read-only": _Row("warning", "Nobody has become a client of an MPS daemon whose pipe is mounted "
                               "read-only", "If the containers on that GPU fail, run the agent without "
                               "--mps-pipe-read-only (chart: agent.mpsPipeReadOnly), and start them again"),
    "processes-hidden": _Row("warning", "The agent does not see the node's processes and cannot watch shares",
                             "Run the helper in the node's pid namespace: hostPID: true in a pod"),
    "labels-written-twice": _Row("warning", "NVIDIA's feature discovery writes the same labels of the Node",
                                 "Switch it off, or run the agent with --labels own"),
    "node-not-updated": _Row("warning", "The agent cannot read or write its Node in the cluster",
                             "May it patch its Node? docs/reference/cluster.md has the rights that it needs"),
    "limits-not-set": _Row(
        "error",
        "Shares have no memory limits of the driver, or by NVIDIA's hook alone",
        "Do what it says. Partage's image has the hook compiled, and --state-dir may not be noexec",
    ),
    "guard-not-written": _Row("warning", "The agent cannot write the guard", "Make --run-dir writable"),
}  # fmt: skip
"""Codes of /healthz, apart from those of the driver, which has checks of its own."""

OF_DRIVER = ("library-missing", "driver-missing", "version-mismatch", "no-permission", "resetting", "paused",
             "failed")  # fmt: skip


def _reason_check(code: str, row: _Row) -> Check:
    def judge(now: Observation) -> Finding | None:
        assert isinstance(now.reasons, tuple)
        told = tuple(
            reason.message
            for reason in now.reasons
            if reason.code == code and not _known(now, code, reason.message)
        )
        return Finding(_PREFIX + code, row.severity, row.message, told, row.fix) if told else None

    return Check(_PREFIX + code, "the agent's report", ("reasons",), judge, _EXPLAINS.get(code, frozenset()))


_EXPLAINS = {
    "helper-down": frozenset({"agent:not-registered"}),
    "policy-refused": frozenset({"gpus-differ"}),
    "no-policy": frozenset({"gpus-differ"}),
}


def _known(now: Observation, code: str, message: str) -> bool:
    """Whether another check has said the same of this GPU, or of this policy."""
    if code == "policy-refused":
        return isinstance(now.policy, ObservedPolicy) and any(
            problem.message in message for problem in now.policy.problems
        )
    match = _OF_GPU.match(message) if code == "gpu-unhealthy" else None
    return match is not None and int(match[1]) in named_gpus(now)


def _driver_check(code: str) -> Check:
    """The agent has no driver, and this process has one."""
    row = _Row(
        "error",
        "The agent cannot use the driver, and this process can",
        "Does the agent's container or service see /dev/nvidia* and the driver's libraries? Restart the "
        "agent; in a pod, is --driver-root right?",
    )
    return _reason_check(code, row)


def _agent(now: Observation) -> Agent:
    assert isinstance(now.agent, Agent)
    return now.agent


_AGENT = "the agent of Partage"

CHECKS = (
    Check("two-agents", _AGENT, ("agent",), _two,
          frozenset({"agent:shares-conflict", "agent:other-plugin", "other-plugin"})),
    Check("agent-not-running", _AGENT, ("agent",), _stopped, _STOPPED),
    Check("directory-missing", "directories of Partage", ("agent",), _directories,
          frozenset({"agent:state-not-saved", "agent:history-not-saved", "agent:guard-not-written"})),
    Check("state-unusable", "saved state", ("agent",), _state),
)  # fmt: skip

REASON_CHECKS = (
    *map(_driver_check, OF_DRIVER),
    *(_reason_check(code, row) for code, row in REASONS.items()),
)
"""What the agent says of itself, where no other check has said it."""

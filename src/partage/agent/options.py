"""The agent's command-line options, and its intervals with their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import field

from partage.model.dcgm_names import DcgmNames
from partage.model.ids import DRA_DRIVERS
from partage.model.node_labels import NodeLabels, NodeTaint, WrittenLabels
from partage.model.paths import CONTAINER_LOGS, check_socket_path
from partage.plan.offer.policy_choice import ChoiceRules, Fallback
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.kube.config import ClusterConfig
    from partage.model.gpu import Inventory

KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")
STATE_DIR = Path("/var/lib/partage")
RUN_DIR = Path("/run/partage")
SIMULATED_CDI = "cdi"
"""Below the run directory: CDI specs of a simulated node."""


def pod_resources_of(kubelet_dir: Path) -> Path:
    """The PodResources socket of the kubelet that has this device-plugins directory."""
    return kubelet_dir.parent / "pod-resources" / "kubelet.sock"


class Intervals(Frozen):
    """How often the agent polls, in seconds.

    observe_s: the whole node. Changes of MIG devices and driver arrive as events; this finds missed ones, and
        costs some hundred NVML calls.
    conditions_s: the driver's health values, a few per GPU; a fault is known within this time even if no XID
        arrives. NVIDIA's plugin waits 5 s for events.
    events_s: how long one wait for events lasts; it has an end only so that a stuck helper is noticed.
    policy_s: files that decide what is offered are looked at, where the kernel tells of no changes; also what
        is not as it should be, such as a resource that the kubelet has not accepted.
    rest_s: the same files, where the kernel tells of changes at once, and the pulse of the loop while all is
        well. All that is done at rest is done in the same moment, every rest_s or a multiple of it.
    holders_first_s: PodResources after an Allocate. From admission to PreStart a real kubelet takes 0.3 to
        0.7 s, and PodResources does not list the pod before.
    holders_s: PodResources when nothing happens. The kubelet answers from memory, but its rate limit is
        common to all clients.
    holders_waited_s: PodResources while a GPU waits for pods to end before it changes.
    holders_longest_s: the longest pause after refusals; each pause is twice the one before.
    check_longest_s: the kubelet's checkpoint while ids in it are held whose holders PodResources does not
        name; each pause is twice the one before, and at most holders_s while a GPU waits. Each time the
        kubelet gets all lists and writes the file.
    withdraw_s: how long ids are withdrawn before a GPU changes. The kubelet applies a ListAndWatch message at
        once; an Allocate that was under way when it arrived ends within milliseconds.
    turn_gap_s: turns are at least this far apart, so that fifty pods starting in a second cost twenty turns.
    watch_s: how much of a shared GPU each container uses. One request to the helper, a few NVML calls per GPU
        and a few files of /proc per process. A container is ended after two checks; processes that MPS limits
        stay limited meanwhile. While no share is held, nobody can exceed one: then it is every rest_s.
    look_gap_s, look_longest_s: who has the pipes of MPS daemons: at most and at least so often while there
        are guarded shares. Each look reads every process of the node; it is made when a container starts.
    usage_s: how much every container uses, while somebody scrapes the metrics. Peaks are kept by the helper;
    this is
        often enough to know the names of containers that live shorter than the pause between two scrapes.
    usage_answer_s: how long a scrape waits for new figures; else it gets the last ones.
    history_s: a sample of the history of use, while a share is held. The helper keeps the peaks between.
    history_write_s: its file is written. So much is lost when the agent is killed.
    report_s: the report file is written at most this often.
    stalled_s: the loop counts as stalled if its pulse (every rest_s) is older.
    silent_s: the kubelet counts as not answering if a registration waits longer.
    unwatched_s: a resource without a ListAndWatch stream is reported after so long. The kubelet opens it when
        it accepts a registration.
    other_ends_s: how long a new agent waits for the end of another one. Those of pods that were deleted by
        force run for a moment beside it: over 3 seconds were seen on a busy node. An exit would cost 10: the
        kubelet's pause before it starts a container again.
    retry_s: observing the node while there is no driver or the helper does not answer; first retry of a
        failed change.
    made_s: a claim waits so long for devices that are made on demand; the kubelet waits 45. What takes
        longest is a change of MIG mode, which stays when a claim gives up, so that its next try finds it
        done.
    ends_s: a claim is not taken back so long because of a process that does not end. Then the kubelet has its
        answer, and the shares stay held until the process has ended, as those of the device plugin do.
    gone_s: claims that are gone, which a kubelet that works tells, and CDI files that are, are looked for.
    amiss_s: limits of claims that are not in force are set again.
    cut_off_s: how long the driver may still carry out a step of a killed agent. An instance takes about a
        second; a reset takes longer, and leaves no device that could be allocated.
    """

    observe_s: float = 60.0
    conditions_s: float = 5.0
    events_s: float = 30.0
    policy_s: float = 1.0
    rest_s: float = 10.0
    holders_first_s: float = 0.3
    holders_s: float = 10.0
    holders_waited_s: float = 2.0
    holders_longest_s: float = 60.0
    check_longest_s: float = 30.0
    withdraw_s: float = 1.0
    turn_gap_s: float = 0.05
    watch_s: float = 5.0
    look_gap_s: float = 0.5
    look_longest_s: float = 60.0
    usage_s: float = 10.0
    usage_answer_s: float = 1.0
    history_s: float = 30.0
    history_write_s: float = 300.0
    report_s: float = 1.0
    stalled_s: float = 20.0
    silent_s: float = 10.0
    unwatched_s: float = 2.0
    other_ends_s: float = 8.0
    retry_s: float = 2.0
    made_s: float = 35.0
    ends_s: float = 600.0
    gone_s: float = 600.0
    amiss_s: float = 10.0
    cut_off_s: float = 5.0


class AgentOptions(Frozen):
    """The agent's options.

    kubelet_dir:   the device-plugins directory: kubelet.sock and our sockets.
    pod_resources: socket of PodResources; it need not exist.
    state_dir:     survives a reboot; run_dir does not.
    policy:        the policy file, None: every GPU exclusive; or a directory of named policies.
    config:        which of the file's named configurations; of a directory, what nodes without a label get.
    fallback:      of a directory, what they get where config is None.
    node_labels:   the labels of the node, None: they are not given. awaits_labels: a cluster will give them.
    environ:       NVIDIA's environment aliases for ``version: v1`` files are read from here.
    driver_root:   host path of the driver, None: what the policy says.
    container_logs: where the kubelet names the containers of the node by their ids.
    cluster:       the API server; None: the agent does without one. node_name: of the own Node there.
    labels:        which of them are written to the own Node, or to the file.
    features_file: where they are written for node-feature-discovery, in place of the Node; None: nowhere.
    taints:        set on the own Node while they hold; all others of Partage are taken away.
    rollout:       the ConfigMap of the rollout over a fleet, ``name`` or ``namespace/name``; empty: the node
                   changes whenever its policy does.
    validations:   directory in which the GPU Operator says that driver and toolkit work; None: do not wait.
    dcgm_names:    which metrics are served under dcgm-exporter's names, too.
    history_days:  how many days of the use of GPUs are kept in the state directory; 0: none.
    mps_pipe_read_only: containers get the pipe of their MPS daemon read-only.
    takeover:      register also what another process offers to the kubelet.
    restricted_mps: pods that ask for MPS shares are refused unless none of their processes is or can become
                   root: the cluster's admission does that.
    dra:           ResourceClaims are served, too: the agent is the DRA driver of the node.
    dra_driver:    its name, one of ``DRA_DRIVERS``: all names that users of claims write follow from it.
    dra_counters:  MIG devices on demand are offered also where that makes scheduling slow (before 1.37).
    pod_uid:       of the pod in which the agent runs, empty: in none. Two agents of a rolling update have
                   sockets of their own by it.
    cdi_dir:       where the container runtime looks for CDI specs; a simulated node's go below run_dir.
    """

    kubelet_dir: Path = KUBELET_DIR
    pod_resources: Path = pod_resources_of(KUBELET_DIR)
    state_dir: Path = STATE_DIR
    run_dir: Path = RUN_DIR
    policy: Path | None = None
    config: str | None = None
    fallback: tuple[Fallback, ...] = ChoiceRules().fallback
    node_labels: NodeLabels | None = None
    awaits_labels: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    driver_root: str | None = None
    restricted_mps: bool = False
    dra: bool = False
    dra_driver: str = DRA_DRIVERS[0]
    dra_counters: bool = False
    pod_uid: str = ""
    cdi_dir: Path = Path("/var/run/cdi")
    container_logs: Path = Path(CONTAINER_LOGS)
    cluster: ClusterConfig | None = None
    node_name: str = ""
    history_days: int = 0
    mps_pipe_read_only: bool = False
    takeover: bool = False
    labels: WrittenLabels = WrittenLabels.ALL
    features_file: Path | None = None
    taints: frozenset[NodeTaint] = frozenset()
    rollout: str = ""
    dcgm_names: DcgmNames = DcgmNames.OFF
    validations: Path | None = None
    intervals: Intervals = field(default_factory=Intervals)

    @property
    def kubelet_socket(self) -> Path:
        """On it the kubelet listens for registrations."""
        return self.kubelet_dir / "kubelet.sock"

    @property
    def plugins_dir(self) -> Path:
        """The directory of the drivers' directories, below the kubelet's own one."""
        return self.kubelet_dir.parent / "plugins"

    @property
    def registry_dir(self) -> Path:
        """The directory in which the kubelet looks for sockets of drivers."""
        return self.kubelet_dir.parent / "plugins_registry"

    @property
    def report_file(self) -> Path:
        """The last report, for ``partage show``."""
        return self.run_dir / "report.json"

    def check_sockets(self) -> None:
        """Raises InputError for a path that is too long for a unix socket."""
        check_socket_path(self.kubelet_socket, "choose a shorter --kubelet-dir")
        check_socket_path(self.pod_resources, "choose a shorter --pod-resources")

    def cdi_dir_of(self, inventory: Inventory) -> Path:
        """The directory of these GPUs' CDI specs: those of a simulated node must not reach a real container
        runtime.
        """
        return self.run_dir / SIMULATED_CDI if inventory.simulated else self.cdi_dir

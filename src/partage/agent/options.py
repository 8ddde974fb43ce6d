"""What an operator can tell the agent on its command line; the agent's own intervals and their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import field

from partage.edges.kubelet.container_names import LOGS
from partage.values import Frozen

KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")
STATE_DIR = Path("/var/lib/partage")
RUN_DIR = Path("/run/partage")


class Intervals(Frozen):
    """How often the agent looks at what nobody tells it about, in seconds.

    observe_s: the whole node. Changes of MIG devices and driver arrive as events; this is the net below them,
        and it costs some hundred NVML calls.
    conditions_s: the driver's word on health. A few field values per GPU; a fault is known within this time
        even where no XID arrives. NVIDIA's plugin waits 5 s for events.
    events_s: how long one wait for events lasts; it has an end only so that a stuck helper is noticed.
    policy_s: the policy file's stat. One system call; a reload shall feel immediate.
    holders_first_s: after an Allocate, the first question who got it. Admission to PreStart takes 0.3 to
        0.7 s on a real kubelet, and PodResources knows nothing before.
    holders_s: the same question when nothing happens. The kubelet answers from memory, but refuses its
        clients, all of them together, when it is asked too often.
    holders_waited_s: the same question while a GPU waits for pods to end before it changes.
    holders_longest_s: the longest pause after refusals, each pause twice the one before.
    settle_s: how long ids are withdrawn before a GPU changes. The kubelet applies a ListAndWatch message at
        once; an Allocate that was under way when it arrived is over within milliseconds.
    turn_gap_s: turns are at least this far apart, so that fifty pods starting in a second cost twenty turns.
    watch_s: who uses how much of a shared GPU. One question to the helper, a few NVML calls per GPU and a few
        files of /proc per process. A container is ended after two looks, so that it takes as long as the
        fault of a GPU takes to be known; each process that MPS limits stays limited meanwhile.
    report_s: the report file is written at most this often.
    stalled_s: the loop counts as stalled when its pulse (every policy_s) is older.
    silent_s: the kubelet counts as not answering when a registration has waited this long.
    retry_s: how soon the node is observed again while there is no driver, or the helper does not answer.
    """

    observe_s: float = 60.0
    conditions_s: float = 5.0
    events_s: float = 30.0
    policy_s: float = 1.0
    holders_first_s: float = 0.3
    holders_s: float = 10.0
    holders_waited_s: float = 2.0
    holders_longest_s: float = 60.0
    settle_s: float = 1.0
    turn_gap_s: float = 0.05
    watch_s: float = 5.0
    report_s: float = 1.0
    stalled_s: float = 15.0
    silent_s: float = 10.0
    retry_s: float = 2.0


class AgentOptions(Frozen):
    """Everything the agent was told.

    kubelet_dir:   the device-plugins directory: kubelet.sock and our sockets.
    pod_resources: socket of PodResources; it may be absent.
    state_dir:     survives a reboot; run_dir does not.
    policy:        the policy file, None: every GPU exclusive. config: which of its named configurations.
    environ:       NVIDIA's environment aliases for ``version: v1`` files are read from here.
    driver_root:   host path of the driver, None: what the policy says.
    container_logs: where the kubelet names the containers of the node by their ids.
    cdi_dir:       where the container runtime looks for CDI specs; a simulated node's go below run_dir.
    """

    kubelet_dir: Path = KUBELET_DIR
    pod_resources: Path = KUBELET_DIR.parent / "pod-resources" / "kubelet.sock"
    state_dir: Path = STATE_DIR
    run_dir: Path = RUN_DIR
    policy: Path | None = None
    config: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    driver_root: str | None = None
    cdi_dir: Path = Path("/var/run/cdi")
    container_logs: Path = LOGS
    intervals: Intervals = field(default_factory=Intervals)

    @property
    def kubelet_socket(self) -> Path:
        """Where the kubelet listens for registrations."""
        return self.kubelet_dir / "kubelet.sock"

    @property
    def report_file(self) -> Path:
        """Where the last report lies for ``partage show``."""
        return self.run_dir / "report.json"

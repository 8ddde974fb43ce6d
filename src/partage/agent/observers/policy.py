"""The policy in force: the one that is chosen for the node, the last good one, or every GPU exclusive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from msgspec import Struct, field

from partage.agent.node_policy import ChosenLayouts, NodePolicy, PolicyRefusal, restored
from partage.agent.observers.chosen_policy import ChosenPolicy
from partage.agent.options import AgentOptions
from partage.edges.files.policy import built_in
from partage.edges.files.state import SavedPolicy
from partage.edges.host.waiting import DirectoryChanges
from partage.edges.kubelet.sockets import check_plugin_sockets
from partage.errors import InputError, Problem, Unsatisfiable
from partage.model.claim import NO_DEMANDS, Demands
from partage.model.gpu import Inventory, NoDriver
from partage.model.node_labels import MIG_CONFIG, NodeLabels
from partage.model.policy import Policy
from partage.model.share import plugin_resources
from partage.plan.offer.desired import DesiredState, resolve, with_driver_root
from partage.plan.offer.select import GeometryOf
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.report import HeldBack, PolicyReason, PolicyReport, PolicyState

log = logging.getLogger(__name__)

MayChange = Callable[[str], HeldBack | None]
"""Whether the node may put a policy in force that disturbs it, by its revision."""


class PolicyObserver(Struct):
    """The policy in force, and the problems of a newer one.

    fallback: the last good policy of an earlier agent. changes: tells when a directory of policies changes.
    good: the policy in force, with ``layouts`` by label; desired: what it asks of the node. uses_last_good:
    it is not the one that was asked for. problems: why that one is refused; misfit: why the policy in force
    no longer fits the node. layouts_problems: why the label that asks for a layout is refused. ask: asks for
    a turn. may_change: asked before the policy in force is changed; None: nobody is asked. served_before: an
    earlier agent has offered shares. demands: what claims want of GPUs with MIG on demand.
    """

    options: AgentOptions
    geometry_of: GeometryOf
    ask: Callable[[], None]
    fallback: SavedPolicy | None = None
    changes: DirectoryChanges | None = None
    good: NodePolicy | None = None
    layouts: ChosenLayouts | None = None
    desired: DesiredState | None = None
    uses_last_good: bool = False
    problems: tuple[Problem, ...] = ()
    misfit: tuple[Problem, ...] = ()
    layouts_problems: tuple[Problem, ...] = ()
    reloads_ok: int = 0
    reloads_failed: int = 0
    may_change: MayChange | None = None
    served_before: bool = False
    demands: Demands = field(default_factory=dict)
    _held: HeldBack | None = None
    _wanted: str = ""
    _reason: PolicyReason = PolicyReason.IN_FORCE
    _newest: NodePolicy | None = None
    _judged_on: tuple[Inventory, Demands] | None = None
    _error: InputError | Unsatisfiable | None = None
    _chosen: ChosenPolicy = field(default_factory=lambda: ChosenPolicy(AgentOptions()))

    def __post_init__(self) -> None:
        self._chosen = ChosenPolicy(self.options, self.changes)

    # --- choosing ---

    def start(self) -> None:
        """Read and choose. Raises InputError if the policy is wrong and there is no last good one, except
        where a label can put it right.
        """
        self._chosen.start()
        self._take_choice()
        choice, final = self._chosen.choice, not self._chosen.may_become_another()
        if isinstance(choice, PolicyRefusal) and self._last_good() is None and final:
            raise InputError(choice.problems)

    async def watch(self) -> None:
        """Check the files whenever they change, and again and again. Wrong ones change
        nothing.
        """
        while True:
            if await self._chosen.look():
                self._take_choice()
                self.ask()

    def know_labels(self, labels: NodeLabels) -> None:
        """The labels of the node are these now."""
        if self._chosen.know_labels(labels):
            self._take_choice()
            self.ask()

    @property
    def labels(self) -> NodeLabels | None:
        """Of the node; None: not known."""
        return self._chosen.labels

    def _take_choice(self) -> None:
        """What is chosen has changed."""
        choice, self._held, self._wanted = self._chosen.choice, None, ""
        if isinstance(choice, PolicyRefusal):
            self._newest = None
            self._refuse(choice.reason, choice.problems)
            self._refuse_layouts(choice.layouts_problems)
        elif self._chosen.is_empty and (good := self.good or self._last_good()) and good.saved is not None:
            self._newest = None
            self._refuse(PolicyReason.NONE_CHOSEN, (_emptied(self.options),))
        else:
            self._newest, self._judged_on = choice, None

    def _refuse(self, reason: PolicyReason, problems: tuple[Problem, ...]) -> None:
        if (reason, problems) == (self._reason, self.problems):
            return
        self._reason, self.problems = reason, problems
        if reason is PolicyReason.LABELS_UNKNOWN:
            log.info("policy waits for the labels of the node")
            return
        self.reloads_failed += 1
        for problem in problems:
            log.error("policy refused", extra={"reason": reason, "problem": str(problem)})

    # --- applying it to the node ---

    def resolve_on(self, node: KnownNode | None, demands: Demands = NO_DEMANDS) -> None:
        """Resolve the newest policy on the node, else the one in force, else the last good one.

        Without a driver nothing changes. demands: what claims want of GPUs with MIG on demand.
        """
        if node is None or isinstance(node.inventory.driver, NoDriver):
            return
        on_demand = self.desired.on_demand if self.desired else {}
        judged = node.inventory, {gpu: demand for gpu, demand in demands.items() if gpu in on_demand}
        if judged == self._judged_on:
            return
        self._judged_on, self.demands = judged, demands
        if self._newest is not None and self._take(self._newest, node):
            return
        if self.good is not None:
            self._resolve_again(self.good, node)
        elif (last := self._last_good()) is not None:
            self._use_last_good(last, node)

    def judge_again(self) -> None:
        """What ``may_change`` answers has changed."""
        self._judged_on = None
        self.ask()

    def check_in_force(self) -> None:
        """Raises InputError or Unsatisfiable if the policy was refused, there is no last good one, and no
        label can put it right.
        """
        if self.good is None and self._error is not None and not self._chosen.may_become_another():
            raise self._error

    def _take(self, chosen: NodePolicy, node: KnownNode) -> bool:
        """Put it in force, if it fits the node: with the layouts of the label, else with those of the last
        good label, else without any.
        """
        refused: InputError | Unsatisfiable | None = None
        of_label: tuple[Problem, ...] = chosen.layouts_problems
        for layouts in self._candidates(chosen):
            try:
                desired = self._resolve(chosen.policy(layouts), node)
            except (InputError, Unsatisfiable) as error:
                refused = error
                self._wanted = self._wanted or chosen.revision(layouts)
                if layouts is not None and layouts == chosen.layouts:
                    of_label = error.problems
                continue
            self._wanted = chosen.revision(layouts)
            if self._hold_back(chosen, layouts, desired, node):
                self._refuse_layouts(of_label)
                return False
            if chosen is not self.good:
                self._adopted(chosen, desired)
            self.good, self.layouts, self.desired, self.uses_last_good = chosen, layouts, desired, False
            self.problems = self.misfit = ()
            self._held = None
            self._reason = PolicyReason.IN_FORCE
            self._refuse_layouts(of_label)
            return True
        assert refused is not None
        self._error, self._held = refused, None
        self._refuse(PolicyReason.DOES_NOT_FIT, refused.problems)
        return False

    def _hold_back(
        self, chosen: NodePolicy, layouts: ChosenLayouts | None, desired: DesiredState, node: KnownNode
    ) -> bool:
        """Keep what is in force, or was under an earlier agent, if it is not this node's turn to change."""
        if self.may_change is None or (chosen is self.good and layouts == self.layouts):
            return False
        before = self._in_force_on(node)
        if before is None:
            return False  # the first policy of a node disturbs nobody
        from partage.plan.cluster.rollout import disturbs

        good, good_layouts, good_desired = before
        held = None
        if disturbs(good_desired, desired):
            held = self.may_change(self._wanted)
        if held is None:
            self._held = None
            return False
        self.good, self.layouts, self.desired = good, good_layouts, good_desired
        self.uses_last_good = True
        if held != self._held:
            log.info("policy held back", extra={"revision": self._wanted, "reason": held.message})
        self._held, self._reason = held, held.reason
        self.problems = (Problem(chosen.loaded.policy.source, "", "warning", held.message),)
        return True

    def _in_force_on(self, node: KnownNode) -> tuple[NodePolicy, ChosenLayouts | None, DesiredState] | None:
        """The policy in force, as it is on this node; None: no policy can be kept."""
        good, layouts = self.good, self.layouts
        if good is None:
            good = self._last_good()
            layouts = good.layouts if good else None
        if good is None and self.served_before:
            good = NodePolicy(built_in(self.options.environ))
        if good is None:
            return None
        try:
            return good, layouts, self._resolve(good.policy(layouts), node)
        except (InputError, Unsatisfiable):
            return None if self.desired is None else (good, layouts, self.desired)

    def _candidates(self, chosen: NodePolicy) -> Iterator[ChosenLayouts | None]:
        """Layouts to try, the best first."""
        if chosen.layouts is not None:
            yield chosen.layouts
        if chosen.layouts is not None or chosen.layouts_unknown or chosen.layouts_problems:
            before = self.layouts if self.good is not None else self._last_layouts()
            if before is not None and before != chosen.layouts:
                yield before
        yield None

    def _last_layouts(self) -> ChosenLayouts | None:
        last = self._last_good()
        return last.layouts if last else None

    def _refuse_layouts(self, problems: tuple[Problem, ...]) -> None:
        if problems == self.layouts_problems:
            return
        self.layouts_problems = problems
        for problem in problems:
            log.error("mig layout of the label refused", extra={"problem": str(problem)})

    def _adopted(self, chosen: NodePolicy, desired: DesiredState) -> None:
        self.reloads_ok += 1
        loaded = chosen.loaded
        for problem in (*loaded.warnings, *desired.warnings):
            log.warning("policy has a warning", extra={"problem": str(problem)})
        layouts = desired.policy.layouts
        facts = {
            "source": loaded.policy.source or "built-in",
            "digest": loaded.digest[:12] or None,
            "by": chosen.by or None,
            "layouts": layouts.name if layouts else None,
        }
        log.info("policy in force", extra=facts)

    def _last_good(self) -> NodePolicy | None:
        """The policy from the state directory, if it can still be parsed."""
        saved = self.fallback
        if saved is None:
            return None
        try:
            return restored(saved, self.options.environ)
        except InputError as error:
            log.warning("last good policy cannot be used", extra={"problem": str(error)})
            self.fallback = None
            return None

    def _use_last_good(self, last: NodePolicy, node: KnownNode) -> None:
        try:
            self.desired = self._resolve(last.policy(last.layouts), node)
        except (InputError, Unsatisfiable) as error:
            log.warning("last good policy does not fit either", extra={"problem": str(error)})
            return
        self.good, self.layouts, self.uses_last_good = last, last.layouts, True
        log.warning("last good policy in force", extra={"source": last.loaded.policy.source})

    def _resolve_again(self, good: NodePolicy, node: KnownNode) -> None:
        """The node has changed. If the policy no longer fits, its last desired state stays."""
        self.uses_last_good = good is not self._newest
        try:
            self.desired = self._resolve(good.policy(self.layouts), node)
        except (InputError, Unsatisfiable) as error:
            if error.problems != self.misfit:
                log.warning("policy no longer fits the node", extra={"problem": str(error)})
            self.misfit = error.problems
            return
        self.misfit = ()

    def _resolve(self, policy: Policy, node: KnownNode) -> DesiredState:
        policy = with_driver_root(policy, self.options.driver_root)
        desired = resolve(policy, node.inventory, self.geometry_of, self.demands)
        check_plugin_sockets(self.options.kubelet_dir, plugin_resources(desired.offer))
        return desired

    # --- reporting ---

    def digest(self) -> str:
        """Digest of the text of the policy in force; empty for none."""
        return self.good.loaded.digest if self.good else ""

    @property
    def asked_layouts(self) -> str:
        """The layout that the label asks for; empty for none, or where the labels are not known."""
        return self.labels.get(MIG_CONFIG, "") if self.labels else ""

    @property
    def held_back(self) -> str:
        """Why the policy that is asked for is not put in force yet; empty if nothing holds it back."""
        return self._held.message if self._held else ""

    @property
    def saved(self) -> SavedPolicy | None:
        """The policy for the state file."""
        return self.fallback if self.good is None else self.good.remembered(self.layouts)

    @property
    def report(self) -> PolicyReport:
        """The policy's part of the report."""
        shown, desired = self.good or self._newest, self.desired
        loaded = shown.loaded if shown else None
        misfit = PolicyReason.DOES_NOT_FIT if self.misfit else PolicyReason.IN_FORCE
        return PolicyReport(
            state=self._state(),
            source=loaded.policy.source if loaded else "",
            config=shown.name if shown else self.options.config,
            digest=loaded.digest if loaded else "",
            problems=(*self.problems, *self.misfit),
            warnings=(
                *(loaded.warnings if loaded else ()),
                *(desired.warnings if desired else ()),
                *self._undrained,
            ),
            reason=self._reason if self.problems else misfit,
            chosen_by=shown.by if shown else "",
            revision=self.good.revision(self.layouts) if self.good else "",
            wanted=self._wanted,
            wanted_config=(self._newest.name if self._newest else None) or "",
        )

    @property
    def _undrained(self) -> tuple[Problem, ...]:
        """Without a cluster no pod can be evicted."""
        if self.options.cluster is not None or self.desired is None or not self.desired.drain_of:
            return ()
        message = "change: drain needs a cluster, and this agent has none: GPUs wait until their pods end"
        return (Problem(self.desired.policy.source, "", "warning", message, "--cluster and --node-name"),)

    def _state(self) -> PolicyState:
        if self.good is None:
            return PolicyState.NONE
        if self.uses_last_good or self.problems:
            return PolicyState.LAST_GOOD
        return PolicyState.FILE if self.good.saved is not None else PolicyState.BUILT_IN


def _emptied(options: AgentOptions) -> Problem:
    """No GPU changes because a ConfigMap is deleted: the fallback ``empty`` is for nodes without a policy."""
    return Problem(
        str(options.policy),
        "",
        "error",
        "the directory has no policy any more, so the one of before stays in force",
        "make the ConfigMap again; for whole GPUs, with a policy of one line: version: partage/v1",
    )

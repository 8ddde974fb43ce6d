"""The policy that is chosen for the node: among what its files say, by the labels that are known.

Chosen again when the files change, or the labels of the node.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct, field

from partage.agent.node_policy import NodeChoice, NodePolicy, PolicyRefusal, labels_choose, node_policy
from partage.agent.options import AgentOptions
from partage.edges.files.policy_directory import PolicyFiles, PolicyTexts
from partage.edges.host.waiting import DirectoryChanges, until_tick
from partage.errors import InputError, Problem
from partage.model.node_labels import NodeLabels
from partage.plan.offer.policy_choice import ChoiceRules
from partage.plan.report import PolicyReason


class ChosenPolicy(Struct):
    """What is chosen, whether it fits the node or not.

    labels: of the node, None: not known. choice: the policy, or why there is none; None: before ``start``.
    """

    options: AgentOptions
    changes: DirectoryChanges | None = None
    labels: NodeLabels | None = None
    choice: NodePolicy | PolicyRefusal | None = None
    _files: PolicyFiles | None = None
    _texts: PolicyTexts | None = None
    _unread: tuple[Problem, ...] = ()
    _was_empty: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        """Read and choose. Raises InputError for --config without a file."""
        options = self.options
        if options.policy is None and options.config is not None:
            raise InputError(
                "--config names a configuration of a policy file", "say which with --policy FILE"
            )
        if options.node_labels is not None:
            self.labels = options.node_labels
        if options.policy is not None:
            self._files = PolicyFiles(options.policy)
            self._files.changed()
            self._texts, self._unread = _read(self._files)
        self._choose()

    async def look(self) -> bool:
        """Look at the files when they change, at once, and again and again. True: another choice."""
        files, intervals = self._files, self.options.intervals
        if files is None:
            await asyncio.Event().wait()
            return False
        if self.changes is None:
            await until_tick(intervals.policy_s)
        else:
            await self.changes.wait(
                files.directories(), self._changed, told_s=intervals.rest_s, untold_s=intervals.policy_s
            )
        if not files.changed():
            return False
        self._texts, self._unread = await asyncio.to_thread(_read, files)
        return self._choose()

    def know_labels(self, labels: NodeLabels) -> bool:
        """The labels of the node are these now. True: another choice."""
        known, self.labels = self.labels, labels
        return labels != known and self._choose()

    def may_become_another(self) -> bool:
        """Another label may choose another policy, or another ConfigMap be mounted, without a restart."""
        if self.is_empty:
            return True
        choice = self.choice
        among_several = self._texts is not None and labels_choose(self._texts)
        waits = isinstance(choice, PolicyRefusal) and choice.reason is PolicyReason.LABELS_UNKNOWN
        return self._awaited and (among_several or waits)

    @property
    def is_empty(self) -> bool:
        """The directory has no policy: its ConfigMap is not there yet, or is there no more."""
        return self._texts is not None and self._texts.directory and not self._texts.names

    def _choose(self) -> bool:
        """Choose among what was read. False: the answer is the one from before."""
        options = self.options
        if self._unread:
            choice: NodePolicy | PolicyRefusal = PolicyRefusal(PolicyReason.WRONG, self._unread)
        else:
            rules = ChoiceRules(options.config, options.fallback)
            choice = node_policy(self._texts, NodeChoice(self.labels, self._awaited, rules, options.environ))
        if (choice, self.is_empty) == (self.choice, self._was_empty):
            return False
        self.choice, self._was_empty = choice, self.is_empty
        return True

    @property
    def _awaited(self) -> bool:
        """The labels come from a cluster."""
        return self.options.awaits_labels and self.options.node_labels is None


def _read(files: PolicyFiles) -> tuple[PolicyTexts | None, tuple[Problem, ...]]:
    """What is there, or why it cannot be read."""
    try:
        return files.read(), ()
    except InputError as error:
        return None, error.problems

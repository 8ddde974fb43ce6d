"""The policy in force: the file's, the last good one, or every GPU exclusive. Reloaded when its content
changes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from partage.agent.options import AgentOptions
from partage.edges.files.input_file import read_regular_input
from partage.edges.files.policy import LoadedPolicy, built_in, parse_policy
from partage.edges.files.state import SavedPolicy
from partage.edges.kubelet.sockets import check_plugin_sockets
from partage.edges.ticks import until_tick
from partage.errors import InputError, PartageError, Problem, Unsatisfiable
from partage.model.gpu import Inventory, NoDriver
from partage.model.share import resources_of
from partage.plan.offer.assign import GeometryOf
from partage.plan.offer.desired import DesiredState, resolve, with_driver_root
from partage.plan.reconcile.known_node import KnownNode
from partage.plan.report import PolicyReport, PolicyState

log = logging.getLogger(__name__)

UNSETTLED_S = 2.0
"""A file that changed less than this many seconds ago is read again: two writes within one tick of the file
system's clock have the same times."""

_Signature = tuple[int, ...]


class PolicyFile(Struct):
    """Detects changes of a file: edited in place, replaced, or behind a symlink that was swapped (a
    ConfigMap). It is read only if its status has changed."""

    path: Path
    config: str | None
    environ: Mapping[str, str]
    _seen: _Signature | None = None
    _settled: bool = False

    def changed(self) -> bool:
        """Whether it has to be read: its status differs from the last call."""
        try:
            status = self.path.stat()
        except OSError as error:
            signature: _Signature = (error.errno or 0,)
            settled = True
        else:
            signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            settled = abs(time.time() - status.st_mtime) >= UNSETTLED_S
        if signature == self._seen and self._settled:
            return False
        self._seen, self._settled = signature, settled
        return True

    def read(self) -> LoadedPolicy:
        """Read and check it. Raises InputError with all problems."""
        name = str(self.path)
        return parse_policy(read_regular_input(name), name, self.config, self.environ)


class PolicyObserver(Struct):
    """The policy in force, and the problems of a newer one.

    good: the policy in force; desired: what it asks of the node. uses_last_good: it is not what the file
    says. problems: why the file's content is refused; misfit: why the policy in force no longer fits the
    node. ask: asks for a turn.
    """

    options: AgentOptions
    geometry_of: GeometryOf
    ask: Callable[[], None]
    fallback: SavedPolicy | None = None
    good: LoadedPolicy | None = None
    desired: DesiredState | None = None
    uses_last_good: bool = False
    problems: tuple[Problem, ...] = ()
    misfit: tuple[Problem, ...] = ()
    reloads_ok: int = 0
    reloads_failed: int = 0
    _file: PolicyFile | None = None
    _newest: LoadedPolicy | None = None
    _judged_on: Inventory | None = None
    _error: InputError | Unsatisfiable | None = None

    # --- reading ---

    def start(self) -> None:
        """Read the policy of the command line. Raises InputError if it is wrong and there is no last good
        one."""
        options = self.options
        if options.policy is None:
            if options.config is not None:
                raise InputError(
                    "--config names a configuration of a policy file", "say which with --policy FILE"
                )
            self._newest = built_in(options.environ)
            return
        self._file = PolicyFile(options.policy, options.config, options.environ)
        self._file.changed()
        try:
            self._newest = self._file.read()
        except InputError as error:
            self._refuse(error)
            if self._last_good() is None:
                raise

    async def watch(self) -> None:
        """Check the file every policy_s. A wrong one changes nothing."""
        while True:
            await until_tick(self.options.intervals.policy_s)
            if self._file is not None and self._file.changed():
                await self._reload(self._file)

    async def _reload(self, file: PolicyFile) -> None:
        try:
            loaded = await asyncio.to_thread(file.read)
        except InputError as error:
            if error.problems != self.problems:
                self._newest = None
                self._refuse(error)
                self.ask()
            return
        if self._newest is None or loaded.digest != self._newest.digest:
            self._newest, self._judged_on = loaded, None
            self.ask()

    def _refuse(self, error: PartageError) -> None:
        if error.problems == self.problems:
            return
        self.problems = error.problems
        self.reloads_failed += 1
        for problem in error.problems:
            log.error("policy refused", extra={"problem": str(problem)})

    # --- applying it to the node ---

    def resolve_on(self, node: KnownNode | None) -> None:
        """Resolve the newest policy on the node, else the one in force, else the last good one.

        Without a driver nothing changes.
        """
        if node is None or isinstance(node.inventory.driver, NoDriver) or node.inventory == self._judged_on:
            return
        self._judged_on = node.inventory
        if self._newest is not None and self._take(self._newest, node):
            return
        if self.good is not None:
            self._resolve_again(self.good, node)
        elif (last := self._last_good()) is not None:
            self._use_last_good(last, node)

    def check_in_force(self) -> None:
        """Raises InputError or Unsatisfiable if the policy was refused and there is no last good one."""
        if self.good is None and self._error is not None:
            raise self._error

    def _take(self, loaded: LoadedPolicy, node: KnownNode) -> bool:
        """Put it in force, if it fits the node."""
        try:
            desired = self._resolve(loaded, node)
        except (InputError, Unsatisfiable) as error:
            self._error = error
            self._refuse(error)
            return False
        if loaded is not self.good:
            self._adopted(loaded, desired)
        self.good, self.desired, self.uses_last_good = loaded, desired, False
        self.problems = self.misfit = ()
        return True

    def _adopted(self, loaded: LoadedPolicy, desired: DesiredState) -> None:
        self.reloads_ok += 1
        for problem in (*loaded.warnings, *desired.warnings):
            log.warning("policy has a warning", extra={"problem": str(problem)})
        source = loaded.policy.source or "built-in"
        log.info("policy in force", extra={"source": source, "digest": loaded.digest[:12] or None})

    def _last_good(self) -> LoadedPolicy | None:
        """The policy from the state directory, if it can still be parsed."""
        saved = self.fallback
        if saved is None:
            return None
        try:
            return parse_policy(saved.text, saved.source, saved.config, self.options.environ)
        except InputError as error:
            log.warning("last good policy cannot be used", extra={"problem": str(error)})
            self.fallback = None
            return None

    def _use_last_good(self, last: LoadedPolicy, node: KnownNode) -> None:
        try:
            self.desired = self._resolve(last, node)
        except (InputError, Unsatisfiable) as error:
            log.warning("last good policy does not fit either", extra={"problem": str(error)})
            return
        self.good, self.uses_last_good = last, True
        log.warning("last good policy in force", extra={"source": last.policy.source})

    def _resolve_again(self, loaded: LoadedPolicy, node: KnownNode) -> None:
        """The node has changed. If the policy no longer fits, its last desired state stays."""
        self.uses_last_good = loaded is not self._newest
        try:
            self.desired = self._resolve(loaded, node)
        except (InputError, Unsatisfiable) as error:
            if error.problems != self.misfit:
                log.warning("policy no longer fits the node", extra={"problem": str(error)})
            self.misfit = error.problems
            return
        self.misfit = ()

    def _resolve(self, loaded: LoadedPolicy, node: KnownNode) -> DesiredState:
        policy = with_driver_root(loaded.policy, self.options.driver_root)
        desired = resolve(policy, node.inventory, self.geometry_of)
        check_plugin_sockets(self.options.kubelet_dir, resources_of(desired.offer))
        return desired

    # --- reporting ---

    def digest(self) -> str:
        """Digest of the text of the policy in force; empty for none."""
        return self.good.digest if self.good else ""

    @property
    def saved(self) -> SavedPolicy | None:
        """The policy for the state file."""
        if self.good is None:
            return self.fallback
        if not self.good.text:
            return None
        config = self.fallback.config if self.uses_last_good and self.fallback else self.options.config
        return SavedPolicy(self.good.text, self.good.policy.source, config)

    @property
    def report(self) -> PolicyReport:
        """The policy's part of the report."""
        loaded, desired = self.good or self._newest, self.desired
        return PolicyReport(
            state=self._state(),
            source=loaded.policy.source if loaded else "",
            config=self.options.config,
            digest=loaded.digest if loaded else "",
            problems=(*self.problems, *self.misfit),
            warnings=(*(loaded.warnings if loaded else ()), *(desired.warnings if desired else ())),
        )

    def _state(self) -> PolicyState:
        if self.good is None:
            return PolicyState.NONE
        if self.uses_last_good or self.problems:
            return PolicyState.LAST_GOOD
        return PolicyState.FILE if self._file is not None else PolicyState.BUILT_IN

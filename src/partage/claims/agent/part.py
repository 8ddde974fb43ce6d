"""The DRA driver as the agent's part: its sockets, its slices, and what an agent before has left."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing

from partage.agent.endpoints.plugin_set import AllocateContext
from partage.agent.options import SIMULATED_CDI, AgentOptions
from partage.agent.status.status import ClaimFigures
from partage.claims.agent.afterwards import Afterwards, ClaimStatusWriter
from partage.claims.agent.driver import ClaimDriver
from partage.claims.agent.enforcing import Enforcing
from partage.claims.agent.holds import ClaimHolds
from partage.claims.agent.making import Making
from partage.claims.agent.ports import StepTaken, go_on
from partage.claims.agent.published import ClaimFiles, PublishedDevices
from partage.claims.agent.publisher import Publisher
from partage.claims.agent.taking_back import ClaimEnds, ClaimWork, TakingBack
from partage.claims.agent.upkeep import ClaimUpkeep
from partage.claims.decide.slices import slices_of
from partage.claims.decide.status import held_now
from partage.claims.files import ClaimCdiFiles, ClaimRecordFiles, MadePlaces
from partage.claims.model.claim import Claim, parse_claim
from partage.claims.model.grant import ClaimRecord, ClaimState, RefusalReason
from partage.claims.model.names import NAMES_OF_DRIVER
from partage.claims.model.slices import COUNTERS_SINCE, ServerVersion
from partage.edges.files.catalogue import geometry_of
from partage.edges.hardware.port import Hardware
from partage.edges.host.own_task import unending
from partage.edges.kube.connection import Backoff, Connection
from partage.edges.kube.resources import ResourceApi
from partage.edges.kubelet.dra_server import DraServer, DraSockets
from partage.errors import PartageError
from partage.model.claim import ClaimHold, Demands
from partage.plan.serve.claim_offer import NodeMoment, claim_offer
from partage.plan.serve.ledger import Ledger

log = logging.getLogger(__name__)


class ApiClaims:
    """Claims as the API server has them."""

    def __init__(self, api: ResourceApi, driver: str) -> None:
        self._api, self._driver = api, driver

    async def claim(self, namespace: str, name: str) -> Claim:
        return parse_claim(await self._api.claim(namespace, name), self._driver)


class ClaimsOfNode:
    """See ``ClaimsPart``."""

    def __init__(
        self,
        options: AgentOptions,
        ledger: Ledger,
        clock: Callable[[], float],
        ask: Callable[[], None],
        hardware: Hardware,
        *,
        taken: StepTaken = go_on,
    ) -> None:
        """taken: told of each step of a prepare and an unprepare."""
        assert options.cluster is not None
        names = NAMES_OF_DRIVER[options.dra_driver]
        self._options = options
        self._records = ClaimRecordFiles(options.state_dir)
        self._cdi = ClaimCdiFiles(options.cdi_dir)
        kept, self._lost = self._kept()
        places_file = MadePlaces(options.state_dir)
        places, problem = places_file.load()
        if problem:
            log.warning("places of MIG devices", extra={"problem": problem})
        self._making = Making(places_file, options.intervals.made_s, places)
        # What a pod waits for does not wait for what none does: that has a connection of its own.
        self._connections = tuple(Connection(options.cluster, keep=True) for _ in range(2))
        asked, told = map(ResourceApi, self._connections)
        self._later = Afterwards(clock, ask, self._records)
        self._now = now = PublishedDevices(names, options.node_name)
        self._holds = holds = ClaimHolds(ledger, clock, self._later.ask, kept)
        self._status = ClaimStatusWriter(told, names.driver, self._later.quiet)
        self._enforcing = Enforcing(hardware.perform)
        self._ends = ClaimEnds(hardware, options.container_logs, clock, options.intervals.ends_s)
        work = ClaimWork(
            holds,
            now,
            reader=ApiClaims(asked, names.driver),
            records=self._records,
            files=ClaimFiles(self._cdi, now),
            enforcing=self._enforcing,
            making=self._making,
            taken=taken,
        )
        back = TakingBack(work, ledger, self._ends, ended=self._status.forget, ask=self._later.ask)
        self._driver = ClaimDriver(
            work,
            back,
            self._later,
            clock=clock,
            ask=ask,
            say=lambda record: self._status.say(self._held_now(record)),
        )
        self._upkeep = ClaimUpkeep(work, back, self._driver.prepare)
        self._publisher = Publisher(told, options.node_name, names.driver, ask)
        sockets = DraSockets(options.plugins_dir, options.registry_dir, names.driver, options.pod_uid)
        self._server = DraServer(self._driver, sockets, ask)
        self._ready, self._named = asyncio.Event(), asyncio.Event()
        self._boot_id = self._uncounted = ""
        self._promise: object = None

    def _kept(self) -> tuple[list[ClaimRecord], frozenset[str]]:
        """What is recorded, and the UIDs of claims of which nothing can be read.

        A CDI file is written after the record and removed before it: one without it has lost it.
        """
        loaded = self._records.load()
        problems, kept = [*loaded.problems], {record.claim.uid: record for record in loaded.records}
        for directory in (self._options.cdi_dir, self._options.run_dir / SIMULATED_CDI):
            for record in _without(kept, ClaimCdiFiles(directory)):
                kept[record.claim.uid] = record
                problems.append(f"that of {record.claim.uid} is made anew from its CDI file")
                self._save_again(record, problems)
        for problem in problems:
            log.warning("records of claims", extra={"problem": problem})
        return list(kept.values()), loaded.damaged - kept.keys()

    def _save_again(self, record: ClaimRecord, problems: list[str]) -> None:
        try:
            self._records.save(record)
        except PartageError as error:
            problems.append(str(error))

    @property
    def trouble(self) -> str:
        """Why claims get nothing, or not all; empty: they do."""
        return self._server.trouble or self._publisher.trouble or self._uncounted

    def demands(self, boot_id: str) -> Demands:
        """What claims want of GPUs whose MIG devices are made on demand."""
        return self._making.demands(self._holds.kept.values(), boot_id)

    def figures(self) -> ClaimFigures:
        """For metrics, which are asked on another thread: what is replaced as a whole is read once."""
        kept, counts = self._holds.kept, self._driver.counts
        states = Counter(record.state for record in kept.values())
        return ClaimFigures(
            states={state.value: states[state] for state in ClaimState},
            refused={reason.value: counts.refused[reason] for reason in RefusalReason},
            prepares=counts.prepares,
            prepare_s=counts.prepare_s,
            slices=self._publisher.current,
        )

    def seen(self, holds: Sequence[ClaimHold]) -> None:
        """The kubelet names these containers with claims, and no others."""
        self._holds.seen(holds)
        self._ends.seen(self._holds.holders, self._holds.kept.values())
        self._named.set()

    def publish(self, now: NodeMoment, terms: AllocateContext) -> None:
        """After a turn: this decides what claims can get."""
        offer = claim_offer(now)
        if terms.inventory.boot_id != self._boot_id:
            self._boot_id = terms.inventory.boot_id
            self._holds.booted(self._boot_id)
            self._cdi.directory = self._options.cdi_dir_of(terms.inventory)
        self._enforcing.seen(offer.in_force)
        if self._now.publish(offer, terms):
            self._making.published(self._now.devices, offer)
            promise = self._now.devices.rows, self._now.guard, offer.in_force.limits_read
            if promise != self._promise:
                self._promise = promise
                self._say_what_changed()
        self._ready.set()
        if (server := self._publisher.server) is not None:
            counters = self._options.dra_counters or server >= COUNTERS_SINCE
            devices, inventory = self._now.devices, terms.inventory
            self._uncounted = _uncounted(server) if devices.places and not counters else ""
            self._publisher.want(
                slices_of(devices, inventory, offer.closed, server, geometry_of, counters=counters)
            )

    def _say_what_changed(self) -> None:
        """Claims whose shares guarantee less than before, or again what was promised."""
        for record in self._holds.kept.values():
            if record.state is ClaimState.PREPARED:
                self._status.say(self._held_now(record), record)

    def _held_now(self, record: ClaimRecord) -> ClaimRecord:
        read = self._enforcing.in_force.limits_read
        return held_now(record, self._now.devices, guard=self._now.guard, limits_read=read)

    async def run(self) -> None:
        """Serve the kubelet and keep the node's ResourceSlices, until cancelled.

        What an agent before had only begun is taken back before the kubelet can ask for anything.
        """
        await self._ready.wait()
        await self._upkeep.roll_back_started()
        await asyncio.to_thread(self._remove_unknown_files)
        with ExitStack() as stack:
            for connection in self._connections:
                stack.enter_context(closing(connection))
            async with asyncio.TaskGroup() as group:
                group.create_task(unending("kubelet", self._server.run()))
                group.create_task(unending("turns after claims", self._later.run()))
                group.create_task(unending("slices", self._publisher.run()))
                group.create_task(unending("status of claims", self._status.run()))
                group.create_task(unending("limits of claims", self._keep_limits()))
                group.create_task(unending("upkeep of claims", self._keep_files()))
                group.create_task(unending("devices on demand", self._clear_up()))
                group.create_task(self._find_lost())

    async def _keep_limits(self) -> None:
        while True:
            seen = self._enforcing.in_force
            await self._upkeep.mend_limits()
            again_s = self._options.intervals.amiss_s if self._upkeep.limits_are_amiss else None
            await self._enforcing.until_news(seen, again_s)

    async def _keep_files(self) -> None:
        while True:
            await self._upkeep.mend_files()
            await asyncio.sleep(self._options.intervals.gone_s)
            await self._upkeep.forget_gone()

    async def _clear_up(self) -> None:
        while True:
            await self._making.news()
            await self._upkeep.clear_up()

    async def _find_lost(self) -> None:
        await self._named.wait()
        backoff = Backoff()
        while self._lost:
            self._lost = await self._upkeep.find_again(self._lost)
            await asyncio.sleep(backoff.pause_s())

    def _remove_unknown_files(self) -> None:
        """CDI files of claims that are not recorded: of an agent that was killed between the two."""
        self._cdi.tidy()
        try:
            for uid in self._cdi.uids():
                if uid not in self._holds.kept and uid not in self._lost:
                    self._cdi.remove(uid)
        except PartageError as error:
            log.warning("CDI files of former claims cannot be removed", extra={"reason": str(error)})


def _uncounted(server: ServerVersion) -> str:
    return (
        f"MIG devices on demand are offered from Kubernetes {COUNTERS_SINCE} on, and this is {server}: there "
        "counters make a scheduling cycle hundreds of times as long; --dra-counters offers them all the same"
    )


def _without(kept: Collection[str], files: ClaimCdiFiles) -> list[ClaimRecord]:
    """The records in CDI files of other claims than these."""
    try:
        uids = set(files.uids()).difference(kept)
    except PartageError:
        return []
    return [record for uid in sorted(uids) if (record := files.record(uid)) is not None]

"""Certificates of the webhook over months: no request is refused, and replicas agree."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from hypothesis import given
from hypothesis import strategies as st

from partage.admission.certificates import make_pair, read_held, server_context, written
from partage.admission.decide.rotation import (
    HEARD_S,
    LIFE_S,
    RENEWED_S,
    Authority,
    CertifiedPair,
    HeldCertificates,
    RotationStep,
    next_step,
    stepped,
)
from tests.admission.serving import NAME, NAMES, NAMESPACE, ca_bundle, filled, parts_of, served, until
from tests.edges.kube.store import WEBHOOKS, ObjectStore, leases_path, object_store
from tests.virtual_time import run_in_virtual_time

T = TypeVar("T")
DAY_S = 86_400.0
BEGIN_S = 1_750_000_000.0


# --- decisions over a year -----------------------------------------------------------------------


class _World:
    """A leader, replicas that read the Secret late, and API servers that hear late whom to trust."""

    def __init__(self, late_s: float) -> None:
        self.late_s, self.now_s = late_s, BEGIN_S
        self.held = HeldCertificates()
        self.heard: tuple[tuple[str, ...], float] | None = None
        self.bundles: list[tuple[float, frozenset[str]]] = []
        self.pairs: list[tuple[float, CertifiedPair]] = []
        self._numbers = count()
        self.steps: list[RotationStep] = []

    def turn(self) -> None:
        trusted = tuple(one.certificate for one in self.held.trusted)
        heard_s = self.heard[1] if self.heard and self.heard[0] == trusted else None
        step = next_step(self.held, NAMES, self.now_s, heard_s)
        if step is RotationStep.NOTHING:
            return
        number, ends_s = next(self._numbers), self.now_s + LIFE_S
        made = (
            CertifiedPair(f"{number}", "", frozenset(NAMES), ends_s),
            Authority(f"{number}", ends_s),
        )
        self.held = stepped(step, self.held, made, self.now_s)
        self.steps.append(step)
        trusted = tuple(one.certificate for one in self.held.trusted)
        if self.heard is None or self.heard[0] != trusted:
            self.heard = trusted, self.now_s
            self.bundles.append((self.now_s, frozenset(trusted)))
        assert self.held.serving is not None
        self.pairs.append((self.now_s, self.held.serving))

    def is_served(self) -> bool:
        """Whether every replica, however late, shows what every API server, however late, trusts."""
        return all(
            pair.certificate in bundle and pair.ends_s > self.now_s
            for pair in _possible(self.pairs, self.now_s - self.late_s)
            for bundle in _possible(self.bundles, self.now_s - self.late_s)
        )


def _possible(told: list[tuple[float, T]], since_s: float) -> list[T]:
    """The last one, and those that were replaced since then."""
    replaced = [*(at for at, _ in told[1:]), float("inf")]
    return [value for (_, value), end_s in zip(told, replaced, strict=True) if end_s >= since_s]


@given(
    late_s=st.floats(0, HEARD_S - 1),
    pauses_s=st.lists(st.floats(1, 10 * DAY_S), min_size=40, max_size=80),
    looks_s=st.floats(1, HEARD_S),
)
def test_whoever_hears_late_is_served(late_s: float, pauses_s: list[float], looks_s: float) -> None:
    """A leader looks in bursts, as leaders come and go; at each moment all combinations are looked at."""
    world = _World(late_s)
    world.turn()
    world.now_s += late_s + 1
    for pause_s in pauses_s:
        for _ in range(6):
            world.turn()
            assert world.is_served(), world.steps
            world.now_s += looks_s
        world.now_s += pause_s
        if world.held.serving is not None and world.held.serving.ends_s <= world.now_s:
            return  # nobody has looked for a month
    if world.now_s - BEGIN_S > LIFE_S:
        assert RotationStep.SWITCH in world.steps


def test_the_next_one_is_served_only_when_all_have_heard() -> None:
    first = make_pair(NAMES, BEGIN_S)
    held = stepped(RotationStep.FIRST, HeldCertificates(), first, BEGIN_S)
    late_s = BEGIN_S + LIFE_S - RENEWED_S + 1
    assert next_step(held, NAMES, late_s - 60, late_s - 60) is RotationStep.NOTHING
    assert next_step(held, NAMES, late_s, late_s) is RotationStep.PREPARE
    held = stepped(RotationStep.PREPARE, held, make_pair(NAMES, late_s), late_s)
    assert held.serving == first[0]
    assert len(held.trusted) == 2
    assert next_step(held, NAMES, late_s + 1, None) is RotationStep.NOTHING
    assert next_step(held, NAMES, late_s + HEARD_S - 1, late_s) is RotationStep.NOTHING
    assert next_step(held, NAMES, late_s + HEARD_S, late_s) is RotationStep.SWITCH
    held = stepped(RotationStep.SWITCH, held, None, late_s + HEARD_S)
    assert held.serving != first[0]
    assert len(held.trusted) == 2
    assert next_step(held, NAMES, BEGIN_S + LIFE_S + 1, late_s) is RotationStep.FORGET
    assert len(stepped(RotationStep.FORGET, held, None, BEGIN_S + LIFE_S + 1).trusted) == 1


def test_what_a_secret_holds_is_read_back_and_nonsense_is_not_there() -> None:
    held = stepped(RotationStep.FIRST, HeldCertificates(), make_pair(NAMES, BEGIN_S), BEGIN_S)
    held = stepped(RotationStep.PREPARE, held, make_pair(NAMES, BEGIN_S + 5), BEGIN_S)
    content = written(held)
    assert read_held(content) == held
    assert read_held(content | {"tls.key": content["next.key"]}).serving is None  # not its key
    for name in content:
        for nonsense in (b"", b"\xff", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
            read_held(content | {name: nonsense})
    assert read_held({}) == HeldCertificates()


# --- the real keeper over four months -----------------------------------------------------------------


def _accepts(bundle: str, context: ssl.SSLContext) -> None:
    """The API server's handshake, in memory. Raises SSLError."""
    there = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cadata=bundle).wrap_bio(*there, server_hostname=NAMES[0])
    server = context.wrap_bio(there[1], there[0], server_side=True)
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert client.version() is not None


async def _months(days: float, factor: float) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    wall: Callable[[], float] = lambda: BEGIN_S + (loop.time() - began_s) * factor  # noqa: E731
    async with object_store() as store:
        filled(store)
        first, second = (parts_of(store, holder, own=True, wall=wall) for holder in ("a", "b"))
        keepers = [parts.keeper for parts in (first, second) if parts.keeper is not None]
        tasks = [asyncio.create_task(keeper.follow()) for keeper in keepers]
        tasks.append(asyncio.create_task(first.election.run(keepers[0].lead)))
        tasks.append(asyncio.create_task(second.election.run(keepers[1].lead)))
        served_pairs = set()
        try:
            while any(keeper.waits_for for keeper in keepers) or not ca_bundle(store):
                await asyncio.sleep(0.5)
            while wall() < BEGIN_S + days * DAY_S:
                for keeper in keepers:
                    serving = keeper._serving
                    assert serving is not None
                    assert serving.ends_s > wall()
                    served_pairs.add(serving.ends_s)
                    assert _signed_by_one_of(serving.certificate, ca_bundle(store))
                await asyncio.sleep(1)
            assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert len(served_pairs) >= 2  # it was renewed, and both replicas have it
        assert keepers[0].ends_s == keepers[1].ends_s
        assert store.conflicts <= 4


def _signed_by_one_of(certificate: str, bundle: str) -> bool:
    """Certificates are of other years than the clock of this machine: only who signed counts."""
    served_now = x509.load_pem_x509_certificate(certificate.encode())
    for authority in x509.load_pem_x509_certificates(bundle.encode()):
        with contextlib.suppress(ValueError, InvalidSignature):
            served_now.verify_directly_issued_by(authority)
            return True
    return False


def test_over_four_months_both_replicas_serve_what_is_trusted() -> None:
    run_in_virtual_time(_months(120, 20_000.0))


# --- as it is served -------------------------------------------------------------------------------


async def test_two_replicas_agree_and_one_takes_over() -> None:
    async with object_store() as store:
        filled(store)
        async with served(store, "a", own=True) as one:
            one.trusted = await _trusted(store)
            await one.until_ready()
            async with served(store, "b", own=True) as two:
                two.trusted = one.trusted
                await two.until_ready()
                assert await one.metric("partage_admission_leader") == 1
                assert await two.metric("partage_admission_leader") == 0
                assert (await two.mutate({"spec": {}, "metadata": {}}))["allowed"]
                ends_s = await two.metric("partage_admission_certificate_end_seconds")
                assert ends_s == await one.metric("partage_admission_certificate_end_seconds")
        lease = store.objects[leases_path(NAMESPACE)][NAME]["spec"]
        assert not lease.get("holderIdentity")  # it has left, so that the next one need not wait
        async with served(store, "c", own=True) as again:
            again.trusted = await _trusted(store)
            assert again.trusted == one.trusted
            await again.until_ready()
            # Somebody writes other authorities there, as an upgrade of a chart may.
            found = store.objects[WEBHOOKS][NAME]
            found["webhooks"][0]["clientConfig"].pop("caBundle")
            store.put(WEBHOOKS, found)
            await until(lambda: _bundle(store), one.trusted)


async def _bundle(store: ObjectStore) -> str:
    return ca_bundle(store)


async def _trusted(store: ObjectStore) -> str:
    async def there() -> bool:
        return bool(ca_bundle(store))

    await until(there, True)
    return await _bundle(store)


def test_the_api_server_accepts_what_is_made() -> None:
    pair, authority = make_pair(NAMES, time.time())
    other, _ = make_pair(NAMES, time.time())
    _accepts(authority.certificate, server_context(pair))
    try:
        _accepts(authority.certificate, server_context(other))
    except ssl.SSLError:
        return
    raise AssertionError("a certificate of another authority was accepted")

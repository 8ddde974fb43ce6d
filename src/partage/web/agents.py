"""Reports of many nodes from their agents, which are asked for them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from partage.edges.host.http_exchange import HttpRequest, ProtocolError, answer_of, is_http_url
from partage.edges.kube.objects import second
from partage.errors import InputError
from partage.serve_http.pages.markup import foreign
from partage.serve_http.pages.sources import LARGEST_BYTES, NodeReport, age_section, read_answer
from partage.text import count_of, printable

if TYPE_CHECKING:
    import ssl

_ANSWERS_WITHIN_S = 5.0
"""How long a whole answer may take."""
_PAUSE_S_PER_BYTE = 1 / 2**20
"""A large report takes long to read and to draw, up to 0.7 s for each MiB: its agent is asked less often, so
that the others are not late for it.
"""
_AT_ONCE = 64
"""Agents that are asked at the same time."""
_ENDS_WITHIN_S = 2.0

log = logging.getLogger(__name__)


class FleetAgents:
    """Agents by their addresses, ``http://HOST:PORT``, each asked for its report again and again.

    Each is asked by a task of its own, with a pause after its answer, so that one that is slow, broken or
    hostile is late by itself. Raises InputError for what is no address.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        pause_s: float,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        *,
        within_s: float = _ANSWERS_WITHIN_S,
    ) -> None:
        for url in urls.values():
            if not is_http_url(url):
                raise InputError(f"{url!r} is no address of an agent", "http://HOST:PORT")
        self._urls = {printable(name): url for name, url in urls.items()}
        self._pause_s, self._token, self._tls, self._within_s = pause_s, token, tls, within_s
        self._answered: dict[str, float] = {}
        self._pauses_s: dict[str, float] = {}
        self._left = set(self._urls)
        self._all_asked = threading.Event()
        self.nodes: Mapping[str, NodeReport] = {
            name: NodeReport(name, trouble="it has not been asked yet") for name in sorted(self._urls)
        }
        self.mark = 0
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="agents", daemon=True)
        self._thread.start()
        self._all_asked.wait(within_s)  # so that the first page is a whole one, mostly

    @property
    def words(self) -> str:
        """The origin of the reports."""
        return f"Asked of {count_of(len(self._urls), 'agent')}, one for each node."

    @property
    def news(self) -> Mapping[str, str]:
        """How old the oldest answer is."""
        answered = dict(self._answered)
        silent = len(self._urls) - len(answered)
        if not answered:
            return {"age": age_section("No agent has answered.")}
        name, at_s = min(answered.items(), key=lambda one: one[1])
        never = f" {count_of(silent, 'agent')} never answered." if silent else None
        return {"age": age_section("The oldest answer is that of ", foreign(name), ", ", at_s, ".", never)}

    def close(self) -> None:
        """Ask no more."""
        self._stop()
        self._thread.join(_ENDS_WITHIN_S)

    def _run(self) -> None:
        asyncio.run(self._ask_all())

    async def _ask_all(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._stop = partial(loop.call_soon_threadsafe, stop.set)
        limit = asyncio.Semaphore(_AT_ONCE)
        tasks = [loop.create_task(self._follow(name, limit)) for name in self._urls]
        await stop.wait()
        for task in tasks:
            task.cancel()

    async def _follow(self, name: str, limit: asyncio.Semaphore) -> None:
        while True:
            async with limit:
                node = await self._ask(self.nodes[name])
            if not node.trouble:
                self._answered[name] = time.time()
            if node is not self.nodes[name]:
                self.nodes = {**self.nodes, name: node}
            self.mark += 1
            self._left.discard(name)
            if not self._left:
                self._all_asked.set()
            await asyncio.sleep(self._pause_s + self._pauses_s.pop(name, 0.0))

    async def _ask(self, before: NodeReport) -> NodeReport:
        """What it says now."""
        try:
            status, content = await answer_of(
                self._urls[before.name],
                HttpRequest("GET", "/report.json"),
                self._token,
                self._tls,
                within_s=self._within_s,
                limit_bytes=LARGEST_BYTES,
            )
            self._pauses_s[before.name] = len(content) * _PAUSE_S_PER_BYTE
            if status == 200:
                node = read_answer(before.name, content, before, hash(content))
                return self._late(before, node.trouble) if node.trouble else node
        except (OSError, ProtocolError) as error:
            return self._late(before, f"does not answer: {error or type(error).__name__}")
        except Exception as error:  # whatever it says, no other node is asked less for it
            log.exception("an agent's answer could not be read", extra={"agent": before.name})
            return self._late(before, f"its answer cannot be read: {type(error).__name__}: {error}")
        why = "wants a token (--agent-token-file)" if status == 401 else f"answers with status {status}"
        return self._late(before, why)

    def _late(self, before: NodeReport, trouble: str) -> NodeReport:
        answered = self._answered.get(before.name)
        since = "" if answered is None else second(answered)
        node = NodeReport(before.name, before.report, trouble[:300], before.version, since)
        return before if (before.trouble, before.since) == (node.trouble, node.since) else node

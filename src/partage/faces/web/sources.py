"""Where the reports of many nodes come from: a folder of report files, or agents that are asked."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from partage.codec.values import CodecError, decode
from partage.edges.read_file import read_regular
from partage.errors import InputError, Problem
from partage.faces.documents.report import ReportDocument
from partage.values import Frozen

_LARGEST_BYTES = 64 * 2**20
_ANSWERS_WITHIN_S = 5.0
_AT_ONCE = 16
"""Agents that are asked at the same time."""


class NodeReport(Frozen):
    """A node by its name. report: the last one that could be read; None: none yet. trouble: why it is not the
    present one; empty if it is. version: another one where the report is another one.
    """

    name: str
    report: ReportDocument | None = None
    trouble: str = ""
    version: object = None


class Source(Protocol):
    """Reports of nodes."""

    @property
    def words(self) -> str:
        """Where they come from, a sentence for the page."""

    def read(self) -> Sequence[NodeReport]:
        """All of them as they are now, by name. Takes seconds at most."""


class ReportFolder:
    """Files ``NAME.json``, or ``NAME/report.json``, of a folder. What has not changed is not read again."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            problem = Problem(str(folder), "", "error", "is no directory", "a folder of report.json files")
            raise InputError([problem])
        self._folder = folder
        self._known: dict[str, NodeReport] = {}

    @property
    def words(self) -> str:
        """Where the reports come from."""
        return f"Report files below {self._folder}; each is as old as it says."

    def read(self) -> Sequence[NodeReport]:
        """All files as they are now."""
        found: dict[str, NodeReport] = {}
        for path in sorted((*self._folder.glob("*.json"), *self._folder.glob("*/report.json"))):
            name = (
                path.parent.name if path.name == "report.json" and path.parent != self._folder else path.stem
            )
            found[name] = self._file(name, path)
        self._known = found
        return tuple(found[name] for name in sorted(found))

    def _file(self, name: str, path: Path) -> NodeReport:
        before = self._known.get(name, NodeReport(name))
        try:
            about = path.stat()
            version = (about.st_mtime_ns, about.st_size, about.st_ino)
            if before.version == version:
                return before
            return read_answer(name, read_regular(path, _LARGEST_BYTES), before, version)
        except OSError as error:
            return NodeReport(name, before.report, f"{path}: {error.strerror}", before.version)


class Agents:
    """Agents by their addresses, ``http://HOST:PORT``, each asked for its report."""

    def __init__(self, urls: Mapping[str, str], token: str = "", tls: ssl.SSLContext | None = None) -> None:
        for url in urls.values():
            if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
                raise InputError(f"{url!r} is no address of an agent", "http://HOST:PORT")
        self._urls = urls
        self._token = token
        self._tls = tls
        self._known: dict[str, NodeReport] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="agents")

    @property
    def words(self) -> str:
        """Where the reports come from."""
        return f"Asked of {len(self._urls)} agents, each for its own node."

    def read(self) -> Sequence[NodeReport]:
        """Ask all of them. One that does not answer keeps its last report, and says why."""
        found = list(self._pool.map(self._ask, sorted(self._urls)))
        self._known = {one.name: one for one in found}
        return tuple(found)

    def _ask(self, name: str) -> NodeReport:
        before = self._known.get(name, NodeReport(name))
        try:
            status, content = self._get(self._urls[name])
        except (OSError, http.client.HTTPException) as error:
            return NodeReport(name, before.report, f"does not answer: {error}", before.version)
        if status != 200:
            why = "wants a token (--agent-token-file)" if status == 401 else f"answers with status {status}"
            return NodeReport(name, before.report, why, before.version)
        return read_answer(name, content, before, hash(content))

    def _get(self, url: str) -> tuple[int, bytes]:
        place = urlsplit(url)
        assert place.hostname is not None, "checked at the start"
        made = (
            http.client.HTTPSConnection(
                place.hostname, place.port, timeout=_ANSWERS_WITHIN_S, context=self._tls
            )
            if place.scheme == "https"
            else http.client.HTTPConnection(place.hostname, place.port, timeout=_ANSWERS_WITHIN_S)
        )
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            made.request("GET", f"{place.path.rstrip('/')}/report.json", headers=headers)
            answer = made.getresponse()
            return answer.status, answer.read(_LARGEST_BYTES)
        finally:
            made.close()


def read_answer(name: str, content: bytes, before: NodeReport, version: object) -> NodeReport:
    """What the content says, or the report before and why this one cannot be read."""
    if before.version == version and not before.trouble:
        return before
    try:
        return NodeReport(name, decode(ReportDocument, content), "", version)
    except CodecError as error:
        return NodeReport(name, before.report, f"its report cannot be read: {error}"[:300], version)


class FleetReports:
    """The nodes as they were read last. A thread reads them again and again, each time after a pause."""

    def __init__(self, source: Source, pause_s: float) -> None:
        self._source = source
        self._pause_s = pause_s
        self._stop = threading.Event()
        self.nodes: Mapping[str, NodeReport] = {}
        self.mark = 0
        self.read()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._thread.start()

    @property
    def words(self) -> str:
        """Where they come from."""
        return self._source.words

    @property
    def news(self) -> Mapping[str, str]:
        """None: each report says itself how old it is."""
        return {}

    def read(self) -> None:
        """Read all of them now."""
        self.nodes = {one.name: one for one in self._source.read()}
        self.mark += 1

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self.read()

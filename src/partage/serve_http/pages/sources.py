"""Reports of many nodes from a folder of files; what a report of a node is (``agents``: asked for it)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from partage.answers.documents.report import ReportDocument
from partage.codec.values import CodecError, decode
from partage.edges.host.read_file import read_regular
from partage.edges.kube.objects import second
from partage.errors import InputError, Problem
from partage.serve_http.pages.markup import Child, element, html, moment
from partage.text import printable
from partage.values import Frozen

LARGEST_BYTES = 16 * 2**20
"""Of one report; a node of 16 GPUs with thousands of shares has some MiB."""

OLDEST_S = 24 * 3600
"""A report in a folder is taken for the present one for so many seconds. The agent writes its file when there
is something new, so that of a quiet node is hours old."""

_MOST_GPUS, _MOST_SHARES = 64, 2**16
"""Of one node. About so many shares of one name fit into a message to the kubelet."""

log = logging.getLogger(__name__)


class NodeReport(Frozen):
    """A node by its name. report: the last one that could be read; None: none yet. trouble: why it is not the
    present one; empty if it is. version: another one where the report is another one. since: until when there
    was no trouble, RFC 3339; empty: not known. old: the trouble is its age alone.
    """

    name: str
    report: ReportDocument | None = None
    trouble: str = ""
    version: object = None
    since: str = ""
    old: bool = False


class ReportFolder:
    """Files ``NAME.json``, or ``NAME/report.json``, of a folder. What has not changed is not read again."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        if not folder.is_dir():
            problem = Problem(
                str(folder),
                "",
                "error",
                "is no directory",
                "name a directory with the reports of agents, NAME.json or NAME/report.json",
            )
            raise InputError([problem])
        self._folder, self._clock = folder, clock
        self._known: dict[str, NodeReport] = {}

    @property
    def words(self) -> str:
        """The origin of the reports."""
        return f"Report files in {self._folder}. Each says how old it is."

    def read(self) -> Sequence[NodeReport]:
        """All files as they are now."""
        found: dict[str, NodeReport] = {}
        for path in sorted((*self._folder.glob("[!.]*.json"), *self._folder.glob("[!.]*/report.json"))):
            name = (
                path.parent.name if path.name == "report.json" and path.parent != self._folder else path.stem
            )
            name = printable(name)  # not all names of files are UTF-8
            found[name] = self._file(name, path)
        now_s = self._clock()
        found = {name: _aged(report, now_s) for name, report in found.items()}
        self._known = found
        return tuple(found[name] for name in sorted(found))

    def _file(self, name: str, path: Path) -> NodeReport:
        before = self._known.get(name, NodeReport(name))
        try:
            about = path.stat()
            version = (about.st_mtime_ns, about.st_size, about.st_ino)
            if before.version == version:
                return before
            return read_answer(name, read_regular(path, LARGEST_BYTES), before, version)
        except OSError as error:
            return NodeReport(name, before.report, f"{path}: {error.strerror}", before.version)


def _aged(report: NodeReport, now_s: float) -> NodeReport:
    """The node; with trouble where nothing but the age of its report is wrong. A file tells nothing of a node
    that has been switched off meanwhile.
    """
    if report.report is None or report.trouble:
        return report
    age_s = now_s - datetime.fromisoformat(report.report.at).timestamp()
    if age_s < OLDEST_S:
        return report
    trouble = f"its report is more than {OLDEST_S // 3600} hours old"
    return replace(report, trouble=trouble, since=report.report.at, old=True)


def read_answer(name: str, content: bytes, before: NodeReport, version: object) -> NodeReport:
    """What the content says, or the report before and why this one cannot be read."""
    if before.version == version and not before.trouble:
        return before
    try:
        report = decode(ReportDocument, content)
        _check_amounts(report)
    except CodecError as error:
        return NodeReport(name, before.report, f"its report cannot be read: {error}"[:300], version)
    return NodeReport(name, report, "", version)


def _check_amounts(report: ReportDocument) -> None:
    """Raises CodecError for more than a node has: each GPU is drawn and each share is counted, for everybody
    who looks at the page.
    """
    planned = report.planner_input
    observed = () if planned is None else planned.snapshot.observed.node.inventory.gpus
    gpus = max(len(report.gpus), len(report.offer), len(observed))
    served = (
        []
        if planned is None
        else [(*serving.offer, *serving.leaving) for serving in planned.snapshot.served.values()]
    )
    shares = max(
        sum(max(0, offering.count) for offers in known for offering in offers)
        for known in (report.offer.values(), served)
    )
    for amount, most, noun in ((gpus, _MOST_GPUS, "GPUs"), (shares, _MOST_SHARES, "shares")):
        if amount > most:
            raise CodecError(f"it says that it has {amount:,} {noun}, and no more than {most:,} are shown")


class FleetReports:
    """The nodes of a folder as they were read last. A thread reads them again and again, each time after a
    pause."""

    def __init__(self, source: ReportFolder, pause_s: float) -> None:
        self._source = source
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._read_at = 0.0
        self.nodes: Mapping[str, NodeReport] = {}
        self.mark = 0
        self.read()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._thread.start()

    @property
    def words(self) -> str:
        """Their origin."""
        return self._source.words

    @property
    def news(self) -> Mapping[str, str]:
        """When the folder was read."""
        return {"age": age_section("The files were read ", self._read_at, ".")}

    def read(self) -> None:
        """Read all of them now."""
        self.nodes = {report.name: report for report in self._source.read()}
        self._read_at = time.time()
        self.mark += 1

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            try:
                self.read()
            except Exception:  # the page says since when nothing was read; the next time it may be possible
                log.exception("the reports could not be read")


def age_section(*parts: Child | float | None) -> str:
    """How old the picture is: a sentence. Numbers are times, in seconds since 1970."""
    children = (moment(second(part)) if isinstance(part, float) else part for part in parts)
    return html(element("section", element("p", *children, class_="dim"), id="age"))

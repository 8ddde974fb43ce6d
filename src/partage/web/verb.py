"""``partage web``: the nodes of a cluster, or of a directory of reports, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from partage.answers import common_output
from partage.answers.cluster_options import cluster_of
from partage.answers.process_start import lean_imports
from partage.answers.verb import path_option, verb
from partage.errors import InputError, wrong_input
from partage.serve_http.options import http_option, http_options, http_protection

if TYPE_CHECKING:
    from partage.serve_http.http import Page
    from partage.serve_http.pages.sources import FleetReports
    from partage.web.agents import FleetAgents


@verb("web")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="[NAME=]URL",
    help="An agent to ask, http://HOST:PORT; can be repeated. Without a name, the host is the name.",
)
@path_option(
    "--agents-file",
    help="A file with such an agent in each line; # begins a comment.",
)
@path_option(
    "--agent-token-file",
    help="File with the token of the agents.",
)
@path_option(
    "--agent-ca",
    help="Certificates of the authority that signs those of the agents, PEM.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="The nodes of a cluster, read from its API server: in a pod with the pod's account, else "
    "with KUBECONFIG or ~/.kube/config.",
)
@click.option("--kubeconfig", metavar="FILE", help="The nodes of the cluster of this kubeconfig.")
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Pause between two readings of all reports. A cluster is watched, and not read again.",
)
@http_option("Where to serve the page.", "127.0.0.1:9401")
@http_protection
def command(
    *,
    folder: Path | None,
    agents: tuple[str, ...],
    agents_file: Path | None,
    agent_token_file: Path | None,
    agent_ca: Path | None,
    cluster: bool,
    kubeconfig: str | None,
    every: float,
    http: str,
) -> None:
    """Show many nodes in a browser: an overview, a search box, and a page for each node.

    Reports come from a directory (NAME.json or NAME/report.json, copied there by any means), or from the
    agents themselves (--agent, --agents-file). With --cluster or --kubeconfig the nodes are those of a
    cluster, with what their agents publish there: that shows less, but nothing has to reach the agents. The
    page says where its figures come from. It changes nothing. Runs until Ctrl-C.
    """
    addresses = (*agents, *_lines(agents_file))
    if cluster or kubeconfig is not None:
        if folder is not None or addresses:
            raise InputError("a cluster, a directory and agents exclude each other", "name one of them")
        with _cluster(kubeconfig) as pages:
            _serve(pages, http)
    else:
        with _reports(_fleet(folder, addresses, agent_token_file, agent_ca, every)) as pages:
            _serve(pages, http)


@contextmanager
def _reports(fleet: FleetReports | FleetAgents) -> Iterator[dict[str, Page]]:
    from partage.web.fleet_page import FleetPages
    from partage.web.node_views import ReportViews

    try:
        yield FleetPages(fleet, ReportViews()).pages()
    finally:
        fleet.close()


@contextmanager
def _cluster(kubeconfig: str | None) -> Iterator[dict[str, Page]]:
    with lean_imports(tls=True):
        import asyncio  # noqa: F401 - with TLS, before others import it without (answers.process_start)

    from partage.edges.kube.connection import Connection
    from partage.web.cluster_fleet import ClusterFleet
    from partage.web.fleet_page import FleetPages
    from partage.web.node_views import PublishedViews

    def say(trouble: str) -> None:
        common_output.say(trouble, err=True)

    fleet = ClusterFleet(Connection(cluster_of(kubeconfig)), say)
    fleet.start()
    try:
        yield FleetPages(fleet, PublishedViews()).pages()
    finally:
        fleet.close()


def _serve(pages: dict[str, Page], http: str) -> None:
    """Until Ctrl-C."""
    import asyncio  # not at the top, where there is no TLS (answers.process_start)

    from partage.agent import log
    from partage.serve_http.http import HttpServer
    from partage.serve_http.http_access import HttpAccess, listen, say_url
    from partage.serve_http.serving import until_signal

    log.configure()
    access = HttpAccess(http_options())
    listening = listen(http)
    host, port = listening.getsockname()[:2]
    server = HttpServer(listening, pages, access)

    async def serve() -> None:
        stop = until_signal()
        say_url(host, port, access.scheme)
        await stop.wait()

    try:
        asyncio.run(serve())
    finally:
        server.close()


def _fleet(
    folder: Path | None, agents: tuple[str, ...], token_file: Path | None, ca: Path | None, every: float
) -> FleetReports | FleetAgents:
    with lean_imports(tls=True):
        import asyncio  # noqa: F401 - with TLS, before others import it without (answers.process_start)
    import ssl

    from partage.edges.host.read_file import check_regular, read_token
    from partage.serve_http.pages.sources import FleetReports, ReportFolder
    from partage.web.agents import FleetAgents

    if folder is not None and agents:
        raise InputError("a directory and agents exclude each other", "name one of them")
    if folder is not None:
        return FleetReports(ReportFolder(folder), every)
    if not agents:
        raise click.UsageError(
            "name a directory of reports, agents (--agent, --agents-file) or a cluster "
            "(--cluster, --kubeconfig)"
        )
    urls: dict[str, str] = {}
    for text in agents:
        name, equals, url = text.partition("=")
        if not equals or "/" in name:
            name, url = urlsplit(text).netloc, text
        if name in urls:
            raise InputError(f"two agents have the name {name!r}", "name them: --agent NAME=URL")
        urls[name] = url
    token = "" if token_file is None else read_token(token_file)
    try:
        if ca is not None:
            check_regular(ca)
        tls = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise wrong_input(ca, f"cannot be used: {error}") from error
    return FleetAgents(urls, every, token, tls)


def _lines(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    lines = (line.partition("#")[0].strip() for line in _text(path).splitlines())
    return tuple(line for line in lines if line)


def _text(path: Path) -> str:
    from partage.edges.host.read_file import read_regular

    try:
        return read_regular(path, 2**20).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not text"
        raise wrong_input(path, f"cannot be read: {why}") from error

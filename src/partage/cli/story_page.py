"""The page of a simulated node while a story is played: the one that the agent of a real node serves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from partage.lab.stories.play import Beside
from partage.lab.stories.stage import StoryStage
from partage.model.dcgm_names import DcgmNames
from partage.serve_http.agent_pages import agent_pages, browser_pages
from partage.serve_http.http import Answer, HttpServer, Page, PageRequest, Stream
from partage.serve_http.http_access import HttpAccess, HttpOptions, listen, say_url
from partage.serve_http.serving import until_signal


def story_page(address: str, protection: HttpOptions, *, stay: bool) -> Beside:
    """Serve at that address. stay: also after the story, until Ctrl-C. Raises InputError at once for an
    address that cannot be used."""
    access = HttpAccess(protection)
    listening = listen(address)

    @asynccontextmanager
    async def serve(stage: StoryStage) -> AsyncIterator[None]:
        host, port = listening.getsockname()[:2]
        say_url(host, port, access.scheme)
        server = HttpServer(listening, _pages(stage), access)
        try:
            yield
            if stay:
                stop = until_signal()
                click.echo("The story is over, the page stays. Ctrl-C ends it.", err=True)
                await stop.wait()
        finally:
            server.close()

    return serve


def _pages(stage: StoryStage) -> dict[str, Page]:
    """Of the agent that runs now: a story may start another one. No dcgm-exporter stands beside it, so that
    its names are served, too."""
    intervals = stage.settings.intervals

    def of_agent(request: PageRequest) -> Answer | Stream:
        pages = agent_pages(stage.agent_status, intervals, None, dcgm=DcgmNames.BOTH)
        return pages[request.path](request)

    paths = agent_pages(stage.agent_status, intervals, None)
    title = "Simulated node"
    return {**dict.fromkeys(paths, of_agent), **browser_pages(lambda: stage.agent_status, intervals, title)}

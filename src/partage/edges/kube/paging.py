"""Long lists, read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from partage.edges.kube.connection import Connection, Expired
from partage.edges.kube.objects import Page

PAGE = 500
"""Objects in one answer: all pods of a large cluster in one would be too long."""

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Listing(Protocol[R_co]):
    """A list as the API server sends it, or a page of one."""

    @property
    def metadata(self) -> Page: ...
    @property
    def items(self) -> tuple[R_co, ...] | None: ...


async def read_list(
    connection: Connection,
    kind: type[Listing[R]],
    path: str,
    parameters: Mapping[str, str],
    begin: Callable[[], Callable[[Iterable[R]], None]],
    *,
    page: int = PAGE,
) -> str:
    """Read a list, and tell its version, where a watch can begin.

    begin: called before the first page; what it returns takes the rows of each page. page: rows of one answer
    at most; 0: all of them. Where the API server has forgotten the state of the first page before the last
    one was asked for, the whole list is read anew in one answer. Raises what ``Connection.call`` raises.
    """
    while True:
        take = begin()
        asked = {**parameters, **({"limit": str(page)} if page else {})}
        try:
            while True:
                found = await connection.call(kind, "GET", path, parameters=asked)
                take(found.items or ())
                if not found.metadata.continue_:
                    return found.metadata.resource_version
                asked["continue"] = found.metadata.continue_
        except Expired:
            if "continue" not in asked:
                raise
            page = 0


async def all_rows(
    connection: Connection, kind: type[Listing[R]], path: str, parameters: Mapping[str, str]
) -> tuple[R, ...]:
    """The rows of a list. Raises as ``read_list``."""
    rows: list[R] = []

    def begin() -> Callable[[Iterable[R]], None]:
        rows.clear()
        return rows.extend

    await read_list(connection, kind, path, parameters, begin)
    return tuple(rows)

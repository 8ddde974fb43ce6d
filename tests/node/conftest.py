"""An agent that is killed closes nothing: in a process of its own the kernel does, here the collector has to.

So these tests alone forgive sockets that are found open, and have them collected before the next test begins.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for the tests of this folder."""
    item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faces.doctor.node import Node


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A path that leaves room for a socket's 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pd-", dir="/tmp") as root:
        yield Path(root)


@pytest.fixture
def node(short_dir: Path) -> Iterator[Node]:
    """A healthy node."""
    made = Node(short_dir)
    yield made
    made.close()

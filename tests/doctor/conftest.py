from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doctor.node import Node


@pytest.fixture
def node(short_dir: Path) -> Iterator[Node]:
    """A healthy node."""
    made = Node(short_dir)
    yield made
    made.close()

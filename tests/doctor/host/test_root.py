"""Paths of a node whose root is mounted elsewhere."""

from pathlib import Path

import pytest

from partage.doctor.host.root import NodeRoot


@pytest.fixture
def root(tmp_path: Path) -> NodeRoot:
    (tmp_path / "run/cdi").mkdir(parents=True)
    (tmp_path / "var").mkdir()
    (tmp_path / "run/cdi/a.json").write_text("x")
    (tmp_path / "var/run").symlink_to("/run")
    (tmp_path / "var/up").symlink_to("../../../run")
    (tmp_path / "circle").symlink_to("circle")
    return NodeRoot(tmp_path)


@pytest.mark.parametrize("path", ["/run/cdi/a.json", "/var/run/cdi/a.json", "/var/up/cdi/a.json"])
def test_links_lead_to_where_they_lead_on_the_node(root: NodeRoot, path: str) -> None:
    assert root.at(path) == root.path / "run/cdi/a.json"
    assert root.text(path) == "x"


def test_what_is_not_there(root: NodeRoot) -> None:
    assert not root.exists("/nothing/here")
    assert root.at("/nothing/here") == root.path / "nothing/here"
    root.at("/circle/x")  # ends


def test_the_own_root_is_as_it_is() -> None:
    assert NodeRoot().at("/var/run/cdi") == Path("/var/run/cdi")

"""Files as they lie on a disk: missing, unreadable, too large, of an unknown format."""

from __future__ import annotations

import hashlib
import io
import os
import re
import socket
import sys
import threading
from pathlib import Path

import pytest

from partage.edges.files.policy import load_policy, parse_policy
from partage.errors import InputError

ROOT = Path(__file__).parents[3]
TEXT = "version: partage/v1\n"


def refusal(path: str) -> str:
    with pytest.raises(InputError) as caught:
        load_policy(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_file_is_loaded_with_its_text_and_digest(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(TEXT)
    loaded = load_policy(str(file))
    assert (loaded.policy.source, loaded.text) == (str(file), TEXT)
    assert loaded.digest == hashlib.sha256(TEXT.encode()).hexdigest()


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert load_policy("-").policy.source == "-"


def test_standard_input_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"#" * (2 << 20))))
    assert "too large" in refusal("-")


def test_a_pipe_of_the_shell_is_read_as_a_file() -> None:
    """What ``<(...)`` is: an open pipe, named by its number."""
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as pipe:

        def write() -> None:
            pipe.write(TEXT)
            pipe.close()

        writer = threading.Thread(target=write)
        writer.start()
        assert load_policy(f"/dev/fd/{reading}").text == TEXT
        writer.join(timeout=10)


def test_what_may_never_end_or_begin_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        assert refusal(str(tmp_path / name)).endswith("cannot be read: not a regular file, but a pipe")
    for name in ("/dev/zero", "/dev/null", "/dev/full"):
        assert refusal(name).endswith("cannot be read: not a regular file, but a device")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        assert refusal(str(tmp_path / "s")).endswith("not a regular file, but a socket")


def test_a_missing_file_and_a_directory_are_said_to_be_that(tmp_path: Path) -> None:
    assert "no such file" in refusal(str(tmp_path / "nothing.yaml"))
    assert "is a directory" in refusal(str(tmp_path))
    assert "cannot be read" in refusal(str(tmp_path / ("x" * 3000)))
    assert "cannot be read" in refusal("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_said_to_be_that(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(TEXT)
    file.chmod(0)
    assert "permission denied" in refusal(str(file))


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    with file.open("wb") as stream:
        stream.truncate(10 << 20)
    assert "too large: 10485760 bytes" in refusal(str(file))


def test_an_empty_file_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.touch()
    assert "empty file" in refusal(str(file))


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        ("version: partage/v1", "partage/v1"),
        ("version: v1", "nvidia/v1"),
        ("flags: {}", "nvidia/v1"),
        ("Sharing: {}", "nvidia/v1"),
        ("version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}", "mig-parted/v1"),
    ],
)
def test_the_format_is_told_by_version_and_keys(text: str, format_: str) -> None:
    assert parse_policy(text, "p").policy.format == format_


@pytest.mark.parametrize(
    "text", ["{}", "[]", "4", "hello", "a: 1", "version: v2", "version: 1", "version: [v1]"]
)
def test_an_unknown_format_names_the_three(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_policy(text, "p")
    (problem,) = caught.value.problems
    assert all(name in problem.hint for name in ("partage/v1", "NVIDIA", "mig-configs"))


DOCUMENTED = re.findall(
    r"```yaml\n(.*?)```", (ROOT / "docs" / "reference" / "policy.md").read_text(), re.DOTALL
)


@pytest.mark.parametrize("text", DOCUMENTED, ids=range(len(DOCUMENTED)))
def test_every_example_of_the_documentation_is_read_without_a_warning(text: str) -> None:
    loaded = parse_policy(text, "p", "all-balanced" if "mig-configs" in text else None)
    assert loaded.warnings == ()


def test_the_documentation_shows_every_format() -> None:
    formats = ("version: partage/v1", "\nsharing:", "\nmig-configs:")
    assert all(any(mark in text for text in DOCUMENTED) for mark in formats)

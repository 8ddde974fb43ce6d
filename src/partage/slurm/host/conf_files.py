"""Slurm's configuration files with those that they include, each part where Slurm reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from partage.edges.files.input_file import STDIN, read_input, read_regular_input
from partage.errors import InputError, Problem, wrong_input
from partage.slurm.decide import releases
from partage.slurm.model import SlurmVersion
from partage.slurm.text.conf import ConfFile, ConfKind, ConfLine, parse_conf

_MOST_FILES = 1000


def read_conf_files(names: Sequence[str], version: SlurmVersion) -> tuple[ConfFile, ...]:
    """The files, with what they include. A file that another one includes counts once, in that place.

    Raises InputError with file and line: cannot be read, is none of Slurm's, includes itself.
    """
    reader = _ConfReader(version)
    found = {name: tuple(reader.file(name)) for name in names}
    included = {inner for name in names for inner in reader.includes[name]}
    return tuple(
        part
        for name, parts in found.items()
        if name == STDIN or _real(name) not in included
        for part in parts
    )


def _real(name: str) -> str:
    return str(Path(name).resolve())


class _ConfReader:
    """includes: which files (real paths) each named file includes, at any depth."""

    def __init__(self, version: SlurmVersion) -> None:
        self._from_first = version >= releases.INCLUDE_FROM_FIRST
        self._read = 0
        self.includes: dict[str, set[str]] = {}

    def file(self, name: str) -> Iterator[ConfFile]:
        """A file that the operator named."""
        self.includes[name] = set()
        parsed = parse_conf(_text(read_input(name)), name)
        if parsed is None:
            hint = "the file's name says what it is: gres.conf, slurm.conf, cgroup.conf"
            raise wrong_input(name, "is no gres.conf, slurm.conf or cgroup.conf", hint)
        yield from self._parts(parsed, name, () if name == STDIN else (_real(name),))

    def _parts(self, file: ConfFile, first: str, open_files: tuple[str, ...]) -> Iterator[ConfFile]:
        """The lines between the includes, and the included files."""
        lines: list[ConfLine] = []
        for line in file.lines:
            target = line.get("Include")
            if target is None:
                lines.append(line)
                continue
            if lines:
                yield ConfFile(file.name, file.kind, tuple(lines))
            lines = []
            yield from self._included(file, line, target, first, open_files)
        if lines or not file.lines:
            yield ConfFile(file.name, file.kind, tuple(lines))

    def _included(
        self, file: ConfFile, line: ConfLine, target: str, first: str, open_files: tuple[str, ...]
    ) -> Iterator[ConfFile]:
        beside = first if self._from_first else file.name
        folder = Path() if beside == STDIN else Path(beside).parent
        path = str(folder / target)
        real = _real(path)
        self._read += 1
        if real in open_files or self._read > _MOST_FILES:
            raise _wrong(line, f"Include {target} comes back to itself", "remove one of the two lines")
        if "%c" in target:
            message = f"Include {target}: Slurm reads ClusterName in place of %c, and this check does not"
            raise _wrong(line, message, "write the name of the cluster there")
        try:
            content = read_regular_input(path)
        except InputError as error:
            hint = "slurmd waits for this file, and then ends"
            if target.startswith('"'):
                hint = "Slurm takes the quotes as a part of the name: leave them out"
            raise _wrong(line, f"Include {path} {error.problems[0].message}", hint) from error
        self.includes[first].add(real)
        yield from self._parts(_parsed(content, path, file.kind), first, (*open_files, real))


def _parsed(content: bytes, name: str, kind: ConfKind) -> ConfFile:
    file = parse_conf(_text(content), name, kind)
    assert file is not None
    return file


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _wrong(line: ConfLine, message: str, hint: str) -> InputError:
    return InputError([Problem(line.file, f"line {line.number}", "error", message, hint)])

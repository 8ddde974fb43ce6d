"""Policies in ConfigMaps, as NVIDIA's plugin and mig-manager have them: each key of ``data`` is the text of a
policy file.

A file holds one ConfigMap, or several documents, or a List, in which ConfigMaps are. Which key is meant
follows the rules of NVIDIA's config-manager: the one that is named, else the one called ``default``, else the
only one. A name may also be that of a configuration in a file of mig-parted, ``NAME`` or ``KEY/NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from partage.codec.fields import nearest_word
from partage.codec.yaml_document import (
    Value,
    YamlDocument,
    describe,
    join_path,
    read_lenient,
    split_documents,
)
from partage.errors import InputError, Problem, wrong_input
from partage.values import Frozen

_DEFAULT = "default"
_POLICY_KEYS = frozenset({"version", "flags", "sharing", "resources", "mig-configs", "gpus", "imex"})
_POLICY_WORDS = ("sharing", "mig-", "partage/v1")
_LINE = re.compile(r"\bline (\d+)(?:, column (\d+))?")


class ConfigEntry(Frozen):
    """One key of a ConfigMap.

    name: the key, behind the name of its ConfigMap where several in the file have the key. path, line: of the
    key in the file. value: a text, or what stands there in its place. indent: of the text in the file; None:
    its lines are not those of the file.
    """

    name: str
    path: str
    value: Value
    line: int
    indent: int | None

    @property
    def text(self) -> bytes:
        """The text, on the lines on which it stands in the file."""
        above = "\n" * self.line if self.indent is not None else ""
        return (above + str(self.value)).encode("utf-8", "surrogatepass")

    @property
    def looks_like_policy(self) -> bool:
        """Whether it is a policy, perhaps a broken one, and not a text for something else."""
        value = self.value
        if isinstance(value, str):
            try:
                value = read_lenient(self.text, self.path).value
            except InputError:
                # Broken YAML for anything else is not ours; a broken policy is.
                return any(word in str(self.value) for word in _POLICY_WORDS)
        return isinstance(value, dict) and bool(_POLICY_KEYS & set(value))

    @property
    def configurations(self) -> list[str]:
        """The names of the configurations in a file of mig-parted; nothing for other policies."""
        return named_configurations(self.text, self.path) if isinstance(self.value, str) else []

    def place(self, problem: Problem) -> Problem:
        """A problem of the text as one of the file: its path below the key, its line in the file."""
        joint = "." if problem.path and not problem.path.startswith("[") else ""
        message = _LINE.sub(self._moved, problem.message, count=1)
        return replace(problem, path=f"{self.path}{joint}{problem.path}", message=message)

    def _moved(self, match: re.Match[str]) -> str:
        if self.indent is None:
            return f"{match[0]} of the text"
        return f"line {match[1]}, column {int(match[2]) + self.indent}" if match[2] else match[0]


def named_configurations(data: bytes, file: str) -> list[str]:
    """The names of the configurations in a file of mig-parted; nothing for any other file."""
    try:
        document = read_lenient(data, file).value
    except InputError:
        return []
    configs = document.get("mig-configs") if isinstance(document, dict) else None
    return list(configs) if isinstance(configs, dict) else []


def config_entries(data: bytes, file: str) -> list[ConfigEntry] | None:
    """All keys of all ConfigMaps in a file; None if it has no ConfigMap.

    Raises InputError for a document among several that is no YAML.
    """
    parts = split_documents(data)
    try:
        documents = [read_lenient(part, file) for part in parts]
    except InputError:
        if len(parts) == 1:
            return None  # whatever reads the file next says what is wrong
        raise
    lines = data.decode("utf-8", "replace").split("\n")
    found = [
        (name, entry)
        for number, document in enumerate(documents)
        for path, config_map in _config_maps(document.value, f"[{number}]" if len(parts) > 1 else "")
        for name, entry in _entries(config_map, path, document, lines)
    ]
    if not found and not any(True for document in documents for _ in _config_maps(document.value, "")):
        return None
    keys = [entry.name for _, entry in found]
    return [
        replace(entry, name=f"{name}/{entry.name}") if keys.count(entry.name) > 1 else entry
        for name, entry in found
    ]


def choose_entry(
    entries: Sequence[ConfigEntry], config: str | None, file: str
) -> tuple[ConfigEntry, str | None]:
    """The entry that ``config`` means, and the name of the configuration in it.

    Raises InputError with the names that there are.
    """
    likely = [entry for entry in entries if entry.looks_like_policy] or list(entries)
    if config is None:
        by_default = [entry for entry in likely if entry.name == _DEFAULT] or likely
        if len(by_default) != 1:
            raise _none_chosen(likely, file)
        return _with_text(by_default[0], file), None
    for entry in entries:
        if config == entry.name:
            return _with_text(entry, file), None
        if config.startswith(f"{entry.name}/"):
            return _with_text(entry, file), config.removeprefix(f"{entry.name}/")
    holders = [entry for entry in likely if config in entry.configurations]
    if len(holders) == 1:
        return holders[0], config
    known = _names(likely)
    if holders:
        text = f"configuration {config[:60]!r} is in several keys"
        hint = f"write one of: {', '.join(f'{entry.name}/{config}' for entry in holders)}"
        raise wrong_input(file, text, hint)
    near = nearest_word(config, known)
    advice = f"did you mean {near[:60]!r}? " if near else ""
    text = f"has no configuration {config[:60]!r}"
    raise wrong_input(file, text, f"{advice}it has: {_listed(known)}")


def configuration_names(entries: Sequence[ConfigEntry]) -> list[str]:
    """A name for ``choose_entry`` for each configuration in the policies among the entries."""
    return _names([entry for entry in entries if entry.looks_like_policy])


def _names(entries: Sequence[ConfigEntry]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        inner = entry.configurations
        behind = "" if len(entries) == 1 else f"{entry.name}/"
        found += [f"{behind}{name}" for name in inner] if len(inner) > 1 else [entry.name]
    return found


def _none_chosen(entries: Sequence[ConfigEntry], file: str) -> InputError:
    if not entries:
        text, hint = "the ConfigMap has no 'data'", "each key of 'data' is the text of a policy"
        return wrong_input(file, text, hint)
    keys = _listed([entry.name for entry in entries])
    text = f"the ConfigMap holds {len(entries)} configurations, and none is chosen"
    hint = f"--config takes one of: {keys}; without it the key {_DEFAULT!r} is taken, which is not there"
    return wrong_input(file, text, hint)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name[:60] for name in names[:50]) + (", ..." if len(names) > 50 else "")


def _with_text(entry: ConfigEntry, file: str) -> ConfigEntry:
    if isinstance(entry.value, str):
        return entry
    text = f"line {entry.line}: has to be text, not {describe(entry.value)}"
    hint = f"write '{entry.name.rpartition('/')[2]}: |', and the policy indented below it"
    raise InputError([Problem(file, entry.path, "error", text, hint)])


# --- the documents -----------------------------------------------------------------------------


def _config_maps(value: Value, path: str) -> Iterator[tuple[str, Mapping[str, Value]]]:
    """The ConfigMaps of a document with their paths: itself, or items of a List."""
    if not isinstance(value, dict):
        return
    if value.get("kind") == "ConfigMap":
        yield path, value
    items = value.get("items")
    if str(value.get("kind")).endswith("List") and isinstance(items, list):
        for number, item in enumerate(items):
            # The items of a ConfigMapList may leave their kind out.
            if isinstance(item, dict) and item.get("kind", str(value["kind"])[:-4]) == "ConfigMap":
                yield join_path(join_path(path, "items"), number), item


def _entries(
    config_map: Mapping[str, Value], path: str, document: YamlDocument, lines: Sequence[str]
) -> Iterator[tuple[str, ConfigEntry]]:
    """The keys of one ConfigMap, each with the ConfigMap's name."""
    metadata, data = config_map.get("metadata"), config_map.get("data")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    for key, value in data.items() if isinstance(data, dict) else ():
        line = document.line(data, key) or 0
        at = join_path(join_path(path, "data"), key)
        indent = _indent(value, lines[line:]) if isinstance(value, str) and line else None
        yield name, ConfigEntry(key, at, value, line, indent)


def _indent(text: str, below: Sequence[str]) -> int | None:
    """By how much a text is indented that begins on the first of these lines, as after ``key: |``; None if it
    is written in another way.
    """
    written = text.split("\n")
    first = next((number for number, line in enumerate(written) if line.strip()), None)
    if first is None or first >= len(below) or below[first].strip() != written[first].strip():
        return None
    return len(below[first].rstrip()) - len(written[first].rstrip())

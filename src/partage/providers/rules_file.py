"""The rules of providers: one YAML file for each in ``catalogue/providers``, or a file of the operator's own.

The keys are those of ``plan.providers.rules``; each rule names its source.
"""

from __future__ import annotations

from functools import cache

from partage.codec.values import CodecError, from_plain
from partage.codec.yaml_document import read_document
from partage.edges.files.catalogue import FOLDER, provider_tables
from partage.edges.files.input_file import read_input
from partage.errors import InputError, Problem
from partage.providers.decide.rules import Provider
from partage.providers.decide.subjects import LayoutTable
from partage.text import counted

_FOLDER = FOLDER / "providers"


@cache
def provider_names() -> tuple[str, ...]:
    """The providers that have a file, in alphabetical order."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def find_provider(name: str) -> Provider:
    """The provider of that name, or the one in the file ``name`` (it ends in ``.yaml`` or ``.yml``). Raises
    InputError for anything else, and for a file that is wrong.
    """
    if name.endswith((".yaml", ".yml")):
        return read_provider(read_input(name), name)
    wanted = name.lower()
    if wanted not in provider_names():
        hint = f"known: {', '.join(provider_names())}; or a file with rules, rules.yaml"
        raise InputError(f"--provider {name[:40]!r}: no such provider", hint)
    path = _FOLDER / f"{wanted}.yaml"
    return read_provider(path.read_bytes(), path.name)


def read_provider(content: bytes, file: str) -> Provider:
    """The rules in a file. Raises InputError with the path of what is wrong."""
    plain = read_document(content, file).value
    if isinstance(plain, dict):
        plain = {"tables": "", **plain}
    try:
        return from_plain(Provider, plain, strict=False)
    except CodecError as error:
        problem = Problem(
            file, "", "error", str(error), "docs/reference/providers.md lists the kinds of rules"
        )
        raise InputError([problem]) from error


def layout_tables(provider: Provider) -> tuple[LayoutTable, ...]:
    """The MIG layouts that the provider publishes."""
    return tuple(
        LayoutTable(
            models=table.models,
            title=table.title,
            names=tuple(row.name for row in table.rows if row.name is not None),
            wrong={row.name: counted(row.right) for row in table.rows if row.name is not None and row.wrong},
        )
        for table in provider_tables()
        if provider.tables and table.provider == provider.tables
    )

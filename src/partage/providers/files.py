"""What ``check --provider`` reads: the worker groups of a cluster, and the rules of providers, one YAML file
for each in ``catalogue/providers``, or a file of the operator's own.

The keys of rules are those of ``decide.rules``; each rule names its source.
"""

from __future__ import annotations

from functools import cache

from partage.codec.fields import Dialect, Field, Notes, Table
from partage.codec.reader import members, number, word_of
from partage.codec.values import CodecError, from_plain
from partage.codec.yaml_document import YamlDocument, read_document
from partage.edges.files.catalogue import FOLDER, choose_one, load_catalogue, provider_tables
from partage.edges.files.input_file import read_input
from partage.errors import InputError, Problem
from partage.model.geometry import GpuModel, MigProfile
from partage.model.layout import parse_layout_name
from partage.model.strategy import SHARING_STRATEGIES, Strategy
from partage.providers.decide.rules import Group, LayoutTable, MigType, Provider
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


_KEYS = ("name", "gpu", "gpus", "mig", "layout", "sharing", "replicas", "labels")
_EXAMPLE = "- {name: inference, gpu: h100-sxm5-80gb, mig: single, layout: all-1g.10gb}"
_SHARINGS = {strategy.value: strategy for strategy in SHARING_STRATEGIES}


def read_worker_groups(document: YamlDocument, file: str) -> tuple[tuple[Group, ...], tuple[Problem, ...]]:
    """The groups, and warnings. Raises InputError with everything that is wrong."""
    notes = Notes(document, file, Dialect())
    top = notes.top().table(("apiVersion", "version", "kind", "groups"))
    listed = top.required("groups", _EXAMPLE) if top else None
    fields = (listed.items(at_most=1000) if listed else None) or []
    groups = tuple(group for n, field in enumerate(fields) if (group := _group(field, n)) is not None)
    names = [group.who for group in groups]
    for n, field in enumerate(fields):
        if n < len(names) and names[n] in names[:n]:
            field.error(f"a second worker group {names[n]}", "give each group its own name")
    return groups, notes.finish()


def _group(field: Field, position: int) -> Group | None:
    table = field.table(_KEYS, _EXAMPLE)
    if table is None:
        return None
    gpu = table.needed("gpu", Field.some_text, "the model, h100-sxm5-80gb")
    sharing = table.value("sharing", word_of(_SHARINGS), Strategy.EXCLUSIVE)
    replicas = table.value("replicas", number(0), None)
    if not sharing.traits.in_shares and replicas not in (None, 1):
        table.here("replicas").error("exclusive GPUs have no replicas", "sharing: mps or time-slicing")
    layout, profiles = _layout(table)
    return Group(
        at=("groups", position),
        who=table.value("name", Field.some_text, f"group {position}"),
        sharing=sharing,
        replicas=replicas,
        mig=table.choice("mig", MigType.NONE),
        model=_model(table, gpu) if gpu else None,
        gpus=table.value("gpus", number(1), None),
        layout=layout,
        profiles=profiles,
        labels=table.value("labels", members(Field.text), {}),
    )


def _layout(table: Table) -> tuple[str | None, tuple[str, ...]]:
    field = table.get("layout")
    if field is None:
        return None, ()
    if isinstance(field.value, str):
        return field.parsed(parse_layout_name, "all-1g.10gb"), ()
    items = field.items(at_most=100, hint="all-1g.10gb, or a list of profiles, [3g.40gb, 4g.40gb]") or []
    read = [item.parsed(MigProfile.parse, "1g.10gb") for item in items]
    return None, tuple(str(profile) for profile in read if profile is not None)


def _model(table: Table, name: str) -> GpuModel | None:
    catalogue = load_catalogue()
    # The title of a provider's table is that of its model, though other models begin with the same words.
    titled = next((t.models[0] for t in provider_tables() if t.title.casefold() == name.casefold()), "")
    variants = () if titled else catalogue.variants(name)
    found = None if variants else catalogue.find(titled or name) or catalogue.find(name.replace(" ", "-"))
    if found is None:
        hint = choose_one(variants) if variants else catalogue.advice(name)
        table.here("gpu").error(f"{'several models' if variants else 'no model'} named {name[:60]!r}", hint)
        return None
    return found[0]

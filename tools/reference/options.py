"""Verbs and options, from the parsers of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from partage.cli.hardware_options import DESCRIPTION, OPTIONS
from partage.cli.main import VERBS, partage
from tools.reference.tables import code, table

_HEADS = ("option", "default", "means")


def options() -> str:
    """A section for each verb: what it does, its arguments and its options."""
    with click.Context(partage, help_option_names=["-h", "--help"]) as ctx:
        return "\n".join(section for verb in sorted(VERBS) for section in _sections(ctx, verb))


def _sections(ctx: click.Context, verb: str) -> Iterator[str]:
    """The section of a verb, or one for each command of a verb that has several."""
    command = partage.get_command(ctx, verb)
    assert command is not None
    if verb == "hardware":
        yield f"## partage {verb}\n\n{DESCRIPTION}\n\n{table(_HEADS, _helper_rows())}"
    elif isinstance(command, click.Group):
        yield from (_section(ctx, f"{verb} {name}", one) for name, one in sorted(command.commands.items()))
    else:
        yield _section(ctx, verb, command)


def _section(ctx: click.Context, verb: str, command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "").split("\n\n")[0]
    arguments = [one.make_metavar(ctx) for one in command.params if isinstance(one, click.Argument)]
    usage = " ".join(["partage", verb, *arguments, "[OPTIONS]"])
    shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    rows = [_row(one, ctx) for one in shown]
    below = table(_HEADS, rows) if rows else "No options."
    return f"## partage {verb}\n\n`{usage}`: {' '.join(text.split())}\n\n{below}"


def _row(option: click.Option, ctx: click.Context) -> tuple[str, str, str]:
    names = [*option.opts, *option.secondary_opts]
    metavar = "" if option.is_flag or option.count else f" {_words(option.make_metavar(ctx))}"
    default = option.default
    given = isinstance(default, str | int | float) and not isinstance(default, bool) and option.show_default
    return (
        ", ".join(code(name + metavar) for name in names),
        code(f"{default:g}" if isinstance(default, float) else str(default)) if given else "",
        option.help or "",
    )


def _helper_rows() -> Iterator[tuple[str, str, str]]:
    for option in OPTIONS:
        if option.name != "help":
            yield code(f"--{option.name} {_words(option.metavar)}".rstrip()), "", option.help


def _words(metavar: str) -> str:
    """Without bars, which a table's cell cannot have: ``NAME or FILE``, ``[table, json, yaml]``."""
    return metavar.replace("|", ", " if metavar.startswith("[") else " or ")

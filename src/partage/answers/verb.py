"""What all verbs of ``partage`` do: they refuse an empty value, and list the options of many verbs last.

Imported by every verb, also the agent: no slow imports at the top.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

_POLICY_FILES = (".yaml", ".yml", ".json")
_POLICY = ("-f", "--policy")
_MACHINE = re.compile(r"\d+x[a-z0-9+-]+")
"""A simulated node by its GPUs: ``8xa100-40gb``."""

Command = TypeVar("Command", bound=Callable[..., Any])


class CommonOption(click.Option):
    """An option that several verbs have: the help lists it after those of the verb.

    may_be_empty: ``''`` is a value. gives_way_to: names of parameters; where one of them stands on the
    command line, the environment variable of this option is not read.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's
        may_be_empty: bool = False,
        gives_way_to: Iterable[str] = (),
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*args, **kwargs)
        self.may_be_empty = may_be_empty
        self._gives_way_to = frozenset(gives_way_to)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Click processes what stands on the command line before what does not."""
        given = click.core.ParameterSource.COMMANDLINE
        if any(ctx.get_parameter_source(name) is given for name in self._gives_way_to):
            return None
        return super().resolve_envvar_value(ctx)

    def value_from_envvar(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's
        """One value, where click would split it at spaces."""
        found = self.resolve_envvar_value(ctx)
        return (found,) if self.multiple and found is not None else super().value_from_envvar(ctx)


def common_option(*names: str, **settings: Any) -> Callable[[Command], Command]:  # noqa: ANN401 - click's
    """As ``click.option``, for an option that several verbs have."""
    return click.option(*names, cls=CommonOption, **settings)


path_option = partial(click.option, type=click.Path(path_type=Path), metavar="FILE")
"""As ``click.option``, for an option whose value is a path."""


class Verb(click.Command):
    """One verb."""

    allow_extra_args = True  # refused below, with the option that was meant

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an empty value: ``--policy "$UNSET"`` would mean the directory in which it was typed."""
        if not ctx.resilient_parsing and "" in (word.rpartition("=")[2] for word in args):
            _refuse_empty(self, ctx, args)
        if not ctx.resilient_parsing and sum(word.startswith(_POLICY) for word in args) > 1:
            _refuse_second_policy(self, ctx, args)
        rest = super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            raise unexpected(ctx, ctx.args[0])
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of the verb, then those of many verbs."""
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):
                continue  # the text above says what they are
            record = parameter.get_help_record(ctx)
            if record is not None:
                shared = isinstance(parameter, CommonOption) or parameter is self.get_help_option(ctx)
                (common if shared else own).append(record)
        for title, rows in (("Options", own), ("Common options", common)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def unexpected(ctx: click.Context, word: str) -> click.UsageError:
    """The error for an argument that the verb does not take; it names the option that was meant."""
    message = f"unexpected argument {word!r}"
    options = {parameter.name for parameter in ctx.command.params if isinstance(parameter, click.Option)}
    if "policy" in options and (Path(word).suffix in _POLICY_FILES or Path(word).is_dir()):
        message += f": a policy is named with -f: {ctx.command_path} -f {word}"
    elif "machine" in options and _MACHINE.fullmatch(word):
        message += f": a simulated node is named with --machine: {ctx.command_path} --machine {word}"
    return click.UsageError(message, ctx)


_WORDS = (
    (r" is not a valid (?:float|integer) range$", " is not a number"),
    (r" is not a valid (?:float|integer)$", " is not a number"),
    (r"(\S+) is not in the range (\S+)<=x<=(\S+)$", r"\1 is not from \2 to \3"),
    (r"(\S+) is not in the range x>=(\S+)$", r"\1 is less than \2"),
    (r"\. \(?Did you mean (?:one of: )?([^()?]*)\?\)?$", r"; did you mean \1?"),
    (r"\. Choose from:\s+", "; it is one of "),
    (r",?\s*\t", ", "),
)
"""What click says, and how we say it."""


def usage_message(error: click.ClickException) -> str:
    """What is wrong with a command line, in one sentence without a full stop."""
    param = getattr(error, "param", None)
    ctx = getattr(error, "ctx", None)
    if isinstance(error, click.BadParameter) and isinstance(param, click.Argument) and ctx is not None:
        error.param_hint = error.param_hint or _name(param, ctx)
    text = error.format_message().strip().rstrip(".")
    if text[1:2].islower():  # not the name of an argument
        text = text[:1].lower() + text[1:]
    for pattern, ours in _WORDS:
        text = re.sub(pattern, ours, text)
    return text


def _refuse_second_policy(verb: Verb, ctx: click.Context, args: list[str]) -> None:
    """Click would take the last one, and kubectl would take both."""
    _, _, order = verb.make_parser(ctx).parse_args(args=list(args))
    policies = [parameter for parameter in order if parameter.name == "policy" and not parameter.multiple]
    if len(policies) > 1:
        raise click.UsageError("--policy stands there twice: a node has one policy", ctx)


def _refuse_empty(verb: Verb, ctx: click.Context, args: list[str]) -> None:
    values, _, _ = verb.make_parser(ctx).parse_args(args=list(args))
    for parameter in verb.get_params(ctx):
        if getattr(parameter, "may_be_empty", False):
            continue
        value = values.get(parameter.name or "")
        given = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(item, str) and not item for item in given):
            raise click.BadParameter("the value is empty", ctx, parameter, _name(parameter, ctx))


def _name(parameter: click.Parameter, ctx: click.Context) -> str:
    """What messages call a parameter. Click has the brackets of the help around an argument that may be
    absent.
    """
    if isinstance(parameter, click.Argument):
        return f"'{parameter.human_readable_name.strip('[]')}'"
    return parameter.get_error_hint(ctx)


def verb(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Verb]:  # noqa: ANN401
    """As ``click.command``."""
    return click.command(name, cls=Verb, **settings)

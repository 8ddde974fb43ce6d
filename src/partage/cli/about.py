"""What ``partage`` says of itself: ``partage help VERB`` is ``partage VERB --help``, ``partage version`` is
``partage --version``.
"""

from __future__ import annotations

import click

from partage import __version__
from partage.answers.common_output import say
from partage.answers.verb import verb


@verb("help")
@click.argument("verb", required=False)
@click.pass_context
def show_help(ctx: click.Context, verb: str | None) -> None:
    """Show the help of a verb, or of partage as a whole."""
    from partage.cli.main import partage, unknown_verb

    assert ctx.parent is not None, "a verb of partage"
    if verb is None:
        click.echo(ctx.parent.get_help())
        return
    asked = partage.get_command(ctx.parent, verb)
    if asked is None:
        raise unknown_verb(verb, ctx.parent)
    asked.main(["--help"], prog_name=verb, standalone_mode=False, parent=ctx.parent)


@verb("version")
def version() -> None:
    """Print the version."""
    say(f"partage {__version__}")

"""``partage help VERB``: the same as ``partage VERB --help``."""

from __future__ import annotations

import click

from partage.answers.verb import verb


@verb("help")
@click.argument("verb", required=False)
@click.pass_context
def command(ctx: click.Context, verb: str | None) -> None:
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

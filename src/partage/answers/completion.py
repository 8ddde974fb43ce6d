"""``partage completion SHELL``, and what the values of options are completed with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from partage.answers.verb import verb

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMPLETE = "_PARTAGE_COMPLETE"
"""Variable with which a completion script asks what could come next."""

SHELLS = ("bash", "zsh", "fish")


@verb("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script with which a shell completes verbs, options, files and names of machines.

    \b
    bash: echo 'eval "$(partage completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(partage completion zsh)"' >> ~/.zshrc
    fish: partage completion fish > ~/.config/fish/completions/partage.fish
    """  # noqa: D301 - click reads the character \b: these lines stay as they are
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    # Not kind.source(): it starts a bash to ask for its version.
    click.echo(ShellComplete.source(kind(ctx.find_root().command, {}, "partage", COMPLETE)), nl=False)


# --- values of options ---------------------------------------------------------------------------


def files(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A file; the shell knows which there are."""
    from click.shell_completion import CompletionItem

    del ctx, parameter
    return [CompletionItem(incomplete, type="file")]


def machines(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A machine file, or names of machines: ``8xa100-40gb``, ``l4+4xh``."""
    from click.shell_completion import CompletionItem

    found = files(ctx, parameter, incomplete)
    return [*found, *(CompletionItem(name) for name in _machine_names(incomplete))]


def _machine_names(incomplete: str) -> Iterator[str]:
    import re

    from partage.edges.files.catalogue import load_catalogue

    group = re.fullmatch(r"(.*\+)?(\d+x)?([^+]*)", incomplete, re.DOTALL)
    assert group is not None, "every text has this form"
    before, begun = (group[1] or "") + (group[2] or ""), group[3].lower()
    for model in load_catalogue().simulated_models():
        if model.id.startswith(begun):
            yield before + model.id


def configurations(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of the configurations in the file of ``--policy``."""
    from click.shell_completion import CompletionItem

    from partage.edges.files.input_file import read_regular_input
    from partage.edges.files.policy import configurations as configurations_in
    from partage.errors import PartageError

    del parameter
    policy = ctx.params.get("policy")
    if not isinstance(policy, str):
        return []
    try:
        names = configurations_in(read_regular_input(policy), policy)
    except PartageError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]

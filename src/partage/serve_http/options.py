"""``--http`` and the options beside it: where a verb serves over HTTP, and who may read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from partage.answers.process_start import lean_imports
from partage.answers.verb import Command, path_option

if TYPE_CHECKING:
    from partage.serve_http.http_access import HttpOptions

_KEY = "partage.http"


def http_option(text: str, default: str | None = None) -> Callable[[Command], Command]:
    """``--http``."""
    return click.option(
        "--http", metavar="HOST:PORT", default=default, show_default=default is not None, help=text
    )


def http_protection(command: Command) -> Command:
    """The options; ``http_options`` finds their values by itself."""
    for name, metavar, text in reversed(
        (
            (
                "token-file",
                "FILE",
                "Its first line is a token that readers must have, as bearer or password.",
            ),
            ("cert", "FILE", "Certificate of this server, PEM; it then uses TLS."),
            ("key", "FILE", "Private key of that certificate."),
            ("client-ca", "FILE", "Readers must have a certificate of this authority, or the token."),
        )
    ):
        command = path_option(
            f"--http-{name}",
            metavar=metavar,
            expose_value=False,
            callback=_remember,
            help=text,
        )(command)
    return click.option(
        "--http-name",
        multiple=True,
        metavar="NAME",
        expose_value=False,
        callback=_remember,
        help="A host name under which this server is asked, beside localhost, addresses and the node's name; "
        "can be repeated.",
    )(command)


def _remember(ctx: click.Context, parameter: click.Parameter, value: object) -> object:
    ctx.meta.setdefault(_KEY, {})[parameter.name] = value
    return value


def http_options() -> HttpOptions:
    """What the command line says."""
    with lean_imports():
        from partage.serve_http.http_access import HttpOptions

    said = click.get_current_context().meta.get(_KEY, {})
    return HttpOptions(
        token_file=said.get("http_token_file"),
        cert=said.get("http_cert"),
        key=said.get("http_key"),
        client_ca=said.get("http_client_ca"),
        names=frozenset(said.get("http_name", ())),
    )

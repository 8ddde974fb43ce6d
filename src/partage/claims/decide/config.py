"""What the configuration of a claim and of its class means for one request.

The same entry may come twice: schedulers of Kubernetes 1.36 write one that is for two requests so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import structs

from partage.claims.model.claim import ClaimConfig, ConfigSource
from partage.claims.model.grant import ShareConfig
from partage.codec.values import CodecError, decode
from partage.model.policy import WatchAction
from partage.model.share import Guarantee
from partage.model.strategy import Interval
from partage.text import printable, shortened
from partage.values import Frozen

_LONGEST = 160
_HINT = "possible keys are interval, guard, watch and need"


class ConfigError(ValueError):
    """A configuration that is wrong, a clause: what, and what is possible."""


class _Written(Frozen, forbid_unknown_fields=True):
    api_version: Literal["partage.dev/v1"]
    kind: Literal["ShareConfig"]
    interval: Interval | None = None
    guard: bool | None = None
    watch: WatchAction | Literal[False] | None = None
    need: Guarantee | None = None


def share_config(configs: Iterable[ClaimConfig], request: str, driver: str) -> ShareConfig:
    """What holds for a request, ``req`` or ``req/sub``: of each key the last entry that has it, those of the
    class before those of the claim.

    Raises ConfigError; also for an entry that a later one replaces.
    """
    names = {request, request.partition("/")[0]}
    ours = [one for one in configs if one.driver == driver and (not one.requests or names & {*one.requests})]
    found: dict[str, object] = {}
    for one in sorted(ours, key=lambda one: one.source is ConfigSource.CLAIM):
        found |= {key: value for key, value in structs.asdict(read_config(one)).items() if value is not None}
    return structs.replace(ShareConfig(), **found)


def read_config(config: ClaimConfig) -> ShareConfig:
    """One entry. Raises ConfigError."""
    try:
        written = decode(_Written, config.parameters, strict=False)
    except CodecError as error:
        who = "its class" if config.source is ConfigSource.CLASS else "the claim"
        said = shortened(printable(str(error)), _LONGEST)
        raise ConfigError(f"a ShareConfig of {who} is wrong: {said}; {_HINT}") from None
    # ``watch: off`` in a manifest is false where YAML 1.1 is read, as by kubectl.
    watch = WatchAction.OFF if written.watch is False else written.watch
    return ShareConfig(written.interval, written.guard, watch, written.need)

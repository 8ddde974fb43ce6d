"""Reads a policy in any format: Partage's own, NVIDIA's device plugin's, mig-parted's; or in a ConfigMap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.codec.fields import Notes
from partage.codec.yaml_document import Value, YamlDocument, describe, read_lenient
from partage.edges.files import migparted, native, nvidia, nvidia_flags
from partage.edges.files.input_file import read_input
from partage.errors import InputError, Problem, wrong_input
from partage.model.policy import ALL_EXCLUSIVE, Policy
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.edges.files.config_map import ConfigEntry

_FORMATS = (
    "'version: partage/v1' (Partage), 'version: v1' (NVIDIA's device plugin), "
    "'version: v1' with 'mig-configs' (mig-parted)"
)


_CONFIG_MAP = b"ConfigMap"
"""A file without this word is no ConfigMap."""


class LoadedPolicy(Frozen):
    """A policy and the warnings about its file. digest: SHA-256 of the text, in hex."""

    policy: Policy
    warnings: tuple[Problem, ...]
    text: str
    digest: str


def load_policy(path: str, config: str | None = None, env: Mapping[str, str] | None = None) -> LoadedPolicy:
    """The policy in a file, or on standard input if the path is ``-``.

    config: which of several named configurations (mig-parted's files, ConfigMaps). env: variables that
    override NVIDIA's format only. Raises InputError with all problems: no such file, unreadable, invalid.
    """
    return parse_policy(read_input(path), path, config, env)


def parse_policy(
    text: str | bytes, name: str, config: str | None = None, env: Mapping[str, str] | None = None
) -> LoadedPolicy:
    """As ``load_policy``, for a text. name: the file's name in problems."""
    import hashlib  # takes a millisecond

    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    entries = _config_entries(data, name)
    if entries is None:
        policy, warnings = _policy(read_lenient(data, name), name, config, env or {})
    else:
        policy, warnings = _in_config_map(entries, config, name, env or {})
    digest = hashlib.sha256(data).hexdigest()
    return LoadedPolicy(policy, warnings, data.decode("utf-8-sig"), digest)


def configurations(data: bytes, file: str) -> list[str]:
    """What ``config`` can name in a file: configurations of mig-parted, policies in ConfigMaps; nothing for
    other policies. Raises InputError for a document among several that is no YAML.
    """
    from partage.edges.files.config_map import configuration_names, named_configurations

    entries = _config_entries(data, file)
    return named_configurations(data, file) if entries is None else configuration_names(entries)


def policy_keys(data: bytes, file: str) -> dict[str, list[str]] | None:
    """The keys of the ConfigMaps in a file that hold policies, each with the names of the configurations in
    it, where it is a file of mig-parted. None if the file has no ConfigMap.

    Raises InputError for a document among several that is no YAML.
    """
    entries = _config_entries(data, file)
    if entries is None:
        return None
    return {entry.name: entry.configurations for entry in entries if entry.looks_like_policy}


def _config_entries(data: bytes, file: str) -> Sequence[ConfigEntry] | None:
    """The keys of the ConfigMaps in a file; None if it has none."""
    if _CONFIG_MAP not in data:
        return None
    from partage.edges.files.config_map import config_entries

    return config_entries(data, file)


def _in_config_map(
    entries: Sequence[ConfigEntry], config: str | None, name: str, env: Mapping[str, str]
) -> tuple[Policy, tuple[Problem, ...]]:
    """The policy in one key of a ConfigMap. Its problems name the place in the file."""
    from partage.edges.files.config_map import choose_entry

    entry, inner = choose_entry(entries, config, name)
    try:
        policy, warnings = _policy(read_lenient(entry.text, name), name, inner, env)
    except InputError as error:
        raise InputError([_placed(problem, entry, name) for problem in error.problems]) from error
    placed = tuple(
        replace(placed_entry, origin=f"{entry.path}.{placed_entry.origin}") for placed_entry in policy.entries
    )
    return replace(policy, entries=placed), tuple(_placed(problem, entry, name) for problem in warnings)


def _placed(problem: Problem, entry: ConfigEntry, file: str) -> Problem:
    return entry.place(problem) if problem.file == file else problem  # others are of variables


def built_in(env: Mapping[str, str]) -> LoadedPolicy:
    """The policy without a file: every GPU exclusive. Where variables of NVIDIA's are set, it is what a file
    with ``version: v1`` alone means with them, as for NVIDIA's plugin. Raises InputError if one is wrong.
    """
    known = dict.fromkeys(name for names in nvidia_flags.ENVIRONMENT.values() for name in names)
    given = [name for name in known if env.get(name)]
    policy, warnings = ALL_EXCLUSIVE, tuple(_not_read(env, given))
    if given:
        read = parse_policy("version: v1", "environment", env=env)
        policy, warnings = read.policy, (*read.warnings, *warnings)
    return LoadedPolicy(policy, warnings, "", "")


def _not_read(env: Mapping[str, str], given: list[str]) -> Iterator[Problem]:
    """What the variables of NVIDIA's that are set, without a file, mean that is easily missed."""
    if env.get("CONFIG_FILE"):
        text, hint = "has no effect", "name the policy file with --policy"
        yield Problem("environment", "CONFIG_FILE", "warning", text, hint)
    if given and "MIG_STRATEGY" not in given:
        text = f"{', '.join(given)} without a policy file: read as by NVIDIA's plugin, with migStrategy none"
        yield Problem("environment", "", "warning", text, "set MIG_STRATEGY, or name a file with --policy")


def _policy(
    document: YamlDocument, name: str, config: str | None, env: Mapping[str, str]
) -> tuple[Policy, tuple[Problem, ...]]:
    detected = _detect(document.value, name)
    if config is not None and detected != migparted.FORMAT:
        message = f"there is no configuration {config[:60]!r}: only mig-parted's files hold several"
        raise wrong_input(name, message, "leave --config out")
    if document.duplicates and detected != nvidia.FORMAT:
        raise InputError(document.duplicates)
    match detected:
        case native.FORMAT:
            notes = Notes(document, name, native.DIALECT)
            policy = native.read_native(notes)
        case migparted.FORMAT:
            notes = Notes(document, name, migparted.DIALECT)
            policy = migparted.read_mig_parted(notes, config)
        case _:
            notes = Notes(document, name, nvidia.DIALECT)
            policy = nvidia.read_nvidia(notes, env)
    return policy, notes.finish()


def _detect(value: Value, name: str) -> str:
    """The format, from version and keys. Raises InputError if it is unknown."""
    if not isinstance(value, dict):
        text = f"not a policy: it contains {describe(value)} instead of a mapping"
        raise wrong_input(name, text, f"it begins with {_FORMATS}")
    versions = [value[key] for key in sorted(value) if key.casefold() == "version"]
    version = versions[-1] if versions else None
    keys = {key.casefold() for key in value}
    if (isinstance(version, str) and version.startswith("partage")) or (not versions and "gpus" in value):
        return native.FORMAT
    if "mig-configs" in value and version in (None, "", "v1"):
        return migparted.FORMAT
    if version == "v1" or (version in (None, "") and keys & nvidia.TOP_KEYS - {"version"}):
        return nvidia.FORMAT
    text = (
        f"unknown version: {describe(version)}" if versions else "no version, and no keys of a known format"
    )
    kind = value.get("kind")
    if "apiVersion" in value and isinstance(kind, str):
        text = f"not a policy, but a Kubernetes object of kind {kind[:40]}"
        raise InputError(
            [Problem(name, "kind", "error", text, "partage check and partage explain read manifests")]
        )
    path = "version" if versions else ""
    raise InputError([Problem(name, path, "error", text, f"known formats: {_FORMATS}")])

"""Read what a user's configuration sets: a file of YAML or JSON, or a script with a command."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from harness.untrusted import BadInput, NotReadable, read_file

MOST_BYTES = 1 << 20
DOCUMENTS = (".yaml", ".yml", ".json")
_ASSIGNED = re.compile(r"[+~]*([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
# The next option, and no value such as -1.
_OPTION = re.compile(r"-(\D|$)")


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a user's file says."""

    # By name, with dots between parts.
    settings: dict[str, str]
    # The words of a script, which name what it starts; empty for a document.
    words: tuple[str, ...] = ()


def read_configuration(path: Path) -> Configuration:
    """Read a configuration; raise `BadInput` if it has no settings."""
    try:
        text = read_file(path, MOST_BYTES).decode()
    except (OSError, NotReadable, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"--mine={path}: {reason}") from None
    try:
        if path.suffix in DOCUMENTS:
            found = Configuration(dict(_flat(_parsed(text))))
        else:
            words = shlex.split(text.replace("\\\n", " "), comments=True)
            found = Configuration(_of_words(words), tuple(words))
    except ValueError as error:
        raise BadInput(f"--mine={path}: cannot be read: {error}") from None
    if not found.settings:
        kinds = "YAML, JSON, or a script with the words of a command"
        raise BadInput(f"--mine={path}: has no settings; use {kinds}")
    return found


def as_text(value: object) -> str:
    """Return a value as it is compared: 1.0 is 1, and True is true."""
    text = str(value).strip()
    try:
        return f"{float(text):.12g}"
    except ValueError:
        return text.lower() if text.lower() in ("true", "false") else text


def _parsed(text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError("PyYAML is not installed; run pip install pyyaml") from None

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"no YAML in line {mark.line + 1}" if mark else "no YAML") from None


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of a document; a setting without a value is as if it were not there."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}".removeprefix("."))
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for each in value:
            yield from _flat(each, name)
    elif value is not None and name:
        parts = value if isinstance(value, list) else [value]
        yield name, ",".join(map(as_text, parts))


def _of_words(words: list[str]) -> dict[str, str]:
    """Return what a script sets: `--name value`, `--name=value`, `--name` and `part.name=value`.

    Its own variables, which have no part in front, are put in where it uses them.
    """
    found: dict[str, str] = {}
    variables: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if assigned := _ASSIGNED.fullmatch(word.removeprefix("--")):
            name, value = assigned.groups()
        elif word.startswith("--") and word != "--":
            name, value = word[2:], "true" if _OPTION.match(after) else after
        else:
            continue
        value = as_text(Template(value).safe_substitute(variables))
        is_variable = "." not in name and not word.startswith("--")
        (variables if is_variable else found)[name.replace("-", "_")] = value
    return found

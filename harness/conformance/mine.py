"""Which entries of a library judge a user's configuration, and what of it they leave out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from textwrap import wrap

from harness.candidates.published.bugs import Bug, bugs
from harness.candidates.published.library import Library, libraries
from harness.candidates.published.options import Trainer, Value, trainers
from harness.case.settings import listed
from harness.conformance.configuration import Configuration, as_text, read_configuration
from harness.untrusted import BadInput, printable

_wrap = partial(wrap, width=79, break_on_hyphens=False)
# A setting with such a value asks for nothing.
OFF = ("false", "0", "none", "")


@dataclass(slots=True)
class Choice:
    """The entries that are nearest to a configuration, and what becomes of each setting."""

    # By entry, the settings that it has as the configuration says.
    entries: dict[str, list[str]] = field(default_factory=dict)
    # What an entry has otherwise.
    otherwise: list[str] = field(default_factory=list)
    # By entry, the settings that its cases state.
    stated: dict[str, dict[str, str]] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    # Names of settings of which the library's folder says nothing.
    unknown: list[str] = field(default_factory=list)


def choose_entries(names: Sequence[str], file: Path) -> tuple[Choice, str]:
    """Return the entries that judge a configuration, and what becomes of it as a text."""
    with_options = [library for library in libraries().values() if trainers(library)]
    name, _, entry = names[0].partition(".") if len(names) == 1 else ("", "", "")
    library = next((each for each in with_options if each.name == name), None)
    if library is None:
        known = ", ".join(each.name for each in with_options)
        raise BadInput(f"--mine={file}: name one package with it, of {known}")
    asked = tuple(each for each in trainers(library) if not entry or entry in each.entries)
    if not asked:
        raise BadInput(f"--mine={file}: {names[0]} is no entry that a configuration asks for")
    choice = choose(asked, read_configuration(file), library.stated)
    return choice, printable(_described(choice, library, file.name))


def choose(
    of_library: Sequence[Trainer], configuration: Configuration, limits: Mapping[str, str]
) -> Choice:
    """Return the entries that differ in the fewest settings, of each trainer that is asked for.

    `limits` are those of each entry, among them the settings of its cases.
    """
    settings = configuration.settings
    choice, sections = Choice(), {each.section for each in of_library if each.section}
    asked = [each for each in of_library if _asks_for(configuration, each)]
    known: set[str] = set()
    for trainer in asked or of_library:
        others = sections - {trainer.section}
        own = {name: value for name, value in settings.items() if not _is_of(name, others)}
        known |= set(_add(choice, trainer, own, limits))
    choice.unknown = [name for name in settings if name not in known]
    for lines in (choice.otherwise, choice.drawn, choice.left_out):
        # Several trainers may share a setting.
        lines[:] = dict.fromkeys(lines)
    return choice


def _asks_for(configuration: Configuration, trainer: Trainer) -> bool:
    started = {re.split("[./]", word.removesuffix(".py"))[-1] for word in configuration.words}
    return (not trainer.command or not started.isdisjoint(trainer.command.split())) and (
        not trainer.section
        or any(_is_of(name, {trainer.section}) for name in configuration.settings)
    )


def _add(
    choice: Choice, trainer: Trainer, own: Mapping[str, str], limits: Mapping[str, str]
) -> Iterator[str]:
    """Add what a trainer's entries judge of its settings; yield the names that it knows."""
    names = (*trainer.defaults, *trainer.fixed, *trainer.drawn, *trainer.settings)
    given = {name: found for name in names if (found := _find(name, own))}
    yield from given.values()
    stated = {name: own[found] for name, found in given.items()}
    said = {name: f"{found} {own[found]}" for name, found in given.items()}
    misses = {
        entry: [
            name
            for name in trainer.defaults
            if not _has(_of(trainer, entry, name), stated.get(name, trainer.defaults[name]))
        ]
        for entry in trainer.entries
    }
    least = min(map(len, misses.values()))
    for entry, missed in misses.items():
        if len(missed) > least:
            continue
        of_cases = _of_cases(trainer, limits.get(entry, ""))
        choice.entries[entry] = [
            said[name]
            for name in trainer.defaults
            if name in said and name not in missed and name not in of_cases
        ] + [
            said[name]
            for name, value in trainer.fixed.items()
            if name in said and _has(value, stated[name])
        ]
        for name in (each for each in missed if each not in of_cases):
            yours = said.get(name, f"{name} {_words(trainer.defaults[name])}, by default")
            why = _why_left_out(trainer, name, stated.get(name, ""))
            choice.otherwise.append(_otherwise(yours, _of(trainer, entry, name), why))
        _state_settings(choice, trainer, entry, own, of_cases)
    for name, value in trainer.fixed.items():
        if name in stated and not _has(value, stated[name]):
            why = _why_left_out(trainer, name, stated[name])
            choice.otherwise.append(_otherwise(said[name], value, why))
    choice.drawn += [
        f"{said[name]}: cases have {what}" for name, what in trainer.drawn.items() if name in said
    ]
    for name, value in own.items():
        why = _why_left_out(trainer, name, value)
        if why and name not in given.values():
            yield name
            if value not in OFF:
                choice.left_out.append(f"{name} {value}: {why}")


def _of_cases(trainer: Trainer, limits: str) -> dict[str, list[str]]:
    """Return the values that cases of an entry may state, by the library's name of a setting."""
    of_entry = listed(limits)
    return {name: of_entry[key] for name, key in trainer.settings.items() if key in of_entry}


def _state_settings(
    choice: Choice,
    trainer: Trainer,
    entry: str,
    own: Mapping[str, str],
    of_cases: Mapping[str, Sequence[str]],
) -> None:
    """Have the cases of an entry state the configuration's settings, or else their defaults."""
    for name, values in of_cases.items():
        found = _find(name, own)
        wanted = own[found] if found else values[0]
        value = next((value for value in values if as_text(value) == as_text(wanted)), None)
        choice.stated.setdefault(entry, {})[trainer.settings[name]] = value or values[0]
        if value is None:
            why = _why_left_out(trainer, name, wanted)
            choice.otherwise.append(_otherwise(f"{found} {wanted}", values[0], why))
        elif found:
            choice.entries[entry].append(f"{found} {wanted}")


def _otherwise(yours: str, judged: object, why: str) -> str:
    return f"{yours}; judged with {_words(judged)}{f' ({why})' if why else ''}"


def _of(trainer: Trainer, entry: str, name: str) -> Value | tuple[Value, ...]:
    return trainer.entries[entry].get(name, trainer.defaults[name])


def _alternatives(values: object) -> list[str]:
    return [as_text(each) for each in (values if isinstance(values, tuple) else (values,))]


def _has(values: object, value: object) -> bool:
    """Return whether a value, or one of several that come to the same, is one of these."""
    return any(
        fnmatchcase(each, pattern)
        for each in _alternatives(value)
        for pattern in _alternatives(values)
    )


def _words(values: object) -> str:
    return " or ".join(_alternatives(values))


def _find(setting: str, own: Mapping[str, str]) -> str | None:
    """Return the user's name of a setting, which may have more parts in front."""
    return next((name for name in own if _ends(name, setting)), None)


def _ends(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _why_left_out(trainer: Trainer, name: str, value: str) -> str:
    for pattern, why in trainer.left_out.items():
        setting, _, wanted = pattern.partition("=")
        if _ends(name, setting) and (not wanted or wanted == value):
            return why
    return ""


def _is_of(name: str, sections: set[str]) -> bool:
    """Return whether a setting stands in one of these parts of a configuration."""
    return not sections.isdisjoint(name.split(".")[:-1])


def _described(choice: Choice, library: Library, file: str) -> str:
    """Return a choice for a terminal."""
    groups = {
        "judged": [f"{library.name}.{key}: {_listed(has)}" for key, has in choice.entries.items()],
        "otherwise": choice.otherwise,
        "drawn": choice.drawn,
        "left out": choice.left_out,
        "not known": [", ".join(choice.unknown)] if choice.unknown else [],
        "listed": [f"{bug.key} ({bug.severity}): {bug.title}" for bug in _shown(choice, library)],
    }
    lines = [f"{file}, for {library.distribution} {library.pinned}"]
    for group, texts in groups.items():
        for number, text in enumerate(texts):
            label = "" if number else group
            first, next_ones = f"  {label:<11}", " " * 13
            lines += _wrap(text, initial_indent=first, subsequent_indent=next_ones)
    return "\n".join(lines) + "\n"


def _listed(settings: list[str]) -> str:
    return ", ".join(settings) or "all as by default"


def _shown(choice: Choice, library: Library) -> list[Bug]:
    """Return the findings that these entries show."""
    shown = (bug for bug in bugs(library) if not choice.entries.keys().isdisjoint(bug.candidate))
    return [bug for bug in shown if bug.is_finding and bug.is_in(library.pinned)]

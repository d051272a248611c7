"""What of a user's configuration the entries of a library stand for, from its options.toml.

A setting is named as users write it, or by the end of that: `policy_loss.loss_mode` is
`actor_rollout_ref.actor.policy_loss.loss_mode`. Names and values are patterns of a shell.
"""

import tomllib

import msgspec

from harness.candidates.published.library import BadFolder, Library
from harness.case.settings import listed
from harness.untrusted import fitted

Value = bool | int | float | str
# By setting, its value, or several that come to the same.
Values = dict[str, Value | tuple[Value, ...]]


class Trainer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a run of the library trains, and the entries that judge it."""

    # By entry, the settings in which it differs from the defaults.
    entries: dict[str, Values]
    # What the library takes for each setting of an entry if a configuration does not have it.
    defaults: Values = {}
    # The part of a configuration that is about it, such as `critic`; empty for all of it.
    section: str = ""
    # What a script calls it, such as `dpo` or the module `train_dpo`, or several such words; empty
    # if that says nothing.
    command: str = ""
    # Settings that are drawn with the cases, and what cases have.
    drawn: dict[str, str] = {}
    # Settings that cases state, and their names there.
    settings: dict[str, str] = {}
    # Settings that all entries have at one value, whatever the library's default is.
    fixed: Values = {}
    # Settings, or SETTING=VALUE, that no entry judges, and why not.
    left_out: dict[str, str] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    trainer: tuple[Trainer, ...]


def trainers(library: Library) -> tuple[Trainer, ...]:
    """Return what a folder says of configurations; nothing if the library has none."""
    path = library.folder / "options.toml"
    if not path.is_file():
        return ()
    try:
        found = fitted(tomllib.loads(path.read_text()), _File).trainer
        for trainer in found:
            _require_known(trainer, library)
    except ValueError as error:
        raise BadFolder(f"{path}: {error}") from error
    return found


def _require_known(trainer: Trainer, library: Library) -> None:
    if not trainer.entries:
        raise ValueError("entries: is empty")
    for entry, values in trainer.entries.items():
        if entry not in library.limits:
            raise ValueError(f"entries.{entry}: {library.name} has no such entry")
        for setting in values:
            if setting not in trainer.defaults:
                raise ValueError(f"entries.{entry}.{setting}: has no default")
    of_entries = {
        setting for entry in trainer.entries for setting in listed(library.stated.get(entry, ""))
    }
    for name, setting in trainer.settings.items():
        if setting not in of_entries:
            raise ValueError(f"settings.{name}: no entry states a setting {setting}")

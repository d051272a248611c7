"""A release that needs another Python gets it, or a sentence says what is missing."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.candidates.published import interpreters
from harness.candidates.published.environment import FOLDER, NEWEST, Environment
from harness.candidates.published.interpreters import OWN, VARIABLE, Base, NoInterpreter, find
from harness.candidates.published.library import BadFolder, Library, libraries
from harness.cli import main
from properties.helpers.toy import write_package

# No interpreter on this machine.
OTHER = "3.99"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with a package that wires `toylib`, whose release 1.1 needs another Python."""
    package = write_package(tmp_path)
    (package / "toywiring" / "requirements.txt").write_text(f"toylib==1.1\npython=={OTHER}\n")
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv(FOLDER, str(tmp_path / "environments"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.delenv(VARIABLE, raising=False)
    libraries.cache_clear()
    yield tmp_path
    libraries.cache_clear()


def write_interpreter(file: Path, *, python: str = "", says: str = "") -> str:
    """Write what starts this Python and takes itself for another, or only says why it does not."""
    answer = f"echo {says} >&2; exit 127" if says else f"echo {python}"
    file.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then {answer}; exit; fi\nexec {sys.executable} "$@"\n'
    )
    file.chmod(0o755)
    return str(file)


def folder_with(pins: str, folder: Path) -> Library:
    (folder / "requirements.txt").write_text(pins)
    return Library("toy", "toywiring", folder)


def test_a_python_beside_the_pins_is_no_package(tmp_path: Path) -> None:
    library = folder_with("toylib==1.0\npython==3.12\nother==2.0\n", tmp_path)
    assert library.requirements == ("toylib==1.0", "other==2.0")
    assert library.python == "3.12"
    assert folder_with("toylib==1.0\n", tmp_path).python == ""


@pytest.mark.parametrize("python", ["3.12.1", "2.7", "3"])
def test_a_python_is_a_major_and_a_minor_version(python: str, tmp_path: Path) -> None:
    library = folder_with(f"toylib==1.0\npython=={python}\n", tmp_path)
    with pytest.raises(BadFolder, match=f"'python=={python}' is not a Python as in python==3.12"):
        assert library.python


def test_only_releases_older_than_the_pinned_one_have_the_python_of_the_harness(
    tmp_path: Path,
) -> None:
    library = folder_with(f"toylib==1.10\npython=={OTHER}\n", tmp_path)
    for version, python in (
        ("1.9.2", None),
        ("1.10", OTHER),
        ("1.10.1", OTHER),
        ("2.0", OTHER),
        (NEWEST, OTHER),
    ):
        base = Environment(library, version).base
        assert (base and base.python) == python, version
    assert Environment(folder_with(f"toylib==1.0\npython=={OWN}\n", tmp_path), "1.0").base is None


def test_another_python_is_another_environment(tmp_path: Path) -> None:
    folders = {
        Environment(folder_with(f"toylib==1.0\n{python}", tmp_path), "1.0").folder
        for python in ("", "python==3.98\n", "python==3.99\n")
    }
    assert len(folders) == 3


def test_a_missing_python_is_reported_with_who_needs_it_and_what_to_do(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["candidates", "install", "toy"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"harness: candidate=toy: toylib 1.1 needs Python {OTHER}, but there is no "
        f"python{OTHER}; put python{OTHER} on PATH, or set {VARIABLE} to the path of such an "
        "interpreter"
    )
    assert not (machine / "environments").exists()


def test_an_interpreter_is_found_by_its_name_or_named_by_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv(VARIABLE, raising=False)
    named = write_interpreter(tmp_path / f"python{OTHER}", python=OTHER)
    assert find(OTHER, "toy") == f"python{OTHER}"
    older = write_interpreter(tmp_path / "older", python="3.98")
    monkeypatch.setenv(VARIABLE, older)
    # One variable may name the interpreter that another library needs.
    assert find(OTHER, "toy") == f"python{OTHER}"
    assert find("3.98", "toy") == older
    write_interpreter(Path(named), says="no such version")
    with pytest.raises(NoInterpreter) as error:
        find(OTHER, "toy")
    assert str(error.value).startswith(
        f"toy needs Python {OTHER}, but {older} is Python 3.98 and python{OTHER} does not start "
        "(no such version); "
    )


def test_an_interpreter_that_makes_no_environment_is_reported_with_its_last_line(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lame = machine / "lame"
    lame.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then echo {OTHER}; exit; fi\n'
        "echo install the package python3-venv >&2; exit 1\n"
    )
    lame.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(lame))
    assert main(["candidates", "install", "toy"]) == 2
    printed = capsys.readouterr().err.splitlines()[-1]
    assert printed.startswith(
        f"harness: candidate=toy: toylib 1.1: {lame} makes no environment in "
    )
    assert printed.endswith(": install the package python3-venv")


@pytest.mark.slow
def test_environments_of_another_python_share_one_base_that_is_made_once(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = write_interpreter(machine / "python", python=OTHER)
    monkeypatch.setenv(VARIABLE, interpreter)
    monkeypatch.setattr(Base, "pins", property(lambda _: ("toylib==1.0",)))
    pinned, newer = (Environment(libraries()["toy"], name) for name in ("1.1", NEWEST))
    assert pinned.install() == {"toylib": "1.1"}
    # The base is there, so nothing is looked for.
    Path(interpreter).unlink()
    assert newer.install() == {"toylib": "1.1"}
    (base,) = (machine / "environments").glob(f"python-{OTHER}-*")
    code = (
        "import importlib.util, sys; "
        "print(*(importlib.util.find_spec(name).origin for name in ('toylib', 'harness')), "
        "*sys.path[1:])"
    )
    run = subprocess.run(
        [pinned.python, "-c", code], capture_output=True, text=True, check=True, env={}
    )
    library, own, *path = run.stdout.split()
    assert library.startswith(str(pinned.folder)), "its own packages come before those of the base"
    assert str(interpreters.packages(base)) in path
    # It sees only the harness in the harness's environment.
    assert Path(own).resolve().parent == Path(interpreters.__file__).resolve().parents[2]
    assert not [each for each in path if each in sys.path and "site-packages" in each]

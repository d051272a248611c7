"""Templates become pages. What is put into them is never trusted: everything is escaped."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2 import TemplateError as Unrenderable
from markupsafe import Markup

__all__ = ["Unrenderable", "render"]

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **view: Any) -> str:
    """The page that a template makes of a view."""
    return _environment().get_template(template).render(**view)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A page stands alone: its style and its script are in it.
    for name in ("style.css", "page.js"):
        environment.globals[name.replace(".", "_")] = Markup((TEMPLATES / name).read_text())  # noqa: S704 - ours
    return environment

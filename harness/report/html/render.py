"""Render templates to pages, with everything escaped that is put into them."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2 import TemplateError as Unrenderable
from markupsafe import Markup

__all__ = ["Unrenderable", "render"]

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **view: Any) -> str:
    """Return the page that a template makes of these variables; all of them must be given."""
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
    # A page stands alone, so its style and its script are put into it.
    for name in ("style.css", "page.js"):
        environment.globals[name.replace(".", "_")] = Markup((TEMPLATES / name).read_text())  # noqa: S704 - part of the harness
    return environment

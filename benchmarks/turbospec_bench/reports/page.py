"""Reports as HTML: one file each, without any reference to the network, readable in light and dark.

The pages are Jinja2 templates in `templates/`; what they are given is text and is escaped, except for pictures.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

LEAST_SCALE = 0.72
"""Pictures shrink with the page down to this share of their size, where their text is 9 pixels high. On a narrower page
they scroll."""
PIXELS_A_POINT = 96 / 72

_TEMPLATES = Environment(
    loader=PackageLoader("turbospec_bench.reports"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def picture(svg: str) -> Markup:
    """A picture in a box of its own that scrolls."""
    found = re.match(r'<svg[^>]* width="([\d.]+)pt"', svg)
    assert found is not None, "matplotlib gives every picture a width in points"
    least = round(float(found[1]) * PIXELS_A_POINT * LEAST_SCALE)
    return Markup(f'<div class="wide"><svg style="min-width: {least}px"{svg.removeprefix("<svg")}</div>')


_TEMPLATES.filters["picture"] = picture


def render_page(template: str, **content: Any) -> str:
    """An HTML document from one of the templates."""
    return _TEMPLATES.get_template(template).render(content)

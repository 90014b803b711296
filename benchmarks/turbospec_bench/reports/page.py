"""What the reports' HTML pages have in common: one file each, without any reference to the network."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

CSS = """
:root { color-scheme: light dark; --ink: #1f2328; --page: #ffffff; --line: #d1d9e0; --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --page: #0d1117; --line: #3d444d; --good: #3fb950; --bad: #f85149; }
}
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink); background: var(--page);
       font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin-top: 1.6rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.87rem; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child, .words td, .words th { text-align: left; }
tr.adaptive { font-weight: 600; }
.met { color: var(--good); } .missed { color: var(--bad); font-weight: 600; }
small { display: block; color: var(--ink); font-weight: 400; opacity: 0.8; }
pre { overflow-x: auto; font-size: 0.8rem; }
svg { max-width: 100%; height: auto; }
summary { cursor: pointer; font-weight: 600; padding: 0.4rem 0; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """An HTML document of a heading and the parts, which are HTML already; readable in light and dark."""
    head = (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<meta name='viewport' content='width=device-width'><style>{CSS}</style></head><body>"
    )
    return "\n".join([head, f"<h1>{escape(title)}</h1>", *parts, "</body></html>\n"])


def details(summary: str, content: str, opened: bool) -> str:
    """A part that opens and closes; its content is HTML already."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{content}</details>"

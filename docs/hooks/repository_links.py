"""A hook of mkdocs: links to files of the repository that are not pages of the site.

The pages are read on GitHub too, where `../policies/adaptive.yaml` is a link. The site has no such file: there the path
stands in place of the link. A path that does not exist is a warning, which fails a strict build.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

log = logging.getLogger("mkdocs.hooks.repository_links")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace a page's links to files outside the documentation by their paths."""
    docs = Path(config["docs_dir"]).resolve()
    repository = docs.parent
    folder = (docs / page.file.src_uri).parent

    def plain(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / link["target"]))
        if target.is_relative_to(docs):
            return link[0]
        if not target.is_relative_to(repository) or not target.exists():
            log.warning("%s links to %s, which does not exist", page.file.src_uri, link["target"])
        path = target.relative_to(repository).as_posix() if target.is_relative_to(repository) else link["target"]
        return f"`{path}`"

    pieces, end = [], 0
    for block in CODE.finditer(markdown):
        pieces += [LINK.sub(plain, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*pieces, LINK.sub(plain, markdown[end:])])

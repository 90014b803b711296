"""Settings as YAML."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, cast

from ruamel.yaml import YAML

LINE_LENGTH = 120


def yaml_text(settings: Mapping[str, Any]) -> str:
    """The text of a YAML 1.2 file that holds `settings`, in their order."""
    yaml, text = cast(Any, YAML(pure=True)), io.StringIO()
    yaml.width = LINE_LENGTH
    yaml.dump(dict(settings), text)
    return text.getvalue()

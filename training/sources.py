"""Which installed packages the corpus is built from, under which licence, and how much of each.

Only permissively licensed text is listed: PSF-2.0, MIT, BSD, Apache-2.0. ``max_code_bytes`` limits the
share of a large package; ``max_prose_bytes`` does the same for documentation strings.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Source:
    """One body of text: an importable package, or the standard library."""

    name: str
    distribution: str | None
    licence: str
    max_code_bytes: int
    max_prose_bytes: int

    def root(self) -> Path:
        """Directory that holds the source's ``.py`` files."""
        if self.distribution is None:
            stdlib = Path(sysconfig.get_paths()["stdlib"])
            return stdlib / "test" if self.name == "stdlib-test" else stdlib
        return Path(str(importlib.metadata.distribution(self.distribution).locate_file(self.name)))

    def version(self) -> str:
        """Version of the installed text."""
        if self.distribution is None:
            return platform.python_version()
        return importlib.metadata.version(self.distribution)

    def readme(self) -> str:
        """Long description from the distribution's metadata; empty for the standard library."""
        if self.distribution is None:
            return ""
        metadata = importlib.metadata.metadata(self.distribution)
        body = metadata.get_payload()  # type: ignore[attr-defined]
        return body if isinstance(body, str) else ""


SOURCES: tuple[Source, ...] = (
    Source("stdlib", None, "PSF-2.0", 12 * MIB, 2 * MIB),
    Source("stdlib-test", None, "PSF-2.0", 2 * MIB, 0),
    Source("numpy", "numpy", "BSD-3-Clause", 1536 * KIB, 1024 * KIB),
    Source("scipy", "scipy", "BSD-3-Clause", 1536 * KIB, 1536 * KIB),
    Source("torch", "torch", "BSD-3-Clause", 3 * MIB, 1536 * KIB),
    Source("transformers", "transformers", "Apache-2.0", 2 * MIB, 768 * KIB),
    Source("sympy", "sympy", "BSD-3-Clause", 1024 * KIB, 512 * KIB),
    Source("networkx", "networkx", "BSD-3-Clause", 768 * KIB, 512 * KIB),
    Source("numba", "numba", "BSD-2-Clause", 768 * KIB, 128 * KIB),
    Source("mypy", "mypy", "MIT", 1024 * KIB, 256 * KIB),
    Source("setuptools", "setuptools", "MIT", 512 * KIB, 128 * KIB),
    Source("pip", "pip", "MIT", 512 * KIB, 128 * KIB),
    Source("huggingface_hub", "huggingface_hub", "Apache-2.0", 768 * KIB, 512 * KIB),
    Source("pydantic", "pydantic", "MIT", 512 * KIB, 256 * KIB),
    Source("_pytest", "pytest", "MIT", 512 * KIB, 256 * KIB),
    Source("rich", "rich", "MIT", 512 * KIB, 128 * KIB),
    Source("typer", "typer", "MIT", 256 * KIB, 128 * KIB),
    Source("click", "click", "BSD-3-Clause", 256 * KIB, 128 * KIB),
    Source("jinja2", "jinja2", "BSD-3-Clause", 512 * KIB, 128 * KIB),
    Source("fsspec", "fsspec", "BSD-3-Clause", 512 * KIB, 128 * KIB),
    Source("anyio", "anyio", "MIT", 256 * KIB, 128 * KIB),
    Source("mpmath", "mpmath", "BSD-3-Clause", 512 * KIB, 256 * KIB),
    Source("prometheus_client", "prometheus_client", "Apache-2.0", 256 * KIB, 64 * KIB),
    Source("markdown_it", "markdown-it-py", "MIT", 256 * KIB, 64 * KIB),
    Source("tomlkit", "tomlkit", "MIT", 256 * KIB, 64 * KIB),
)

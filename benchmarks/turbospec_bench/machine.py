"""What a measurement depends on besides its settings: the processor, and the code that ran."""

from __future__ import annotations

import hashlib
import platform
from importlib.util import find_spec
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
PACKAGES = ("turbospec", "turbospec_engine", "turbospec_bench")


def processor() -> str:
    """Name of the processor; its architecture where the system does not tell the name."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    names = [
        value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == "model name"
    ]
    return names[0] if names else platform.machine()


def source_digest(*packages: str) -> str:
    """A digest of the Python sources of some packages, those that are not installed left out."""
    digest = hashlib.sha256()
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        folder = Path(spec.origin).parent
        for source in sorted(folder.rglob("*.py")):
            digest.update(f"{source.relative_to(folder)} ".encode() + source.read_bytes())
    return digest.hexdigest()[:16]

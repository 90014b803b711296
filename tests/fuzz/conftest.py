from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.stock import make_files


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stock's files, without models."""
    folder = tmp_path_factory.mktemp("stock")
    make_files(folder)
    return folder

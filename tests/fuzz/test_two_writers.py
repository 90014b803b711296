from __future__ import annotations

from pathlib import Path

from tests.fuzz.two_writers import collide


def test_two_writers_of_one_file_and_a_reader(tmp_path: Path) -> None:
    assert collide(tmp_path, times=60).well

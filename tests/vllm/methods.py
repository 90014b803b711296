"""Runs several jobs of `tests.vllm.generate` one after the other: starting Python takes most of the time of one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.vllm.generate import run

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps([run(job) for job in json.load(sys.stdin)]))

"""The worker of a self-test without vLLM; `behave` in the engine says how it acts."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def run(job: dict[str, Any]) -> dict[str, Any]:
    engine, speculation = job["engine"], job["engine"].get("speculative_config")
    behave = engine.get("behave", "")
    if behave == "fails" or (behave == "refuses async" and job["asynchronous"]):
        print("(EngineCore pid=3) ERROR 11-24 [core.py:9] ValueError: async scheduling is not for you")
        print("RuntimeError: Engine core initialization failed. See root cause above.")
        sys.exit(1)
    if behave == "hangs" and speculation:
        print("hangs", flush=True)
        time.sleep(60)
    if speculation and speculation.get("enable_adaptive_verification"):
        print("ValueError: adaptive verification needs model runner V2")
        sys.exit(1)
    tokens = [[number, 1, 2] for number in range(len(job["prompts"]))]
    if behave == "loses a token" and job["policy"]:
        tokens[1][2] = 9
    passes = [[0, 0, 0], [2, 0, 2], [2, 0, 3 if behave == "drafts too much" else 2]]
    return {
        "prompt_tokens": [4] * len(tokens),
        "tokens": tokens,
        "logprobs": [[{str(token): -0.1} for token in row] for row in tokens] if job["logprobs"] else None,
        "batches": [(2.0 if speculation is None else 1.0, 3 * len(tokens))],
        "drafted": 0 if speculation is None else 4 * len(tokens),
        "accepted": 0 if speculation is None else len(tokens),
        "passes": [passes] if job["count_passes"] else None,
        "resolved": {
            "model_runner": "V2",
            "device": "none",
            "dtype": "float32",
            "cudagraph_mode": "NONE",
            "method": speculation and speculation["method"],
        },
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))

"""Runs `vllm bench serve` again and again in one process, because its imports alone take as long as a run.

Started by `client_process.py`. Every line on stdin is the JSON list of a run's arguments, and every answer a line on
stdout: `{}`, or `{"error": "…"}`. A first answer comes when the imports are done. What `vllm bench serve` prints goes
to stderr.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**fields: str) -> None:
        answers.write(json.dumps(fields) + "\n")

    try:
        import pandas  # noqa: F401  # vLLM reads its custom dataset with it, but does without until then
        from vllm.benchmarks import serve
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError as error:
        answer(error=f"`vllm bench serve` cannot be imported ({error})")
        return
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    answer()
    for line in sys.stdin:
        try:
            serve.main(parser.parse_args(json.loads(line)))
        except (Exception, SystemExit) as error:
            answer(error=f"{type(error).__name__}: {error}")
        else:
            answer()


if __name__ == "__main__":
    main()

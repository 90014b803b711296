"""A fake vLLM: `serve` reports its throughput over HTTP, and `client` reads it from there.

A server without speculation has 100 tokens/s, a static K adds 10 a token, a table 170 and TurboSpec 200. FAKE_VLLM in
the environment makes servers misbehave: `dies` before they answer, `leaves-a-child` that does not end when asked to,
and writes its process id to FAKE_VLLM_CHILD, `turbospec-fails` after it has started, `lacks-turbospec`,
`lacks-metrics`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


SHARES = (("engine", 10.0), ("host", 0.05))
"""Seconds that each reading of the metrics adds."""


def serve(arguments: list[str]) -> None:
    behaviour = os.environ.get("FAKE_VLLM")
    if behaviour == "dies":
        sys.exit("Traceback\nValueError: no such model\n")
    if behaviour == "leaves-a-child":
        child = subprocess.Popen([sys.executable, "-c", STUBBORN])
        Path(os.environ["FAKE_VLLM_CHILD"]).write_text(str(child.pid))
    speed = 100
    if "--speculative-config" in arguments:
        config = json.loads(arguments[arguments.index("--speculative-config") + 1])
        speed += 10 * config["num_speculative_tokens"]
        if "num_speculative_tokens_per_batch_size" in config:
            speed = 170
        if "TURBOSPEC_POLICY" in os.environ:
            speed = 200
    planning = "TURBOSPEC_POLICY" in os.environ and behaviour != "lacks-turbospec"
    if planning:
        print("TurboSpec chooses draft lengths by policy adaptive", flush=True)

    readings = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal readings
            self.send_response(200)
            self.end_headers()
            answer = str(speed)
            if self.path == "/metrics":
                readings += 1
                answer = f"turbospec_active {int(behaviour != 'turbospec-fails')}\n"
                answer += "".join(f"turbospec_{name}_seconds_total {share * readings}\n" for name, share in SHARES)
                if not planning or behaviour == "lacks-metrics":
                    answer = "vllm:request_success_total 3\n"
            self.wfile.write(answer.encode())

    HTTPServer(("127.0.0.1", int(arguments[arguments.index("--port") + 1])), Handler).serve_forever()


def client() -> None:
    print("{}", flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        given = {name: arguments[place + 1] for place, name in enumerate(arguments[:-1]) if name.startswith("--")}
        requests = int(given["--num-prompts"])
        with urlopen(f"{given['--base-url']}/speed") as answer:
            speed = float(answer.read())
        path = Path(given["--result-dir"], given["--result-filename"])
        path.write_text(json.dumps(result(requests, speed)))
        print("{}", flush=True)


def result(requests: int, speed: float, **fields: object) -> dict[str, object]:
    """What `vllm bench serve` saves."""
    latencies = {
        f"{statistic}_{name}_ms": 10.0
        for statistic in ("mean", "median", "std", "p50", "p95", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    }
    return {
        **latencies,
        "duration": 2.0,
        "completed": requests,
        "failed": 0,
        "total_input_tokens": 100 * requests,
        "total_output_tokens": 51 * requests,
        "request_throughput": 1.0,
        "output_throughput": speed,
        "total_token_throughput": 2 * speed,
        "generated_texts": ["some text"] * requests,
        "errors": [""] * requests,
        **fields,
    }


if __name__ == "__main__":
    if sys.argv[1] == "client":
        client()
    else:
        serve(sys.argv[2:])

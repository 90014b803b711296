"""Command lines that work on the stock and are quick; absurd ones beside them."""

from __future__ import annotations

import shlex

GENERATE = "generate 'a b c a b' --target models/target --drafter models/drafter --max-tokens 3"
BENCH = (
    "bench --models models --workloads workloads --threads 1 --workload code --concurrency 1 --drafter good --rounds 1 "
    "--policy static-1 --json out.json"
)
PROFILE = "profile --target models/target --drafter models/drafter"
CALIBRATE = "calibrate scenario.yaml --measured measured.csv"
TUNE = "tune scenario.yaml --write new.yaml --trials 5 --seeds 1 --held-out 2"
_LINES = (
    f"{GENERATE} --policy static-2",
    f"{GENERATE} --policy off --json",
    f"{GENERATE} --policy adaptive --profile profile.json",
    f"{GENERATE} --policy goodput --profile profile.json --json --temperature 1",
    f"{GENERATE} --policy policy.yaml --trace new/t.jsonl",
    BENCH,
    f"{BENCH} --profile profile.json --policy adaptive",
    f"{BENCH} --report new/out.html",
    "bench controller --policy static-3 --requests 4 --steps 3",
    "bench targets results.json",
    # These two end where vLLM is not installed.
    "bench vllm --models models --workloads workloads",
    "selftest vllm --json out.json",
    "selftest vllm --model models/target --speculative-config '{\"num_speculative_tokens\": 2}' --engine-args {}",
    f"{PROFILE} --output new.json",
    f"{PROFILE} --json",
    "simulate scenario.yaml --json out.json",
    "simulate scenario.yaml --policy adaptive --policy best_static --report new/out.html",
    "simulate recorded.yaml --policy policy.yaml",
    "simulate profiled.yaml scenario.yaml --policy goodput",
    "simulate scenario.yaml --policy oracle --seeds 2 --jobs 1",
    "simulate scenario.yaml --policy static-1 --seeds 2 --jobs 2",
    "capacity scenario.yaml --tolerance 0.5 --json out.json",
    "replay trace.jsonl --policy static-1 --json out.json",
    "replay trace.jsonl --policy policy.yaml --profile profile.json --concurrency 2",
    TUNE,
    f"{CALIBRATE} --seeds 1 --json out.json",
    "calibrate scenario.yaml --measured measured.json --seeds 2 --evaluations 1 --fit latency.verify_floor_seconds "
    "--write new",
    "repeats texts.jsonl --min-match 2 --min-repeat 4",
    "policy check policy.yaml table.yaml",
    "policy show policy.yaml",
    "policy show table.yaml --json",
    "policy schema",
    "doctor --bench bench.json",
    "doctor --bench bench.json --baseline bench.json --json",
    "doctor --url {server}/file",
    "trace trace.jsonl",
    "trace trace.jsonl --json",
)
GROUPS = ("bench", "policy", "selftest")
"""Commands that have subcommands."""
SOUND: dict[str, list[tuple[str, ...]]] = {}
"""Arguments by subcommand."""
for _line in _LINES:
    _words = tuple(shlex.split(_line))
    _name = " ".join(_words[:2]) if _words[0] in GROUPS and not _words[1].startswith("-") else _words[0]
    SOUND.setdefault(_name, []).append(_words)

HUGE = "1" + "0" * 20
ABSURD = [
    tuple(shlex.split(line))
    for line in (
        f"simulate scenario.yaml --seeds {HUGE}",
        "simulate scenario.yaml --seeds 1000000000 --json out.json",
        "simulate scenario.yaml --set workload.requests=100000000",
        "simulate scenario.yaml --set workload.warmup_requests=100000000",
        "simulate scenario.yaml --set server.max_num_seqs=1000000 --set workload.requests=100000000",
        "simulate scenario.yaml --set workload.classes.0.output_tokens.high=1000000000",
        "simulate scenario.yaml --jobs 1000000",
        f"simulate scenario.yaml --jobs {HUGE}",
        f"simulate scenario.yaml --rates {','.join(map(str, range(1, 1000)))} --seeds 1000000",
        f"simulate {'scenario.yaml ' * 1000}",
        f"simulate scenario.yaml {'--policy policy.yaml ' * 1000}",
        f"capacity scenario.yaml --seeds {HUGE}",
        "capacity scenario.yaml --seeds 1000000",
        "capacity scenario.yaml --set workload.requests=100000000",
        "capacity scenario.yaml --jobs 1000000",
        f"tune scenario.yaml --write new.yaml --trials {HUGE}",
        "tune scenario.yaml --write new.yaml --trials 100000000",
        f"tune scenario.yaml --write new.yaml --seeds {HUGE}",
        f"tune scenario.yaml --write new.yaml --held-out {HUGE}",
        f"{TUNE} --jobs {HUGE}",
        f"{CALIBRATE} --seeds {HUGE}",
        f"{CALIBRATE} --seeds 100000000",
        f"{CALIBRATE} --jobs {HUGE}",
        f"{CALIBRATE} --evaluations {HUGE} --fit latency.host_seconds",
        f"replay trace.jsonl --policy static-1 --concurrency {HUGE}",
        f"replay {'trace.jsonl ' * 1000} --policy static-1",
        f"{BENCH} --rounds {HUGE}",
        f"{BENCH} --rounds 1000000000",
        f"{BENCH} --threads 1000000",
        f"{BENCH} --threads {HUGE}",
        f"{BENCH} --concurrency 1000000000",
        f"{BENCH} --concurrency {HUGE}",
        f"{BENCH} --request-rate 1e308",
        f"{BENCH} --seed {HUGE}",
        f"{BENCH} --seed -1",
        "bench controller --policy goodput --max-draft 1000000000 --steps 2 --requests 2",
        "bench controller --policy adaptive --requests 1000000000 --steps 2",
        "bench controller --policy static-3 --steps 10000000000",
        f"bench controller --policy static-3 --steps {HUGE}",
        f"bench controller --max-draft {HUGE}",
        f"bench controller --requests {HUGE}",
        f"{GENERATE} --max-draft 1000000000",
        f"{GENERATE} --max-draft {HUGE}",
        f"{GENERATE} --max-tokens {HUGE}",
        f"{GENERATE} --top-k {HUGE}",
        f"{GENERATE} --top-k 1000000000 --temperature 1",
        f"{GENERATE} --seed {HUGE}",
        f"{GENERATE} --seed -1 --temperature 1",
        f"{GENERATE} --top-p 5e-324 --temperature 1",
        f"{GENERATE} --temperature 1e308",
        f"{GENERATE} --temperature 5e-324",
        f"{GENERATE} --temperature nan",
        f"{GENERATE} --stop ''",
        f"{GENERATE} --stop {'a' * 100_000}",
        f"{GENERATE} --device cuda:99",
        f"{GENERATE} --device meta",
        f"{GENERATE} --device cpu:7",
        f"generate '{'a ' * 50_000}' --target models/target --drafter models/drafter",
        "doctor --bench bench.json --draft-cost 1e308 --verify-cost 1e308",
        "doctor --bench bench.json --draft-cost nan",
        "doctor --url {server}/file --seconds nan",
        f"policy check {'policy.yaml ' * 3000}",
        f"trace {'trace.jsonl ' * 300}",
    )
]

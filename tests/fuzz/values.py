"""Hostile values of options, by type."""

from __future__ import annotations

import random

TEXTS = (
    "", " ", "\t", "-", "--", "-x", "--help-me", "=", ":", ",", ".", "a=b", "a,b", "a:b:c", "a.b.c", "{}", "[]", "{",
    "null", "true", "nan", "NaN", "inf", "-inf", "1e400", "-1e400", "1e308", "5e-324", "-1", "0", "-0.0", "1.5",
    "0x10", "1_000", "٣", "𝟙", "½", "9" * 20, "-" + "9" * 20, "9" * 400, "9" * 5000, "1" + "0" * 20, "1e-400", "é",
    "日本語", "\u202e\u2028", "\udcff", "\udc80abc", "\x1b[31mred\x1b[0m", "\x07", "\r", "a\nb", "a\r\nb", "[/red]",
    "[bold", "[red]x[/red]", "[link=x]", "[/]", "[", "]", "\\[", "%s", "%n", "{0}", "{__class__}", "$(id)", "`id`",
    ";id", "|", "..", "../..", "/", "~", "*", "a" * 300, "a" * 5000, "a" * 100_000, "None", "version=2", "__proto__",
    "server.max_num_seqs=", "=1",
)  # fmt: skip
INTEGERS = (
    "-1", "0", "1", "2", "-0", "2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "18446744073709551616", "1" + "0" * 20, "-1" + "0" * 20, "9" * 400, "9" * 5000, "1.0", "1.5", "1e3", "nan", "inf",
    "٣", "1_0", " 1", "1 ", "+1", "0x1", "", "one", "-", "[/red]", "\udcff",
)  # fmt: skip
FLOATS = (
    "-1", "0", "-0.0", "1", "2", "0.5", "nan", "-nan", "inf", "-inf", "infinity", "1e400", "-1e400", "1e308", "-1e308",
    "5e-324", "1e-310", "2.2250738585072014e-308", "0.9999999999999999", "1.0000000000000002", "1" + "0" * 400,
    "9" * 5000, "1e10", "1e20", "1,5", "1_0.5", "0x1p3", "٣.٥", "", " ", "one", "[bold", "\udcff",
)  # fmt: skip
SETTINGS = (
    "workload.requests=100000000", "workload.requests=0", "workload.requests=-1", "workload.requests=1e400",
    "workload.requests=" + "9" * 400, "server.max_num_seqs=1000000", "server.max_num_seqs=" + "9" * 20,
    "server.kv_cache_tokens=16", "server.kv_cache_tokens=1000000000000", "server.block_size=1000000000",
    "server.max_num_batched_tokens=1", "drafter.max_draft=0", "drafter.max_draft=33", "drafter.max_draft=1000000000",
    "seed=9007199254740992", "seed=-1", "rates=[]", "rates=[NaN]", "rates=[1e400]", "rates=[5e-324]", "rates=[1e308]",
    "rates=5", "latency.verify_floor_seconds=0", "latency.verify_floor_seconds=1e308",
    "latency.verify_floor_seconds=NaN", "latency.host_seconds=Infinity", "latency.verify_token_seconds=1e300",
    "latency.source=roofline", "latency=1", "workload.classes.0.share=5e-324", "workload.classes.0.share=1e308",
    "workload.classes.5.share=1", "workload.classes.-1.share=1", "workload.classes.٣.share=1",
    "workload.classes.0.acceptance.rate=NaN", "workload.classes.0.prompt_tokens.high=1000000000",
    "workload.classes.0.output_tokens.high=1000000000", "workload.classes.0.prompt_tokens.low=1000000000",
    "workload.arrivals.process=closed", "workload.arrivals=[]",
    'workload.arrivals={"process":"gamma","burstiness":5e-324}',
    'workload.arrivals={"process":"gamma","burstiness":1e308}',
    'workload.arrivals={"process":"day","curve":[5e-324],"period_seconds":1e308}',
    'workload.arrivals={"process":"bursts","on_seconds":5e-324,"off_seconds":1e308}',
    'workload.arrivals={"process":"trace","file":"places/zero"}',
    'workload.arrivals={"process":"trace","file":"places/fifo"}',
    'workload.arrivals={"process":"trace","file":"\\u0000"}', "policy=places/zero", "policy=places/fifo",
    "policy=\x00x", "slo={}", "slo.p99_ttft_ms=5e-324", "slo=null", "description=[/red]", "version=2", "version=1.0",
    "a.b.c.d=1", "server=1", "server.x=1", "description=" + "[" * 100_000, "rates=" + "[" * 5000 + "]" * 5000,
    "a" + ".a" * 5000 + "=1", "rates=" + '{"a":' * 5000 + "1" + "}" * 5000, "workload.classes=[]",
    "workload.classes.0.name=[bold", 'workload.classes.0.name="\\ud800"', "workload.warmup_requests=100000000",
    "drafter.confidence_correlation=1",
)  # fmt: skip
SEARCHES = (
    "probe_share=0:1", "probe_share=1:0", "probe_share=nan:inf", "probe_share=0:0.1:log", "probe_share", "=", "a=1:2",
    "probe_share=1:2:3:4", "probe_share=5e-324:1e308:log", "policy=1:2", "draft_length=1:" + "9" * 20,
    "draft_length=0:1e400", "first_token_weight=-1:1", "[/red]=1:2", "probe_share=0.01:0.02,0.03", "version=1:2",
)  # fmt: skip


def hostile_value(kind: type, rng: random.Random) -> str:
    """A value of an option of a type; one in five is made for another type."""
    if rng.random() < 0.2:
        kind = rng.choice([str, int, float])
    if kind is int:
        return rng.choice(INTEGERS)
    if kind is float:
        return rng.choice(FLOATS)
    if rng.random() < 0.15:
        return "".join(
            chr(rng.choice([*range(1, 128), 0xE9, 0x202E, 0x1F600, 0xDC80])) for _ in range(rng.randint(1, 40))
        )
    return rng.choice(TEXTS)

"""Figures of a run from the result file of `vllm bench serve`, under the same names as the embedded engine's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from prometheus_client.parser import text_string_to_metric_families
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model

from turbospec.errors import UserError
from turbospec.files.reading import read_text
from turbospec_bench.metrics import PERCENTILES

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "median", "std", *(f"p{percentile}" for percentile in PERCENTILES))
COUNTS = ("duration", "completed", "failed", "total_input_tokens", "total_output_tokens")
SPECULATION = ("num_drafts", "draft_tokens", "accepted_tokens")
THROUGHPUTS = ("request_throughput", "output_throughput", "total_token_throughput")

FIGURES = (*COUNTS, *THROUGHPUTS, *(f"{statistic}_{name}_ms" for statistic in STATISTICS for name in LATENCIES))

Number = Annotated[float, Field(ge=0, le=1e15)]
READ: dict[str, Any] = {
    **dict.fromkeys(FIGURES, (Number, ...)),
    **{f"spec_decode_{name}": (Number, 0.0) for name in SPECULATION},
    "spec_decode_per_position_acceptance_rates": (list[Number], []),
    "generated_texts": (list[str], ...),
    "errors": (list[str], ...),
}
RESULT = TypeAdapter(create_model("Result", __config__=ConfigDict(strict=True), **READ))
"""What is read of a result file."""

ACTIVE, ENGINE, HOST = "turbospec_active", "turbospec_engine_seconds_total", "turbospec_host_seconds_total"

OPTIONS = (
    *("--percentile-metrics", ",".join(LATENCIES), "--metric-percentiles", ",".join(map(str, PERCENTILES))),
    *("--save-result", "--save-detailed"),
)
"""Options of `vllm bench serve` that make it save what is read here."""


def read_result(path: Path) -> dict[str, Any]:
    """The result file of a run, with everything that is read of it.

    Raises:
        UserError: the file cannot be read, or is the result of something else.
    """
    text = read_text(path, "result of `vllm bench serve`")
    try:
        # Not `parse_json`: numbers that nobody reads may be infinite.
        document = json.loads(text)
        RESULT.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise UserError(f"{path}: `vllm bench serve` wrote another result ({where}: {first['msg']})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: `vllm bench serve` wrote no JSON ({error})") from error
    return document


def bench_figures(document: Mapping[str, Any]) -> dict[str, float]:
    """Figures of a result file.

    vLLM counts drafts but not the steps without drafts. A step of a decoding request emits its accepted tokens and one
    more, so the number of steps follows from the tokens. It is slightly too low where a request ended within a draft.

    Args:
        document: as `read_result` returns it.
    """
    figures = {name: float(document[name]) for name in FIGURES}
    # Absent where no draft was verified.
    drafts, drafted, accepted = (float(document.get(f"spec_decode_{name}", 0)) for name in SPECULATION)
    decode_rows = max(drafts, figures["total_output_tokens"] - figures["completed"] - accepted)
    return figures | {
        "mean_accepted_length": 1.0 + accepted / max(1.0, drafts),
        "mean_draft_length": drafted / max(1.0, decode_rows),
        "acceptance_rate": accepted / drafted if drafted else math.nan,
    }


def host_share(before: str, after: str) -> dict[str, float]:
    """TurboSpec's share of the steps' duration between two readings of a server's `/metrics`.

    Each reading is a consistent snapshot, up to a second old. The share is not a number where both are the same one.
    """
    then, now = _turbospec(before), _turbospec(after)
    host, seconds = (now.get(name, 0.0) - then.get(name, 0.0) for name in (HOST, ENGINE))
    return {"controller_time_share": host / seconds if seconds > 0 else math.nan}


def is_planning(metrics: str) -> bool | None:
    """Whether TurboSpec plans the steps of a server, by its `/metrics`; None where they do not tell."""
    active = _turbospec(metrics).get(ACTIVE)
    return None if active is None else active > 0


def _turbospec(metrics: str) -> dict[str, float]:
    """Those of TurboSpec's metrics that are read, by name."""
    samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
    return {sample.name: sample.value for sample in samples if sample.name in (ACTIVE, ENGINE, HOST)}


def bench_record(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a row keeps of its last run besides figures: per position, the share of drafts accepted up to it."""
    rates = document.get("spec_decode_per_position_acceptance_rates", [])
    return {"acceptance_by_position": [round(float(rate), 4) for rate in rates]}

"""The report stands alone and hides nothing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from turbospec_bench.reports.benchmark import render, write_pictures, write_report

META = {
    "seed": 0,
    "machine": "a <machine>",
}


def row(policy: str, *, concurrency: int | None = 1, emit: str = "before_draft", **figures: Any) -> dict[str, Any]:
    return {
        "workload": "code",
        "drafter": "good",
        "concurrency": concurrency,
        "request_rate": "inf" if concurrency else 2.5,
        "policy": policy,
        "emit": emit,
        "rounds": 6,
        "output_throughput": 123.4,
        "mean_tpot_ms": 5.5,
        "mean_ttft_ms": 20.0,
        "p99_ttft_ms": 33.0,
        "mean_draft_length": 2.5,
        "mean_accepted_length": 1.8,
        "draft_time_share": 0.3,
        "controller_time_share": 0.004,
        "round_figures": {"output_throughput": [120.0, 121.0, 123.0, 124.0, 125.0, 126.0]},
        "ratio_to_off": {"output_throughput": {"value": 1.25, "low": 1.2, "high": 1.3}},
        "timeline": {"seconds": [0.0, 1.0], "draft_length": [3.0, 0.0], "acceptance": [0.5, None]},
        "step_times": {"predicted_ms": [4.0, 8.0], "measured_ms": [5.0, 8.0], "prefill_tokens": [0, 64]},
    } | figures


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    no_steps: dict[str, Any] = {"timeline": {}, "step_times": {}, "mean_draft_length": None, "draft_time_share": None}
    return [
        row("off"),
        row("static-15", emit="after_draft"),
        row("adaptive"),
        row("transformers-off", **no_steps),
        row("off", concurrency=None),
        row("goodput", concurrency=None),
    ]


def test_findings_tables_and_pictures_are_there(rows: list[dict[str, Any]]) -> None:
    html = render(META, rows)

    assert "<dt>against off</dt><dd>As many tokens/s (1.00× [1.00, 1.00] in code/good/c1).</dd>" in html
    assert "target" not in re.sub("<style>.*</style>", "", html, flags=re.DOTALL)
    assert "1.25 [1.20, 1.30]" in html
    assert "static-15:after_draft" in html
    assert "a &lt;machine&gt;" in html
    assert html.count("<details") == 2  # configurations
    assert html.count("<svg") == 2 + 2 * 2  # throughput, step time; latency and timeline of both configurations
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)


def test_the_file_needs_no_network(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    write_report(tmp_path / "new/report.html", META, rows)
    html = (tmp_path / "new/report.html").read_text(encoding="utf-8")

    assert "<script" not in html
    assert "<link" not in html
    assert not re.search(r"(src|href|url)\s*[=(]\s*['\"]?https?:", html)


def test_pictures_stand_alone(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    written = write_pictures(tmp_path / "pictures", rows)

    assert [path.stem for path in written] == [
        *("throughput", "step-time"),
        *("latency-code-good-c1", "timeline-code-good-c1"),
        *("latency-code-good-r2.5", "timeline-code-good-r2.5"),
    ]
    for path in written:
        assert "currentColor" not in path.read_text()
        ElementTree.parse(path)


def test_pictures_are_readable_on_light_and_dark(rows: list[dict[str, Any]]) -> None:
    html = render(META, rows)

    assert "prefers-color-scheme: dark" in html
    for picture in re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL):
        assert "#ffffff" not in picture
        assert all("currentColor" in text for text in re.findall(r"<text[^>]*>", picture))


def test_a_users_own_policy_is_called_by_its_name_and_not_a_fixed_length() -> None:
    html = render({}, [row("off"), row("static-mine")])

    picture = html[html.index("<svg") : html.index("</svg>")]
    assert "static-mine" in picture
    assert "fixed K" not in picture


def test_users_policies_have_colours_of_their_own_and_all_pictures() -> None:
    """Grey, they could not be told from a fixed K or from one another."""
    html = render({}, [row("off"), row("mine"), row("mine+ngram"), row("static-3")])

    first = html[html.index("<svg") : html.index("</svg>")]
    assert len({*re.findall(r"stroke: (#[0-9a-f]{6})", first)}) >= 3
    assert "mine: median error" in html  # predicted and measured step times
    assert html.count("<svg") == 4


def test_rows_without_adaptive_policies_make_a_report_too() -> None:
    html = render({}, [row("off", step_times={})])

    assert "No policy in these rows predicts step times." in html


def test_disturbed_rounds_are_named() -> None:
    disturbed: dict[str, Any] = {"disturbed_rounds": [2, 5], "other_cores": [0.0, 0.2, None, 0.0, 0.85, 0.0]}
    html = render({}, [row("off", **disturbed), row("adaptive", **disturbed)])

    assert "rounds 2, 5 were disturbed: other processes used up to 0.8 cores" in html.replace("0.85", "0.8")
    assert "Other processes disturbed 2 of 6 rounds." in html


def test_numbers_at_logarithmic_axes_are_plain(rows: list[dict[str, Any]]) -> None:
    wide: dict[str, Any] = {"step_times": {"predicted_ms": [0.05, 2.0, 900.0], "measured_ms": [0.06, 2.0, 1000.0]}}
    html = render(META, [row("off"), row("adaptive", **wide)])

    picture = html[html.index("measured step time</h2>") :]
    picture = picture[: picture.index("</svg>")]
    assert "$" not in picture
    assert ">0.1</text>" in picture
    assert ">1,000</text>" in picture
    few: dict[str, Any] = {"step_times": {"predicted_ms": [12.0, 14.0], "measured_ms": [13.0, 17.0]}}
    narrow = render(META, [row("off"), row("adaptive", **few)])
    narrow = narrow[narrow.index("measured step time</h2>") :]
    assert len(re.findall(r">[\d.,]+</text>", narrow[: narrow.index("</svg>")])) >= 4

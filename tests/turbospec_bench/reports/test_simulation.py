"""The report stands alone and hides nothing."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.turbospec_sim.scenarios import closed, scenario
from turbospec.files.results_file import plain
from turbospec_bench.reports.simulation import render, write_report
from turbospec_sim.scenario import Scenario
from turbospec_sim.sweep import Sweep, run_all, with_regret

VOID = {"meta"}
SLO = {"p99_ttft_ms": 300.0, "p99_tpot_ms": 35.0}


class Tags(HTMLParser):
    """Fails where a tag is closed that is not open, and keeps what is still open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report(*scenarios: tuple[str, Scenario], policies: tuple[str, ...] = (), seeds: int = 1) -> str:
    """Simulate and render, through what a results file would hold."""
    rows = with_regret(list(run_all(Sweep(scenarios, policies, (), seeds).runs())))
    meta = {"turbospec": "1.2.3", "seeds": seeds, "scenarios": {name: made.model_dump() for name, made in scenarios}}
    return render(plain(meta), plain(rows))


def pictures(html: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)


@pytest.fixture(scope="module")
def html() -> str:
    small = scenario(rates=[5.0, 40.0], slo=SLO, description="few & <small>", workload__requests=15)
    return report(("one", small), policies=("off", "static-5", "oracle", "best_static"), seeds=3)


def test_the_page_is_valid(html: str) -> None:
    tags = Tags()
    tags.feed(html)
    tags.close()
    assert tags.open == []
    assert html.startswith("<!doctype html>")
    for picture in pictures(html):
        ElementTree.fromstring(picture)
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(set(ids)) == len(ids) > 100
    assert {*re.findall(r"""(?:url\(#|href="#)([^")]+)""", html)} <= {*ids}


def test_it_says_what_it_shows(html: str) -> None:
    words = re.sub(r"<svg.*?</svg>|<[^>]+>", " ", html, flags=re.DOTALL)
    for said in ("one", "few &amp; &lt;small&gt;", "1.2.3", "seeds 0 to 2", "K ≤ 5", "15 requests", "static-5"):
        assert said in words
    for said in (
        "P99 TTFT &lt; 300 ms and P99 TPOT &lt; 35 ms",
        "Regret against the oracle",
        "met in 3 of 3",
        "met in 1 of 3",
        "met in 0 of 3",
        " ± ",
    ):
        assert said in words
    assert "nan" not in words


def test_every_picture_is_there_and_readable_in_light_and_dark(html: str) -> None:
    assert len(pictures(html)) == 1 + 2 + 1  # against load; over time at two rates; step time
    for picture in pictures(html):
        assert "#ffffff" not in picture
        assert all("currentColor" in text for text in re.findall(r"<text[^>]*>", picture))
        assert all(policy in picture for policy in ("off", "static-5", "oracle", "best_static"))


def test_numbers_at_an_axis_are_not_tex() -> None:
    wide = scenario(rates=[0.01, 400.0], server__max_num_seqs=1, workload__requests=60)
    html = report(("wide", wide), policies=("off",))
    assert ">1,000</text>" in pictures(html)[0]  # the axis is logarithmic
    assert "$" not in "".join(pictures(html))


def test_a_cell_has_its_figures_on_hover(html: str) -> None:
    assert re.search(
        r'<td class="met" title="P99 TTFT [\d.]+ ± [\d.]+ ms; .*?15 completed, 0 failed">met in 3 of 3<small>', html
    )


def test_the_file_needs_no_network(html: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(path, {"seeds": 1, "scenarios": {}}, [])
    for text in (html, path.read_text(encoding="utf-8")):
        assert "<script" not in text
        assert "<link" not in text
        assert not re.search(r"(src|href|url)\s*[=(]\s*['\"]?https?:", text)


def test_clients_in_a_closed_loop_and_no_slo_make_a_report_too() -> None:
    html = report(
        ("two", closed(3, workload__requests=6)), ("three", scenario(workload__requests=6)), policies=("off",)
    )
    assert "The scenario has no SLO." in html
    assert "3 at once" in html
    assert "Regret" not in html
    assert "missed" not in re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    assert len(pictures(html)) == 2 * 3


def test_a_policys_name_is_text_and_not_markup(tmp_path: Path) -> None:
    policy = tmp_path / "<b>$x_1$.yaml"
    policy.write_text("version: 1\npolicy: static\ndraft_length: 2\n")
    html = report(("one", scenario(workload__requests=4)), policies=(str(policy), "off"))
    assert "&lt;b&gt;$x_1$.yaml" in html
    assert "<b>" not in html


def test_long_runs_are_shown_in_hours() -> None:
    made: dict[str, Any] = {"workload__requests": 12, "rates": [0.001]}
    assert "hours simulated" in report(("slow", scenario(**made)))

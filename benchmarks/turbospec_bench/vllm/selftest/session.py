"""The self-test from the first vLLM to the last."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from random import Random
from typing import Any

from turbospec.errors import UserError
from turbospec.hosts.vllm.shared.support import BLOCK_METHODS, LOOK_UP_METHODS
from turbospec_bench.vllm.selftest.checks import Difference, count_passes, differences
from turbospec_bench.vllm.selftest.contenders import FIXED, OFF, Contender, Figures, contenders
from turbospec_bench.vllm.selftest.job import Failed, Job, Vllms

LIKELY_TOKENS = 5
WARM_UP_SECONDS, TIMED_SECONDS = 8.0, 8.0
"""Of every contender in every round."""
RANDOM = "turbospec_bench.vllm.selftest.random_lengths.Random{}Scheduler"
PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """The verdict of one check."""

    name: str
    verdict: str
    """`PASSED`, `FAILED` or `SKIPPED`."""
    detail: str
    """What was counted, or why it failed or was skipped."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to test."""

    engine: Mapping[str, Any]
    """Arguments of `vllm.LLM`, the model among them."""
    speculative_config: Mapping[str, Any]
    prompts: list[str]
    max_tokens: int
    concurrency: int
    rounds: int
    quick: bool


@dataclass
class SelfTest:
    """Runs checks and measurements, and keeps what they found.

    Args:
        settings: what to test.
        vllms: runs the jobs.
        said: called with a line at the beginning of every job.
        saved: called with the report so far after every job.
    """

    settings: Settings
    vllms: Vllms
    said: Callable[[str], None]
    saved: Callable[[dict[str, Any]], None]
    checks: list[Check] = field(default_factory=list[Check])
    resolved: dict[str, Any] = field(default_factory=dict[str, Any])
    """What vLLM made of the settings, by job."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """Contenders that vLLM refused, and why."""
    _results: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    _differing: dict[str, int] = field(default_factory=dict[str, int])
    _passes: dict[str, Any] = field(default_factory=dict[str, Any])
    _began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    complete: bool = False

    def run(self) -> None:
        """Everything, in order: the reference, random draft lengths, then the contenders in interleaved rounds.

        Raises:
            UserError: vLLM cannot run the model without speculation, so that nothing can be compared.
        """
        reference = self._reference()
        for asynchronous in (False, True):
            self._random_lengths(reference, asynchronous=asynchronous)
        for number in range(self.settings.rounds):
            # In another order each round: a machine that changes during a round favours no contender.
            in_this_round = [*self._contenders]
            Random(number).shuffle(in_this_round)
            for contender in in_this_round:
                if contender.name not in self.skipped:
                    self._measure(contender, number, reference)
        self.complete = True
        self.saved(self.report())

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.verdict != FAILED for check in self.checks)

    def figures(self) -> list[Figures]:
        """Of every contender that was measured, in their order."""
        found: list[Figures] = []
        for contender in self._contenders:
            name, results = contender.name, self._results.get(contender.name, [])
            if not results:
                continue
            rates = [tokens / seconds for result in results for seconds, tokens in result["batches"]]
            tokens = sum(tokens for result in results for _, tokens in result["batches"])
            accepted = sum(result["accepted"] for result in results)
            drafted = sum(result["drafted"] for result in results)
            found.append(Figures(name, rates, tokens / (tokens - accepted), int(drafted), self._differing.get(name, 0)))
        return found

    def report(self) -> dict[str, Any]:
        """Everything that was found so far, to be attached to an issue."""
        settings = asdict(self.settings) | {"prompts": len(self.settings.prompts)}
        return {
            "turbospec_selftest": 1,
            "began": self._began,
            "complete": self.complete,
            "versions": _versions(),
            "machine": {"platform": platform.platform(), "python": platform.python_version()},
            "settings": settings,
            "resolved": self.resolved,
            "checks": [asdict(check) for check in self.checks],
            "passes": self._passes,
            "skipped": self.skipped,
            "figures": [asdict(each) | {"median": each.median} for each in self.figures()],
        }

    @property
    def _contenders(self) -> list[Contender]:
        return contenders(self.settings.speculative_config, quick=self.settings.quick)

    def _job(self, **changes: Any) -> Job:
        own = self.settings
        return Job(
            **(
                {
                    "engine": own.engine,
                    "prompts": own.prompts,
                    "max_tokens": own.max_tokens,
                    "concurrency": own.concurrency,
                }
                | changes
            )
        )

    def _reference(self) -> dict[str, Any]:
        self.said("outputs without speculation")
        result = self.vllms.run("reference", self._job(logprobs=LIKELY_TOKENS))
        if isinstance(result, Failed):
            raise UserError(f"vLLM cannot run {self.settings.engine['model']}: {result.why}; its log is {result.log}")
        self.resolved["reference"] = result["resolved"]
        self.saved(self.report())
        return result

    def _random_lengths(self, reference: dict[str, Any], *, asynchronous: bool) -> None:
        kind = "async" if asynchronous else "sync"
        self.said(f"random draft lengths, {kind}")
        longest = self.settings.speculative_config["num_speculative_tokens"]
        table = {"num_speculative_tokens_per_batch_size": [[1, 1, longest]]}
        engine = {
            **self.settings.engine,
            "speculative_config": {**self.settings.speculative_config, **table},
            "additional_config": {"turbospec": "static-1"},
            "scheduler_cls": RANDOM.format("Async" if asynchronous else ""),
            "enforce_eager": True,
        }
        result = self.vllms.run(
            f"random-{kind}", self._job(engine=engine, asynchronous=asynchronous, count_passes=True)
        )
        name = f"outputs with random draft lengths, {kind}"
        if isinstance(result, Failed):
            refused = asynchronous and "async scheduling" in result.why.lower()  # not the name of a scheduler
            self.checks.append(Check(name, SKIPPED if refused else FAILED, f"{result.why}; its log is {result.log}"))
        else:
            self.resolved[f"random-{kind}"] = result["resolved"]
            self._compare(name, reference, result)
            self._judge_passes(f"drafter passes, {kind}", result)
        self.saved(self.report())

    def _compare(self, name: str, reference: dict[str, Any], result: dict[str, Any]) -> None:
        found = differences(reference["tokens"], result["tokens"], reference["logprobs"])
        wrong = [each for each in found if not each.near_tie]
        total = len(reference["tokens"])
        detail = f"{total - len(found)} of {total} equal"
        if ties := len(found) - len(wrong):
            detail += f", {ties} differ from a near tie on"
        if wrong:
            detail += f"; {_in_words(wrong[0])}"
        elif not result["accepted"]:
            detail += "; no draft was accepted, so that hardly anything was tested"
        self.checks.append(Check(name, FAILED if wrong else PASSED, detail))

    def _judge_passes(self, name: str, result: dict[str, Any]) -> None:
        method = result["resolved"]["method"]
        if method in LOOK_UP_METHODS:
            self.checks.append(Check(name, SKIPPED, f"{method} has no drafter model"))
            return
        one_pass = method in BLOCK_METHODS or bool(self.settings.speculative_config.get("parallel_drafting"))
        workers = result["passes"]
        counted = count_passes(workers[0], one_pass=one_pass)
        self._passes[name] = asdict(counted)
        alike = all(steps == workers[0] for steps in workers)
        idle = counted.by_length.get(0, {})
        detail = f"{counted.total - counted.wrong} of {counted.total} steps have as many as they should; "
        detail += f"{idle.get(0, 0)} of {sum(idle.values())} steps at K = 0 have none"
        if not alike:
            detail += "; the workers differ"
        # Without TurboSpec's scheduler every step drafts as many tokens.
        varied = len(counted.by_length) > 1
        if not varied:
            detail += "; all steps have one draft length, TurboSpec was off: see the log"
        self.checks.append(Check(name, PASSED if alike and varied and not counted.wrong else FAILED, detail))

    def _measure(self, contender: Contender, number: int, reference: dict[str, Any]) -> None:
        self.said(f"round {number + 1} of {self.settings.rounds}: {contender.name}")
        # A prompt is served several times; with a prefix cache its prefill would cost nothing.
        engine: dict[str, Any] = {"enable_prefix_caching": False, **self.settings.engine}
        if contender.speculative_config is not None:
            engine["speculative_config"] = contender.speculative_config
        job = self._job(
            engine=engine, policy=contender.policy, warm_up_seconds=WARM_UP_SECONDS, timed_seconds=TIMED_SECONDS
        )
        result = self.vllms.run(f"{contender.name}-{number + 1}", job)
        if isinstance(result, Failed):
            self.skipped[contender.name] = f"{result.why}; its log is {result.log}"
            # Of fewer rounds than the others have, its figures could not be compared with theirs.
            self._results.pop(contender.name, None)
            if contender.policy is not None:
                self.checks.append(Check(f"{contender.name} runs", FAILED, self.skipped[contender.name]))
        else:
            self._results.setdefault(contender.name, []).append(result)
            self.resolved[contender.name] = result["resolved"]
            wrong = [
                each
                for each in differences(reference["tokens"], result["tokens"], reference["logprobs"])
                if not each.near_tie
            ]
            self._differing[contender.name] = max(self._differing.get(contender.name, 0), len(wrong))
            if contender.policy is not None:
                self._compare(f"outputs of {contender.name}, round {number + 1}", reference, result)
        self.saved(self.report())


def best_fixed(figures: Sequence[Figures]) -> Figures | None:
    """The fastest of no speculation and vLLM's fixed draft lengths."""
    fixed = [each for each in figures if each.name == OFF or each.name.startswith(FIXED)]
    return max(fixed, key=lambda each: each.median, default=None)


def _in_words(difference: Difference) -> str:
    tokens = ["no token" if each is None else f"token {each}" for each in (difference.got, difference.expected)]
    gap = "" if difference.gap is None else f", {difference.gap:.2f} nats less likely"
    return f"prompt {difference.prompt} has {tokens[0]} for {tokens[1]} at position {difference.position}{gap}"


def _versions() -> dict[str, str]:
    names = {"turbospec": "turbospec", "torch": "torch", "triton": "triton"}
    names |= {"vllm": next(iter(packages_distributions().get("vllm", ())), "vllm")}
    found: dict[str, str] = {}
    for package, distribution in names.items():
        try:
            found[package] = version(distribution)
        except PackageNotFoundError:
            continue
    return found

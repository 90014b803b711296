"""One server under random events, from its start until its last request has ended."""

from __future__ import annotations

import random
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.turbospec.hosts.vllm.fuzzing.checked import Checked
from tests.turbospec.hosts.vllm.fuzzing.clock import Clock
from tests.turbospec.hosts.vllm.fuzzing.random_policy import RandomPolicy, UnspeakableError
from tests.turbospec.hosts.vllm.fuzzing.server import Added, Server, Setup
from tests.turbospec.hosts.vllm.fuzzing.worker import Dispatched, Worker
from turbospec.controller import Controller
from turbospec.hosts.vllm.scheduler.loop import VllmLoop
from turbospec.hosts.vllm.scheduler.views import EngineLimits
from turbospec.hosts.vllm.shared.drafter_orders import DRAFTS_ATTRIBUTE, DRAFTS_EXPECTED_ATTRIBUTE, orders_of
from turbospec.hosts.vllm.shared.lookup_drafts import lookup_drafts_of
from turbospec.hosts.vllm.shared.step_times import CapturedGraphs
from turbospec.models.logistic import MAX_CLASSES
from turbospec.observability.metrics import StepMetrics

POLICIES = Path(__file__).parents[5] / "policies"
RANDOM, RUBBISH = "random", "rubbish"
CHOSEN = ("off", "static-3", "adaptive", "goodput", "heuristic", RUBBISH, RANDOM, RANDOM, RANDOM)
"""What a walk puts into its policy's file, or in the policy's place."""
FEWEST, MOST = 20, 3000
"""Events of a walk."""
PATIENCE = 3000
"""Steps at the end of a walk, after which what still runs is aborted."""
UNLIMITED = 2**62
CAPS = {0: 0, 1: 1, 3: 3, "2": 2, 7.0: 7}
"""Values of `turbospec_max_draft`, and what they mean."""
NO_CAPS = (None, 10**30, -1, 2.5, float("nan"), "many", [1], {}, 10**5000, b"\xff")
CLASSES = (None, "a", "b", 1, 2.5, "", "x" * 300, True, *(f"class {number}" for number in range(30)), 10**5000)
ARGUMENTS = (None, {}, [], "no mapping", {"other": 1})
FAULTY = ("plan", "reuse_plan", "settle", "plan_ahead", "finish")
"""Methods of the loop in which a walk puts errors."""
ERRORS = (RuntimeError, KeyError, MemoryError, AssertionError, RecursionError, UnspeakableError)


class Walk:
    """
    Args:
        seed: of everything.
        folder: for the policy's file.
        server: returns a server that is not built yet, for a configuration.
    """

    def __init__(self, seed: int, folder: Path, server: Callable[[Setup, random.Random], Server]) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = Clock(rng)
        self.problems: list[str] = []
        self.events = 0
        self.counts: Counter[str] = Counter()
        """What the walk has met."""
        self._policy_file = folder / "policy.yaml"
        self._write_policy("off")
        self.setup = Setup.draw(rng, self._policy_file)
        self._put_errors = rng.random() < 0.3
        """Whether errors are put into the loop."""
        self._errors_put = self._errors_seen = 0
        self._limits_drawn = _draw_limits(rng)
        self._graphs = _draw_graphs(rng, self.setup.longest)
        """Of the target."""
        self.limits: EngineLimits
        self._checked: Checked
        self._metrics: StepMetrics
        self._followed: Any
        self._server = server(self.setup, rng)
        with self.clock.instead_of_time(self._server.hosted):
            self._server.build(self._extended)
        self.scheduler = self._server.scheduler
        self._listeners = list(self._checked.controller.listeners)
        self._worker = Worker(self.limits, rng, self.note)
        self._drafts: Any = None
        """Of the last step, until the engine core takes them."""
        self._under_way: deque[Dispatched] = deque()
        self._added = 0
        self._numbers: dict[str, tuple[Any, int]] = {}
        """Each request's object and its id in views."""
        self._ids: set[int] = set()
        """In views, of all requests so far."""
        self._most_drafts: dict[str, int] = {}
        """That each request may have verified in its next step."""
        self._from_lookup: set[str] = set()
        """Requests whose drafts in their next step are of the look-up."""

    def note(self, problem: str) -> None:
        self.problems.append(problem)

    @property
    def loop(self) -> VllmLoop | None:
        """None once TurboSpec is off."""
        return self.scheduler._loop

    def run(self) -> None:
        """Walk until the server is empty, or something is wrong."""
        with self.clock.instead_of_time(self._server.hosted):
            try:
                for _ in range(round(FEWEST * (MOST / FEWEST) ** self.rng.random())):
                    self.event()
                    self.events += 1
                    if self.problems:
                        return
                self._end()
            except Exception:
                self.note(traceback.format_exc())

    def event(self) -> None:
        """Whatever comes next."""
        rng, server, pick = self.rng, self._server, self.rng.random()
        self.clock.advance()
        if pick < 0.70:
            self._step()
        elif pick < 0.80:
            self._add(rng.choice((1, 1, 1, 2, 5)))
        elif pick < 0.805:
            self._add(self.setup.max_num_seqs * rng.choice((1, 2)))
        elif pick < 0.83:
            self._abort(rng.random() < 0.1)
        elif pick < 0.86:
            self._unblock(0.7)
        elif pick < 0.88:
            self._continue_sessions()
        elif pick < 0.89:
            server.pause(rng.choice(("new", "all")))
        elif pick < 0.93:
            server.pause("none")
        elif pick < 0.94:
            self.counts["resets"] += 1
            server.reset()
        elif pick < 0.945:
            self._lose_steps()
        elif pick < 0.95:
            self.clock.jump()
        elif pick < 0.96:
            self._change_policy(rng.choice(CHOSEN))
        elif pick < 0.97:
            self._worker.ends = rng.choice((0.0, 0.02, 0.3))
        elif pick < 0.98:
            for name in self._some(1):
                server.fail(name)
        elif self._put_errors and pick < 0.99:
            self._put_error()
        self._check_tables()

    def _end(self) -> None:
        """Let all requests end, and look at what is left."""
        self._server.pause("none")
        self._worker.ends = 0.3
        for turn in range(2 * PATIENCE):
            self._server.abort(self._server.between_turns())
            # Requests that hold KV blocks may wait for one another. A session that ends a turn in the step in which it
            # is preempted is afterwards in none of the queues of vLLM 0.32.
            if turn == PATIENCE:
                self._abort(True)
            if not (self.scheduler.requests or self.scheduler.has_requests() or self._under_way):
                break
            self.clock.advance()
            self._unblock(1.0)
            self._step()
            self._check_tables()
        else:
            self.note("requests do not end")
        known = 0 if self.loop is None else len(self.loop.known)
        self._expect(known == 0, f"{known} requests are known after the last has ended")
        self.counts["outcomes"] += self._metrics._steps
        self._expect(len(list(self._metrics.collect())) > 10, "metrics")
        steps, lasted = self._metrics._seconds, self.clock.perf_counter() - self.clock.began
        self._expect(steps <= lasted * (1 + 1e-9), f"steps of {steps} s in {lasted} s")
        self.scheduler.shutdown()

    # Events

    def _add(self, number: int) -> None:
        rng, setup = self.rng, self.setup
        if len(self.scheduler.requests) > 3 * setup.max_num_seqs + 8:
            return
        for _ in range(number):
            self._added += 1
            # Some ids are used again, long after or at once.
            name = f"request {self._added if rng.random() < 0.9 else rng.randint(1, 4)}"
            if name in self.scheduler.requests or any(name in each.requests for each in self._under_way):
                continue
            longest = setup.max_model_len - 1
            prompt = rng.choice((1, 2, 4, rng.randint(1, longest // 2), rng.randint(1, longest)))
            blocked = rng.random() < 0.05
            self._server.add(
                Added(
                    name,
                    prompt,
                    rng.choice((1, 2, 3, 10, rng.randint(1, longest), 10**25)),
                    self._params(),
                    self.clock.time() - rng.choice((0.0, 1.0, -1.0)),
                    client=rng.randint(0, 1),
                    session=rng.random() < 0.1,
                    grammar=rng.random() < 0.1,
                    blocked=blocked,
                    loaded=rng.randint(0, prompt - 1) if blocked else 0,
                )
            )
            self.counts["requests"] += 1

    def _params(self) -> Any:
        rng, pick = self.rng, self.rng.random()
        if pick < 0.05:
            return None
        if pick < 0.1:
            return SimpleNamespace(extra_args=rng.choice(ARGUMENTS))
        if pick < 0.5:
            return SimpleNamespace(extra_args=None)
        cap = rng.choice((*CAPS, *NO_CAPS))
        return SimpleNamespace(extra_args={"turbospec_max_draft": cap, "turbospec_class": rng.choice(CLASSES)})

    def _some(self, number: int) -> list[str]:
        names = list(self.scheduler.requests)
        return self.rng.sample(names, min(len(names), number))

    def _abort(self, everything: bool) -> None:
        names = list(self.scheduler.requests) if everything else self._some(self.rng.choice((1, 1, 3)))
        self.counts["aborted"] += len(names)
        self._server.abort([*names, "nobody"])

    def _unblock(self, share: float) -> None:
        for name in self._server.blocked():
            if self.rng.random() < share:
                self._server.unblock(name)

    def _continue_sessions(self) -> None:
        for name in self._server.between_turns():
            room = self.setup.max_model_len - self.scheduler.requests[name].num_tokens - 1
            if room > 0 and self.rng.random() < 0.5:
                self.counts["turns"] += 1
                self._server.next_turn(name, self.rng.randint(1, min(room, 20)), self.rng.choice((1, 5, 20)))

    def _lose_steps(self) -> None:
        """An error in the worker: the steps under way have no output, and all requests are aborted."""
        if self._under_way:
            self.counts["lost"] += len(self._under_way)
            for step in self._under_way:
                self._worker.run(step)
            self._under_way.clear()
            self._abort(True)

    def _change_policy(self, name: str) -> None:
        self.counts[f"policy {name}"] += 1
        if name == RANDOM:
            self._checked.controller.policy = RandomPolicy(self.rng)
        else:
            self._checked.controller.policy = self._followed
            self._write_policy(name)

    def _write_policy(self, name: str) -> None:
        self._policy_file.write_text("policy: [" if name == RUBBISH else (POLICIES / f"{name}.yaml").read_text())

    def _put_error(self) -> None:
        """Let a method of the loop fail at its next call, before or after it does its work; rarely, at all calls."""
        loop, rng = self.loop, self.rng
        if loop is None:
            return
        name, error = rng.choice(FAULTY), rng.choice(ERRORS)
        method, first, forever = getattr(loop, name), rng.random() < 0.5, rng.random() < 0.05

        def fail(*given: Any, **named: Any) -> Any:
            if not forever:
                setattr(loop, name, method)
            self._errors_put += 1
            if not first:
                method(*given, **named)
            raise error("on purpose")

        setattr(loop, name, fail)

    # Steps

    def _step(self) -> None:
        self.counts["steps"] += 1
        if self.setup.asynchronous:
            self._step_with_queue()
        elif self.scheduler.has_requests():
            step = self._schedule()
            self.scheduler.get_grammar_bitmask(step.output)
            self.clock.advance()
            self._finish(step)

    def _step_with_queue(self) -> None:
        """As vLLM's `step_with_batch_queue`: a step is scheduled while the one before runs."""
        if self.scheduler.has_requests():
            step = self._schedule()
            executed = step.output.total_num_scheduled_tokens > 0
            self._under_way.append(step)
            if len(self._under_way) < 2 and (executed or self.scheduler.has_requests()):
                return
        elif not self._under_way:
            return
        self.clock.advance()
        self._finish(self._under_way.popleft())
        if self._under_way and self.rng.random() < 0.3:
            # vLLM does so where the step before samples for a request with a grammar.
            self._server.rule_out(self._under_way[-1].output)
            self.scheduler.get_grammar_bitmask(self._under_way[-1].output)

    def _schedule(self) -> Dispatched:
        errors = self.scheduler.errors
        output = self.scheduler.schedule()
        self.clock.advance()
        failed = self.scheduler.errors > errors or self.loop is None
        scheduled = output.num_scheduled_tokens
        requests = {name: self.scheduler.requests[name] for name in scheduled}
        started = {each.req_id for each in output.scheduled_new_reqs} | output.scheduled_cached_reqs.resumed_req_ids
        self._number(requests)
        step = Dispatched(
            output,
            {name: requests[name].num_computed_tokens - scheduled[name] for name in started},
            {name for name, request in requests.items() if not request.is_prefill_chunk},
            None if failed else dict(self.scheduler._lengths),
            requests,
            {self._numbers[name][1]: name for name in requests if name in self._numbers},
        )
        self._check_step(step)
        self._count(output)
        return step

    def _finish(self, step: Dispatched) -> None:
        names, sampled = self._worker.run(step)
        output = self._server.model_output(names, sampled)
        executed = step.output.total_num_scheduled_tokens > 0
        drafts = self._worker.drafts(step) if executed and not self.setup.asynchronous else None
        self._drafts = None if drafts is None else self._server.drafts(*drafts)
        if hasattr(step.output, DRAFTS_EXPECTED_ATTRIBUTE) and self._drafts is not None and self.rng.random() < 0.5:
            setattr(output, DRAFTS_ATTRIBUTE, self._take())
        if self.rng.random() < 0.05:
            self._abort(False)
        step.ends()
        if (number := getattr(step.output, self._server.hosted.STEP_ATTRIBUTE, None)) is not None:
            self._checked.ran(number, step)
        self.scheduler.update_from_output(step.output, output)
        step.sent()
        if not self.setup.asynchronous:
            self._server.post_step(self._take, executed)
            self._expect(self._drafts is None, "drafts that nobody asked for")

    def _take(self) -> Any:
        drafts, self._drafts = self._drafts, None
        return drafts

    # Checks

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.note(what)

    def _number(self, requests: dict[str, Any]) -> None:
        """A request keeps its id in views, and no other has it."""
        if self.loop is None:
            return
        known = self.loop.known
        for name, request in requests.items():
            if (row := known._rows.get(name)) is None:
                continue
            number = int(known.numbers[row])
            before, its = self._numbers.get(name, (None, -1))
            if before is request:
                self._expect(number == its, f"{name} was {its} in views and is {number}")
            else:
                self._expect(number not in self._ids, f"{name} is {number} in views, as another request was")
                self._numbers[name] = request, number
                self._ids.add(number)

    def _check_step(self, step: Dispatched) -> None:
        output, limits = step.output, self.limits
        scheduled, longest = output.num_scheduled_tokens, output.num_spec_tokens_to_schedule
        self._expect(output.total_num_scheduled_tokens == sum(scheduled.values()), "tokens of the step")
        for name, drafts in output.scheduled_spec_decode_tokens.items():
            self._expect(0 < len(drafts) < scheduled[name], f"{name}: {len(drafts)} drafts in {scheduled[name]} tokens")
            most = self._most_drafts.get(name, 0)
            self._expect(len(drafts) <= most, f"{name} verifies {len(drafts)} drafts of {most}")
            self._check_looked_up(output, name, step.requests[name], len(drafts))
        for name in output.finished_req_ids:
            self._most_drafts.pop(name, None)
        looked_up = self.scheduler._lookup_lengths
        self._from_lookup.difference_update(scheduled)
        self._from_lookup.update(looked_up)
        if step.lengths is None or not scheduled:
            self._expect(longest == self.setup.longest, f"vLLM's own K is {self.setup.longest}, not {longest}")
            self._expect(orders_of(output) is None, "orders without a plan")
            self._most_drafts |= dict.fromkeys(scheduled, longest)
            return
        self._most_drafts |= {name: step.lengths.get(name, 0) or looked_up.get(name, 0) for name in scheduled}
        self._expect(longest == max(step.lengths.values(), default=0), "the longest draft is not the step's")
        computed = max(request.num_computed_tokens for request in step.requests.values())
        self._expect(
            not longest or computed + limits.reserved_length <= limits.max_model_len, "vLLM does not draft here"
        )
        padded = len(set(step.lengths.values())) == 1 and longest in dict(self._graphs)
        for name, length in step.lengths.items():
            request = step.requests[name]
            cap = min(_cap(request.sampling_params), limits.max_draft)
            cap = min(cap, max(limits.max_model_len - request.num_computed_tokens - 2, 0))
            self._expect(0 <= length <= cap, f"{name} drafts {length}, and may draft {cap}")
            left = max(request.max_tokens - request.num_output_tokens - 2, 0)
            self._expect(padded or length <= left, f"{name} drafts {length}, and has {left} left")

    def _check_looked_up(self, output: Any, name: str, request: Any, drafted: int) -> None:
        """Drafts of the look-up reach past all tokens that the scheduler does not know; no others are sent."""
        found = lookup_drafts_of(output).get(name)
        self._expect((found is not None) == (name in self._from_lookup), f"{name} drafts from another source")
        if found is not None:
            self.counts["drafts of a look-up"] += 1
            unknown = max(request.num_output_placeholders - 1 - drafted, 0)
            self._expect(found.known == request.num_tokens, f"{found.known} tokens are known of {name}")
            self._expect(len(found.tokens) >= unknown + drafted, f"{found.tokens} after {unknown} tokens")

    def _check_tables(self) -> None:
        scheduler, loop = self.scheduler, self.loop
        if scheduler.errors > self._errors_seen:
            self._errors_seen = scheduler.errors
            self._worker.incomplete.update(scheduler.requests)
            for step in self._under_way:
                step.disturbed = True
        if scheduler.errors > self._errors_put:
            self.note(f"TurboSpec failed: {scheduler.last_error}")
        if loop is None:
            return
        alive = len(scheduler.requests) + len(scheduler.finished_req_ids)
        if loop.lookups is not None:
            self._expect(len(loop.lookups._rows) <= alive, "texts of requests that have ended")
        self._expect(len(loop.known) <= alive, f"{len(loop.known)} requests are known, {alive} are alive")
        self._expect(len(loop._steps) <= 3, f"{len(loop._steps)} steps are open")
        self._expect(len(loop._ended) <= 2, f"{len(loop._ended)} steps are not reported")
        self._expect(len(loop.known._classes) < MAX_CLASSES, "classes")
        self._expect(self._checked.controller.listeners == self._listeners, "a listener failed")
        if loop._lag is not None:
            kept = loop._lag._kept
            self._expect(sum(kept) == loop._lag.kept <= loop.limits.kept_tokens, "kept tokens")

    def _count(self, output: Any) -> None:
        """Kinds of steps, so that a run shows what it has met."""
        orders = orders_of(output)
        kinds = {
            "empty": not output.num_scheduled_tokens,
            "preempting": bool(output.preempted_req_ids),
            "resuming": bool(output.scheduled_cached_reqs.resumed_req_ids),
            "verifying": bool(output.scheduled_spec_decode_tokens),
            "drafting": output.num_spec_tokens_to_schedule > 0,
            "catching up": orders is not None and bool(orders.catch_up),
            "skipping the drafter": orders is not None and orders.skip,
            "skipping it after drafts": orders is not None
            and orders.skip
            and bool(output.scheduled_spec_decode_tokens),
            "drafting late": orders is not None and orders.late,
            "more than 256 requests": len(output.num_scheduled_tokens) > 256,
            "without TurboSpec": self.loop is None,
        }
        self.counts.update(kind for kind, counts in kinds.items() if counts)

    # The scheduler

    def _extended(self, base: Any) -> Any:
        """TurboSpec's scheduler, with limits that a walk draws and a controller that checks, and errors counted."""
        walk = self

        class Scheduler(base):
            errors = 0
            last_error = ""

            def _build_loop(self, vllm_config: Any) -> VllmLoop:
                loop = super()._build_loop(vllm_config)
                assert loop is not None
                return walk._checked_loop(loop)

            def _trim_drafts(self, loop: VllmLoop, scheduler_output: Any) -> None:
                tokens = scheduler_output.total_num_scheduled_tokens
                super()._trim_drafts(loop, scheduler_output)
                walk.counts["trimming"] += scheduler_output.total_num_scheduled_tokens < tokens

            def _fail(self) -> None:
                self.errors += 1
                self.last_error = traceback.format_exc()
                super()._fail()

        return Scheduler

    def _checked_loop(self, loop: VllmLoop) -> VllmLoop:
        drawn = self._limits_drawn
        if not loop.limits.kept_tokens:
            drawn = {name: value for name, value in drawn.items() if name != "kept_tokens"}
        self.limits = replace(loop.limits, **drawn)
        controller = loop.controller
        assert isinstance(controller, Controller)
        controller.guard = controller.guard.model_copy(update={"cooldown_steps": 3})
        self._metrics = StepMetrics(controller.stats)
        controller.listeners.append(self._metrics)
        self._followed = controller.policy
        self._checked = Checked(controller, self.limits, self._graphs, self.note)
        loop = VllmLoop(self._checked, self.limits, loop.lookups)
        if self._graphs:
            loop.learn_graphs(CapturedGraphs(self._graphs))
        return loop


def _draw_limits(rng: random.Random) -> dict[str, Any]:
    """Limits that do not follow from a walk's configuration."""
    drawn: dict[str, Any] = {}
    if rng.random() < 0.6:
        drawn["kept_tokens"] = rng.choice((1, 6, 20, 100, 1000))
    if rng.random() < 0.3:
        drawn["tokens_first"] = True
    return drawn


def _draw_graphs(rng: random.Random, longest: int) -> tuple[tuple[int, int], ...]:
    """Draft lengths with graphs, and the most requests of each."""
    if rng.random() > 0.3:
        return ()
    lengths: Iterable[int] = {0, longest, *(rng.randint(0, longest) for _ in range(3))}
    return tuple((length, rng.choice((1, 4, 64, 1024))) for length in sorted(lengths))


def _cap(params: Any) -> int:
    """The draft length that a request allows."""
    arguments = None if params is None else params.extra_args
    given = arguments.get("turbospec_max_draft") if isinstance(arguments, dict) else None
    return CAPS.get(given, UNLIMITED) if isinstance(given, int | str | float) else UNLIMITED

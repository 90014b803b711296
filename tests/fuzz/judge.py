"""What is wrong with how a case ended."""

from __future__ import annotations

import json
import re
import signal
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from tests.fuzz.case import Case
from tests.fuzz.sandbox import Outcome

CODES = (0, 1, 2, 130, 141)
LAST_BOUNDARY = 70
"""Exit code of a fault that nothing else caught."""
SECRET = "hunter2secret"
CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What a terminal takes as an order, such as to erase a line."""
LONGEST_LINE = 4000
"""Characters of an error line, beyond those of the arguments."""
SERIOUS = (
    "traceback", "boundary", "hang", "crash", "damage", "accepted", "json", "left running", "secret", "exit code",
    "misleading", "line",
)  # fmt: skip
"""What must never happen; other faults are listed apart."""


def faults(case: Case, outcome: Outcome) -> list[str]:
    """Each is a word, a colon, and what was found; empty where all is well."""
    found = [*_ending(case, outcome), *_damage(case, outcome), *_documents(case, outcome)]
    text = outcome.out + outcome.err
    if SECRET in text:
        found.append(f"secret: a password is shown: {_around(text, SECRET)}")
    if any(mark in outcome.err for mark in ("\x1b", "\x07", "\x00")) and case.environment.get("FORCE_COLOR") is None:
        found.append("control: control characters from outside reach the terminal")
    if case.must_not_say and case.must_not_say in text:
        found.append(f"misleading: {_around(text, case.must_not_say)}")
    if outcome.temporary:
        found.append(f"temporary: {', '.join(outcome.temporary[:3])}")
    if outcome.left:
        found.append(f"left running: {len(outcome.left)} processes: {outcome.left[0]}")
    if "Warning:" in outcome.err and "PYTHONWARNINGS" not in case.environment:
        found.append(f"warning: {_around(outcome.err, 'Warning:')}")
    if "not enough memory" in outcome.err:
        found.append(f"memory: {_last(outcome.err)}")
    return found


def is_serious(fault: str) -> bool:
    return fault.partition(":")[0] in SERIOUS


def _ending(case: Case, outcome: Outcome) -> list[str]:
    code, err = outcome.code, outcome.err
    if outcome.hung:
        return [f"hang: not ended after {outcome.seconds:.0f} s; {_last(err)}"]
    if code < 0:
        if code == -signal.SIGPIPE:
            return []
        return [f"crash: ended by {signal.Signals(-code).name}; {_last(err)}"]
    for mark in ("Traceback (most recent call last)", "Exception ignored", "Exception in thread", "Fatal Python error"):
        if mark in err:
            return [f"traceback: {mark if mark[0] != 'T' else ''}{_last(err)}"]
    if code == LAST_BOUNDARY:
        return [f"boundary: {_last(outcome.report or err)}"]
    if code not in CODES:
        return [f"exit code: {code}; {_last(err)}"]
    if code == 0 and case.must_fail:
        return [f"accepted: exit code 0, but {case.must_fail}"]
    if code != 2 or case.stderr != "file":
        return []
    if "FORCE_COLOR" in case.environment:
        err = CONTROL_SEQUENCE.sub("", err)
    lines = [line for line in err.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if case.arguments[:2] == ("policy", "check") and not errors:
        return [] if lines else ["line: exit code 2 and nothing said"]
    if len(errors) != 1 or not lines[-1].startswith("error: "):
        return [f"line: {len(errors)} lines begin with `error: `; {_last(err)}"]
    if len(errors[0]) > LONGEST_LINE + 2 * max(map(len, case.arguments), default=0):
        return [f"line: {len(errors[0])} characters"]
    return []


def _damage(case: Case, outcome: Outcome) -> list[str]:
    """Files that were there before and are not what they were, and files that should not be there."""
    found: list[str] = []
    written = {str(Path(path)) for path in case.outputs}
    done = outcome.code in (0, 1, 130)
    for path, before in outcome.before.items():
        after = outcome.after.get(path)
        if after == before:
            continue
        if after is None or after[0] != before[0] or before[0] != "-":
            found.append(f"damage: {path} was {before}, is {after}")
        elif not done:
            found.append(f"damage: {path} was changed, exit code {outcome.code}")
        elif path not in written and not _is_target(path, written, outcome):
            found.append(f"damage: {path} was changed")
    new = sorted(set(outcome.after) - set(outcome.before))
    for path in new:
        name = Path(path).name
        if outcome.after[path][0] == "-" and (name.endswith((".part", ".tmp")) or ".part" in name):
            found.append(f"damage: {path} is left over")
        elif outcome.after[path][0] == "-" and outcome.code == 2 and case.stdout == "file":
            found.append(f"litter: {path} was made, exit code 2")
    return found


def _is_target(path: str, written: set[str], outcome: Outcome) -> bool:
    """Whether a changed file is what a link in the outputs points to."""
    return any(
        outcome.before.get(link, ("",))[0] == "l" and str(Path(link).parent / outcome.before[link][1]) == path
        for link in written
    )


def _documents(case: Case, outcome: Outcome) -> list[str]:
    """JSON that a strict reader refuses, on stdout and in files that were written."""
    if outcome.code != 0 or outcome.hung:
        return []
    found: list[str] = []
    flag = "--json" in case.arguments and case.command.split(" ")[0] in (
        "generate",
        "profile",
        "doctor",
        "trace",
        "policy",
    )
    shown = case.command == "policy schema" or flag
    helped = {"--help", "--version"} & {*case.arguments}
    if shown and not helped and case.stdout == "file" and (why := _not_json(outcome.out)):
        found.append(f"json: stdout: {why}")
    words = case.arguments
    for path in {value for option, value in pairwise((*words, "")) if option == "--json"} | {
        word.partition("=")[2] for word in words if word.startswith("--json=")
    }:
        entry = outcome.after.get(str(Path(path)))
        is_new = entry is not None and entry[0] == "-" and entry != outcome.before.get(str(Path(path)))
        if is_new and (why := _not_json((outcome.folder / path).read_text(errors="replace"))):
            found.append(f"json: {path}: {why}")
    return found


def _not_json(text: str) -> str:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return str(error)
    return ""


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing on stderr"


def _around(text: str, mark: str) -> str:
    place = text.index(mark)
    return " ".join(text[max(0, place - 120) : place + 120].split())

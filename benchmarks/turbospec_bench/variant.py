"""What a configuration compares: policies, and where it matters when their tokens are emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from turbospec.errors import UserError

Emit = Literal["before_draft", "after_draft"]

AFTER_DRAFT_SUFFIX = ":after_draft"
LOOKUP_SUFFIX = "+ngram"
TRANSFORMERS_PREFIX = "transformers-"


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy in the embedded engine or in vLLM, or a schedule of transformers' own `generate`."""

    policy: str
    """Stem or path of a policy file, or a name that begins with `transformers-`."""
    emit: Emit | None = "before_draft"
    """Whether the embedded engine emits a step's tokens before or after drafting; None for other engines."""
    lookup: bool = False
    """Whether vLLM offers a look-up beside the drafter."""

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Read `POLICY` or `POLICY:after_draft`."""
        if text.startswith(TRANSFORMERS_PREFIX):
            return cls(text, emit=None)
        if text.endswith(AFTER_DRAFT_SUFFIX):
            return cls(text.removesuffix(AFTER_DRAFT_SUFFIX), "after_draft")
        return cls(text)

    @property
    def name(self) -> str:
        """What result rows call the policy: its file's name without folder and ending, `+ngram` with a look-up."""
        return Path(self.policy).stem + (LOOKUP_SUFFIX if self.lookup else "")

    @property
    def is_transformers(self) -> bool:
        return self.policy.startswith(TRANSFORMERS_PREFIX)


def check_names(variants: Sequence[Variant]) -> None:
    """Refuse variants that the results could not tell apart.

    Raises:
        UserError: two different variants would share a name in the results.
    """
    named: dict[tuple[str, Emit | None], Variant] = {}
    for variant in variants:
        other = named.setdefault((variant.name, variant.emit), variant)
        if other != variant:
            raise UserError(
                f"{variant.policy!r} and {other.policy!r} would both be called {variant.name!r} in the results; "
                "rename one of the files"
            )

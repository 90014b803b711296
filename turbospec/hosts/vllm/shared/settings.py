"""TurboSpec's settings in a vLLM server: the policy, a profile, the trace file, and a look-up beside the drafter.

From the environment (`TURBOSPEC_POLICY`, `TURBOSPEC_PROFILE`, `TURBOSPEC_TRACE`, `TURBOSPEC_LOOKUP`), or from vLLM's
`--additional-config`: `{"turbospec": "adaptive"}` or `{"turbospec": {"policy": "adaptive", "trace": "trace.jsonl"}}`,
which takes precedence.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turbospec.controller import Controller
from turbospec.errors import UserError
from turbospec.files.writing import check_outputs
from turbospec.hosts.vllm.shared.support import ADDITIONAL_CONFIG_KEY, ENVIRONMENT, is_asked_for, settings_in
from turbospec.models.profile import Profile
from turbospec.policy import load_controller
from turbospec.policy.load import find_policy
from turbospec.policy.schema import read_policy


class Settings(BaseModel):
    """TurboSpec's settings in a server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = Field(min_length=1, description="Policy file, or the name of a shipped policy.")
    profile: Path | None = Field(default=None, description="Step times measured on this server; optional.")
    trace: Path | None = Field(default=None, description="File for the decision trace; none by default.")
    lookup: Literal["ngram"] | None = Field(
        default=None, description="A look-up in prompt and answer beside the drafter; none by default."
    )

    def check(self) -> None:
        """Read the files, and see whether the trace can be written, without building anything.

        Raises:
            UserError: one is missing or wrong, or the trace would be written over one of them.
        """
        policy = find_policy(self.policy)
        read_policy(policy)
        if self.profile is not None:
            Profile.load(self.profile)
        check_outputs(self.trace, inputs=(policy, self.profile))

    def controller(self) -> Controller:
        """The controller, following its policy's file.

        Raises:
            UserError: as `check`, or the policy cannot use the profile.
        """
        profile = Profile.load(self.profile) if self.profile is not None else None
        return load_controller(self.policy, profile=profile, reload=True)


def read_settings(additional_config: object) -> Settings | None:
    """The settings of a server; None where TurboSpec was not asked for.

    Args:
        additional_config: vLLM's, whatever its type.

    Raises:
        UserError: they are wrong.
    """
    if not is_asked_for(additional_config):
        return None
    given = settings_in(additional_config)
    where = f"--additional-config's {ADDITIONAL_CONFIG_KEY!r}"
    if given is None:
        variables = {name: ENVIRONMENT + name.upper() for name in Settings.model_fields}
        given = {name: os.environ[variable] for name, variable in variables.items() if os.environ.get(variable)}
        where = "the environment's TURBOSPEC_ variables"
    elif isinstance(given, str):
        given = {"policy": given}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "value"
        raise UserError(f"{where}: {field}: {first['msg']}") from None

# pyright: basic, reportMissingImports=false
"""Where the drafts of a look-up begin: after the tokens that were emitted since it searched.

Shared by both of vLLM's model runners. Runs in the worker and must not import numba.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from turbospec.hosts.vllm.shared.lookup_drafts import LookupDraft
from turbospec.hosts.vllm.worker.host_to_device import to_device


def placed(drafts: Sequence[LookupDraft], emitted: torch.Tensor, width: int) -> torch.Tensor:
    """(n, width) draft tokens; past the end of what was found its last token, which no step verifies.

    Args:
        drafts: of n requests; each found at least one token.
        emitted: (n,) int64, tokens of each request that were emitted since the search; on the device.
        width: columns.
    """
    longest = max(len(draft.tokens) for draft in drafts)
    rows = [draft.tokens + draft.tokens[-1:] * (longest - len(draft.tokens)) for draft in drafts]
    tokens = to_device(np.array(rows, np.int64), emitted.device)
    places = emitted[:, None] + torch.arange(width, device=emitted.device)
    return tokens.gather(1, places.clamp(0, longest - 1))

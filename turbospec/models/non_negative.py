"""Least squares with coefficients of at least 0, for measurements of any kind."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from turbospec.interface import FloatArray


def non_negative_fit(matrix: FloatArray, values: FloatArray) -> FloatArray:
    """Coefficients x ≥ 0 that minimise |matrix · x − values|, always finite.

    Args:
        matrix: (m, p) finite numbers.
        values: (m,) finite numbers.

    Returns:
        (p,) x. Columns of zeros have the coefficient 0.
    """
    from scipy.optimize import lsq_linear, nnls  # slow to import, and only profiles are fitted

    try:
        found = cast(FloatArray, cast(Any, nnls)(matrix, values)[0])
        if np.isfinite(found).all():
            return found
    except (RuntimeError, np.linalg.LinAlgError):
        pass  # it did not converge, because sizes of columns differ too much
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0.0] = 1.0
    size = float(np.abs(values).max()) or 1.0
    found = cast(FloatArray, cast(Any, lsq_linear)(matrix / scale, values / size, bounds=(0.0, np.inf)).x)
    return np.nan_to_num(np.maximum(found, 0.0) / scale * size)

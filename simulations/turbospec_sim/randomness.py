"""Counter-based random numbers: each is a function of its key and counter, not of how many were drawn before it.

SplitMix64's output function over a key and a counter (Steele, Lea, Flood: "Fast splittable pseudorandom number
generators", OOPSLA 2014).
"""

from __future__ import annotations

import math

import numpy as np

from turbospec.runtime.kernels import compiled

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
TO_UNIT = 2.0**-53


@compiled
def mixed(value: np.uint64) -> np.uint64:
    """A bijection of 64-bit words whose output bits each depend on all input bits."""
    value = (value ^ (value >> np.uint64(30))) * MIX_1
    value = (value ^ (value >> np.uint64(27))) * MIX_2
    return value ^ (value >> np.uint64(31))


@compiled
def key(seed: int, number: int) -> np.uint64:
    """Key of the `number`-th stream under a seed."""
    return mixed(mixed(np.uint64(seed) + GOLDEN) + np.uint64(number) * GOLDEN)


@compiled
def uniform(stream: np.uint64, counter: int) -> float:
    """A number in [0, 1)."""
    word = mixed(stream + (np.uint64(counter) + np.uint64(1)) * GOLDEN)
    return float(word >> np.uint64(11)) * TO_UNIT


@compiled
def normal(stream: np.uint64, counter: int) -> float:
    """A standard normal number (Box and Muller, 1958); uses two counters of the stream."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(stream, 2 * counter)))
    return radius * math.cos(2.0 * math.pi * uniform(stream, 2 * counter + 1))

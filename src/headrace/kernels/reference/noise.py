"""The sampling noise: one integer hash of (seed, output position, token id), the same everywhere.

This is a contract for ever: a change would alter what every stored seed means.

    key  = splitmix64(seed ^ splitmix64(position))         64-bit, one per row
    x    = mix32(token_id + low 32 bits of key)            modulo 2^32
    x    = mix32(x ^ high 32 bits of key)
    u    = ((x >> 9) + 0.5) * 2^-23                        exact in float32, inside (0, 1)
    g    = -log(-log(u))                                   float32; |g| < 17

splitmix64 is the generator of Steele, Lea and Flood (2014), one step from its argument; mix32 is
C. Wellons' `lowbias32` (hash prospector, 2018).
"""

import numpy as np
from numpy.typing import NDArray

MASK64 = (1 << 64) - 1

#: No noise value exceeds this: -log(-log(1 - 2^-24)) = 16.6355..., rounded up.
LARGEST_NOISE = 16.636


def splitmix64(state: int) -> int:
    """One output of splitmix64 from this state."""
    z = (state + 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def row_key(seed: int, position: int) -> int:
    """The 64-bit key of one draw; `position` counts output tokens from 0."""
    return splitmix64((seed & MASK64) ^ splitmix64(position & MASK64))


def mix32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A bijection of 32-bit integers in which every input bit moves every output bit."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def gumbel(key: int, token_ids: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Standard Gumbel noise of these tokens under one row's key."""
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    x = mix32(mix32(token_ids.astype(np.uint32) + low) ^ high)
    uniform = ((x >> np.uint32(9)).astype(np.float64) + 0.5) * 2.0**-23
    return (-np.log(-np.log(uniform))).astype(np.float32)


def uniform(key: int) -> float:
    """A number in (0, 1) of the draw itself: that of the token id 2^32 - 1, which no token has."""
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    x = mix32(mix32(np.array([0xFFFFFFFF], np.uint32) + low) ^ high)
    return float(((int(x[0]) >> 9) + 0.5) * 2.0**-23)

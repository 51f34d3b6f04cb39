"""What a result promises beyond being right."""

from typing import Literal

from tuner.trial import Contender

Numerics = Literal["invariant", "deterministic"]


def numerics_of(contender: Contender) -> Numerics:
    """`invariant` if the bits of an output row do not depend on M, else `deterministic`.

    Our kernel adds the whole of K in one order whatever the tile, unless it splits K: how many
    shares pay depends on the tiles, and so on M. A library may change its algorithm, and with it
    that order, from one M to the next.
    """
    whole = contender.config is not None and contender.config.knobs.split_k == 1
    return "invariant" if whole else "deterministic"

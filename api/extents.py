"""Whole numbers in query strings: ASCII digits within a range, and nothing else."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from tuner.shape import MAX_EXTENT

EXTENT_RANGE = f"a whole number from 1 to {MAX_EXTENT} in ASCII digits"


def whole_number(low: int, high: int) -> BeforeValidator:
    """Accepts the decimal digits of an integer from `low` to `high`.

    Pydantic alone would also read `1_0`, `+1`, ` 1`, `1.0` and the digits of other scripts.
    """

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and re.fullmatch("0*[0-9]{1,10}", value):
            number = int(value[-10:])
        else:
            number = low - 1
        if low <= number <= high:
            return number
        raise PydanticCustomError(
            "whole_number",
            "not a whole number in range",
            {"allowed": f"a whole number from {low} to {high} in ASCII digits"},
        )

    return BeforeValidator(read)


Extent = Annotated[int, Field(ge=1, le=MAX_EXTENT), whole_number(1, MAX_EXTENT)]
"""An extent of a shape, or a number of multiprocessors."""

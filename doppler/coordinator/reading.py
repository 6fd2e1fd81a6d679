"""Two readings of the paper: its formulas as printed, and with our corrections.

Every correction is told where it is made, and in docs/gmi_drl.md.
"""

import enum


class Reading(enum.Enum):
    """`printed`: to the letter, for comparison with the paper. `corrected`: what we use."""

    printed = "printed"
    corrected = "corrected"

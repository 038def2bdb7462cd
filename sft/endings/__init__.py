"""How an attempt ended, and whether the same run may be tried again by itself.

From the bottom to the top: `ending` says what an ending is, `signs` what lines of a log mean,
`slurm_words` what Slurm's mean; `lines`, `tracebacks` and `logs` read a log, `wording` quotes it,
and `judgement` weighs all evidence.
"""

from sft.endings.ending import RETRIED, Ending, Kind
from sft.endings.judgement import judge_ending
from sft.endings.logs import first_error
from sft.endings.signs import SIGNS
from sft.endings.wording import SHOWN, WIDTH

__all__ = ["RETRIED", "SHOWN", "SIGNS", "WIDTH", "Ending", "Kind", "first_error", "judge_ending"]

"""What a person sees before GPUs start: examples as they will be trained, with their loss mask.

`Sample` and `Summary` are what the checks hand over, and lie in their receipt as JSON;
`preview_page` and `preview_text` show them in a browser and in a terminal.
"""

from sft.gate.preview.page import preview_page
from sft.gate.preview.sample import FIRST, Finding, Gap, Sample, Summary, Token, shorten
from sft.gate.preview.text import preview_text, wants_color

__all__ = [
    "FIRST",
    "Finding",
    "Gap",
    "Sample",
    "Summary",
    "Token",
    "preview_page",
    "preview_text",
    "shorten",
    "wants_color",
]

"""Let a trainer that imports audio libraries unconditionally start where they are not installed."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


def allow_text_only() -> None:
    """Put an empty `torchaudio` in place where none is installed; call before the trainer's import.

    LLaMA-Factory 0.9.5 imports torchaudio in `data/mm_plugin.py` whatever it trains, and its wheel
    does not load beside a CPU build of torch. Text runs never call it; a call fails with the
    missing attribute's name.
    """
    if importlib.util.find_spec("torchaudio") is None:
        stub = ModuleType("torchaudio")
        stub.__spec__ = ModuleSpec("torchaudio", loader=None)
        sys.modules["torchaudio"] = stub

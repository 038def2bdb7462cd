"""Where the hub's client finds its token; light, for what looks before a job starts."""

import os
from pathlib import Path

HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
NO_TOKEN = "none, and `upload_to: hub` sends releases to the hub"
NO_TOKEN_REMEDY = (
    "export HF_TOKEN or run `hf auth login`, with a token that may write to the namespace; "
    "or set upload_to: folder"
)


def token_origins() -> list[str]:
    """The places that hold a token of the hub, in the order in which huggingface_hub looks."""
    named = [f"the variable {name}" for name in HUB_TOKENS if os.environ.get(name, "").strip()]
    file = token_file()
    return [*named, *([f"the file {file}"] if _holds_text(file) else [])]


def read_token() -> str:
    """The token that huggingface_hub would use, "" without one."""
    for name in HUB_TOKENS:
        if token := os.environ.get(name, "").strip():
            return token
    file = token_file()
    return file.read_text().strip() if _holds_text(file) else ""


def token_file() -> Path:
    """Where `hf auth login` leaves a token."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()


def _holds_text(file: Path) -> bool:
    readable = os.path.isfile(file) and os.access(file, os.R_OK)
    return readable and bool(file.read_text().strip())

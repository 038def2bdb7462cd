"""What both halves of the small hub need: its refusals, and how it remembers files."""

import hashlib
from typing import Any

LFS_BYTES = 1 << 20
LFS_ENDINGS = (".safetensors", ".parquet", ".arrow", ".bin", ".gguf")


class Refused(Exception):
    """An answer other than success: HTTP status, the hub's word for it, and a sentence.

    `more` stands beside the sentence in the body.
    """

    def __init__(self, status: int, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.more = status, code, message, more


def is_large(name: str, size: int) -> bool:
    """Whether a file is kept outside of git."""
    return size > 0 and (name.endswith(LFS_ENDINGS) or size > LFS_BYTES)


def describe(content: bytes, lfs: bool) -> dict[str, Any]:
    """How a commit remembers a file with this content."""
    sha256 = hashlib.sha256(content).hexdigest()
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return {"size": len(content), "oid": oid, "sha256": sha256, "lfs": lfs}

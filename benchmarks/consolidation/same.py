"""Whether two folders hold the same tensors; exit code 1 where not.

python -m benchmarks.consolidation.same FOLDER FOLDER
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file


def same_tensors(first: Path, second: Path) -> bool:
    """Whether two folders hold the same tensors."""
    one, other = (
        {name: each for path in folder.glob("*.saf*") for name, each in load_file(path).items()}
        for folder in (first, second)
    )
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


if __name__ == "__main__":
    sys.exit(not same_tensors(*map(Path, sys.argv[1:])))

"""Floating-point numbers as bytes, from one width into another; numpy has no bfloat16."""

import numpy as np

from sft.errors import SftError
from sft.weights import NUMPY_DTYPES, as_float32

# Of a bfloat16 or the upper half of a float32: all bits of the exponent, set for inf and nan.
EXPONENT = 0x7F80
BLOCK = 1 << 16  # elements that stay in the cache between one step and the next

Bytes = bytes | bytearray | memoryview


def convert(data: Bytes, dtype: str, wanted: str, output: memoryview) -> None:
    """Write numbers of `dtype` to `output` as those of dtype `wanted`, rounded to nearest even.

    Of integers and truth values only the dtype that they have is wanted.
    """
    if dtype == wanted:
        output[:] = data
    elif dtype not in NUMPY_DTYPES or wanted not in NUMPY_DTYPES:
        raise SftError(f"numbers of dtype {dtype} are not made {wanted}")
    else:
        numbers, target = (
            np.frombuffer(data, NUMPY_DTYPES[dtype]),
            np.frombuffer(output, NUMPY_DTYPES[wanted]),
        )
        write = _write_bfloat16 if wanted == "BF16" else _write_wider
        for start in range(0, numbers.size, BLOCK):
            block = numbers[start : start + BLOCK]
            write(as_float32(block, dtype), target[start : start + BLOCK])


def not_finite(data: Bytes, dtype: str) -> str:
    """What numbers are not finite among floats; the empty text where all are."""
    if dtype not in NUMPY_DTYPES:
        return ""
    numbers = np.frombuffer(data, NUMPY_DTYPES[dtype])
    for start in range(0, numbers.size, BLOCK):
        block = numbers[start : start + BLOCK]
        if dtype == "BF16":
            finite = (block & EXPONENT) != EXPONENT
        elif _has_finite_sum(block, dtype):
            continue
        else:
            finite = np.isfinite(block)
        if not finite.all():
            return f"{int(finite.size - finite.sum())} numbers that are not finite"
    return ""


def _has_finite_sum(block: np.ndarray, dtype: str) -> bool:
    """Whether the sum of numbers is finite: one that is not makes it so, and it is quickly made."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(block.sum(dtype=np.float64 if dtype == "F16" else None)))


def _write_bfloat16(block: np.ndarray, target: np.ndarray) -> None:
    """Round half to even, as torch does, in integers: bfloat16 is the upper half of a float32."""
    bits = block.view("<u4")
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    target[:] = rounded


def _write_wider(block: np.ndarray, target: np.ndarray) -> None:
    target[:] = block

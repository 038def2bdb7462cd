"""Floating-point numbers as bytes, from one width into another; numpy has no bfloat16."""

import numpy as np

from sft.errors import SftError

FLOATS = ("F64", "F32", "F16", "BF16")
NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
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
    elif dtype not in FLOATS or wanted not in FLOATS:
        raise SftError(f"numbers of dtype {dtype} are not made {wanted}")
    else:
        numbers, target = np.frombuffer(data, NUMPY[dtype]), np.frombuffer(output, NUMPY[wanted])
        write = _write_bfloat16 if wanted == "BF16" else _write_wider
        for start in range(0, numbers.size, BLOCK):
            block = numbers[start : start + BLOCK]
            write(_as_float32(block, dtype), target[start : start + BLOCK])


def not_finite(data: Bytes, dtype: str) -> str:
    """What numbers are not finite among floats; the empty text where all are."""
    if dtype not in FLOATS:
        return ""
    numbers = np.frombuffer(data, NUMPY[dtype])
    for start in range(0, numbers.size, BLOCK):
        block = numbers[start : start + BLOCK]
        if dtype == "BF16":
            finite = (block & EXPONENT) != EXPONENT
        elif np.isfinite(block.sum(dtype=np.float64 if dtype == "F16" else None)):
            continue  # one that is not finite would have made the sum so
        else:
            finite = np.isfinite(block)
        if not finite.all():
            return f"{int(finite.size - finite.sum())} numbers that are not finite"
    return ""


def _as_float32(block: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return (block.astype("<u4") << 16).view("<f4")
    return block.astype("<f4", copy=False)


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

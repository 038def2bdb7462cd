"""A LoRA adapter: what it adds to the base's weights, and whether a merged model is that sum."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sft.errors import SftError, first_few
from sft.files import read_json
from sft.weights import Tensor, read_rows, read_tensors, read_weights_index, same_data

ADAPTER = "adapter_model.safetensors"
PREFIX, FIRST, SECOND = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# Bits of a mantissa: what is added in such numbers is off by half of the last one, twice.
MANTISSA = {"BF16": 8, "F16": 11, "F32": 24}
SAMPLED = 4  # rows of each merged matrix
# Ways of training an adapter whose sum is not W + scale × B·A.
OTHER_SUMS = ("use_dora", "lora_bias", "use_qalora", "alora_invocation_tokens", "megatron_config")


def read_scales(adapter: Path) -> dict[str, float]:
    """By what the product of each adapted matrix is multiplied, by the matrix's name in the base.

    Raises SftError where the adapter is no plain LoRA.
    """
    config = read_json(adapter / "adapter_config.json")
    odd = [key for key in OTHER_SUMS if config.get(key)]
    odd += ["modules_to_save"] if config.get("modules_to_save") else []
    odd += ["bias"] if config.get("bias", "none") != "none" else []
    if config.get("peft_type") != "LORA" or odd:
        kind = config.get("peft_type")
        raise SftError(
            f"{adapter}/adapter_config.json: found {', '.join(odd) or f'peft_type {kind}'}, "
            "expected a plain LoRA: what is merged could not be proven"
        )
    tensors = read_tensors(adapter / ADAPTER)
    scales = {}
    for name in (name for name in tensors if name.endswith(FIRST)):
        rank = tensors[name].shape[0]
        matrix = name.removeprefix(PREFIX).removesuffix(FIRST)
        alpha = _of_pattern(config.get("alpha_pattern"), matrix, config["lora_alpha"])
        scales[f"{matrix}.weight"] = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    return scales


def _of_pattern(pattern: Mapping[str, float] | None, matrix: str, usual: float) -> float:
    """The value of the first name that the matrix ends in, else the usual one."""
    # As peft reads such a pattern (peft/utils/other.py, get_pattern_key).
    named = (pattern or {}).items()
    found = (value for name, value in named if re.match(rf"(.*\.)?({name})$", matrix))
    return next(found, usual)


def merge_faults(
    base: Path, adapter: Path, merged: Path, scales: Mapping[str, float]
) -> Iterator[str]:
    """A line for each tensor that is not what the base and the adapter make."""
    before, after = read_weights_index(base), read_weights_index(merged)
    if lost := sorted(before.keys() ^ after.keys()):
        yield f"{merged}: other tensors than {base}: {first_few(lost)}"
        return
    if unknown := sorted(scales.keys() - before.keys()):
        yield f"{adapter}: adapts {first_few(unknown)}, which {base} does not have"
        return
    for name, tensor in before.items():
        found = after[name]
        if (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
            yield f"{merged}, {name}: found {found[1:]}, expected {tensor[1:]} as in the base"
        elif name in scales:
            sample = _Sample(base, adapter, merged, name, tensor, found)
            yield from sample.faults(scales[name])
        elif not same_data(base / tensor.file, merged / found.file, name):
            yield f"{merged}, {name}: not the base's, and no adapter changes it"


def kept_share(
    base: Path, adapter: Path, merged: Path, scales: Mapping[str, float]
) -> float | None:
    """The share of what the adapter adds that the merged weights hold, by a sample; None for none.

    Weights in bf16 round small additions away: of one that is a thousandth of its weight, half.
    """
    before, after = read_weights_index(base), read_weights_index(merged)
    kept = wanted = 0.0
    for name, scale in scales.items():
        sample = _Sample(base, adapter, merged, name, before[name], after[name])
        was, now, added = (each.astype(np.float64) for each in sample.read(scale))
        kept += float(((now - was) * added).sum())
        wanted += float((added * added).sum())
    return kept / wanted if wanted else None


@dataclass(frozen=True)
class _Sample:
    """Some rows of a matrix, before and after."""

    base: Path
    adapter: Path
    merged: Path
    name: str
    before: Tensor
    after: Tensor

    def faults(self, scale: float) -> Iterator[str]:
        """A line where the rows are not the base's plus scale × B·A."""
        was, now, added = self.read(scale)
        allowed = 2.0 ** (1 - MANTISSA[self.before.dtype]) * (np.abs(was) + np.abs(added))
        off = np.abs(now - (was + added)) > allowed
        if off.any() or not np.isfinite(now).all():
            yield (
                f"{self.merged}, {self.name}: {int(off.sum())} of {off.size} sampled values are "
                "not the base's plus the adapter's"
            )
        elif added.any() and np.array_equal(was, now) and (np.abs(added) > allowed).any():
            yield f"{self.merged}, {self.name}: still the base's; the adapter was not added"

    def read(self, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows before, after, and what was to be added."""
        rows = np.linspace(0, self.before.shape[0] - 1, SAMPLED).astype(int)
        was = read_rows(self.base / self.before.file, self.name, rows)
        now = read_rows(self.merged / self.after.file, self.name, rows)
        return was, now, scale * self._product(rows)

    def _product(self, rows: np.ndarray) -> np.ndarray:
        matrix = PREFIX + self.name.removesuffix(".weight")
        tensors = read_tensors(self.adapter / ADAPTER)
        first = range(tensors[matrix + FIRST].shape[0])
        down = read_rows(self.adapter / ADAPTER, matrix + FIRST, first)
        up = read_rows(self.adapter / ADAPTER, matrix + SECOND, rows)
        return up @ down

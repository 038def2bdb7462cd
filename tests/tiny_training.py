"""Runs of a tiny random model by a real trainer, in processes forked from one that imported it.

The import takes most of the time of such a run, and it is made once. Whose tests they are says
which trainer, and what its configs look like.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.compiled import entered, extensions

WORDS = 64
CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Signal:
    """A signal that a training process of `rank` sends itself while it makes, or saves, a step.

    With `group` all processes that it started get it too, as from torchrun and from Slurm.
    """

    number: signal.Signals
    step: int
    rank: int = 0
    group: bool = False
    saving: bool = False

    def send(self) -> None:
        if not self.group:
            os.kill(os.getpid(), self.number)
        elif os.fork() == 0:  # a worker of a DataLoader obeys its own process otherwise
            os.killpg(os.getpgrp(), self.number)
            os._exit(0)


def make_inputs(folder: Path, tied: bool = False) -> None:
    """Write a llama of two layers to model/, its head tied or not, and random tokens to tokens/."""
    words = {f"w{number}": number for number in range(WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="w1", pad_token="w2")
    tokenizer.save_pretrained(folder / "model")
    widths = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=WORDS, num_hidden_layers=2, tie_word_embeddings=tied, **widths)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    rows = torch.randint(WORDS, (32, 12)).tolist()
    columns = {"input_ids": rows, "labels": rows, "attention_mask": [[1] * 12] * len(rows)}
    Dataset.from_dict(columns).save_to_disk(str(folder / "tokens"))


def start(
    entry: str, config: Path, world_size: int = 1, sent: Signal | None = None, **variables: object
) -> list[BaseProcess]:
    """The training processes of an entry; what each says goes to <rank>.log beside the config."""
    common = {key: str(value) for key, value in variables.items()}
    if world_size > 1:
        common |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    if world_size > 1 and "deepspeed" in yaml.safe_load(config.read_text()):
        common |= extensions(Path(sys.prefix)) | {"PATH": entered(Path(sys.prefix))}
    processes = []
    for rank in range(world_size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if world_size > 1 else {}
        own_signal = sent if sent and sent.rank == rank else None
        processes.append(
            CONTEXT.Process(
                target=_train, args=(entry, config, rank, world_size, own_signal, common | own)
            )
        )
        processes[-1].start()
    return processes


def finish(processes: Sequence[BaseProcess]) -> list[int | None]:
    """The exit codes, as Python tells them: -9 where SIGKILL ended a process."""
    for process in processes:
        process.join(timeout=120)
    return [process.exitcode for process in processes]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _train(
    entry: str,
    config: Path,
    rank: int,
    world_size: int,
    sent: Signal | None,
    variables: dict[str, str],
) -> None:
    from transformers import TrainerCallback, trainer

    class Sender(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == sent.step - 1 and not sent.saving:
                sent.send()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == sent.step and sent.saving:
                sent.send()

    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # as in a process of its own
    os.environ |= variables
    log = os.open(config.parent / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    if sent:
        trainer.DEFAULT_CALLBACKS.append(Sender)
    import_module(f"sft.trainers.{entry}").train(config, world_size)


def read_events(folder: Path) -> list[dict]:
    """The lines of steps.jsonl that are whole."""
    events = []
    for line in (folder / "out" / "steps.jsonl").read_text().splitlines():
        with suppress(ValueError):
            events.append(json.loads(line))
    return events


def losses(folder: Path) -> dict[int, float]:
    """The logged loss of each step; of a step that was made twice, the later."""
    return {each["step"]: each["loss"] for each in read_events(folder) if each["event"] == "log"}


def saved_steps(folder: Path) -> list[int]:
    """The numbers of the checkpoints, in order."""
    return sorted(int(path.name[11:]) for path in (folder / "out").glob("checkpoint-*"))

"""Keep a training run: note its steps, save and stop in time, and never save a ruined state.

`Keeper` is a callback for any trainer that is made of transformers' Trainer. It reads

    SFT_JOB_END          when the job is killed, in Unix seconds; absent: never
    SFT_END_MARGIN_S     what must be left then after the last save (60)
    SFT_SAVE_GUESS_S     how long a save takes, as long as none was measured (120)
    SFT_NODE_MTBF_HOURS  mean time between two faults of one node (1000), for saves by time

and writes `steps.jsonl` into the trainer's output folder, one JSON object a line: "time" (Unix
seconds), "event", "step" (optimizer steps done), "max_steps", and by event

    begin  world_size; versions: of the packages that train, such as torch==2.9.1 (an object inside
           would hide the event: see sft/progress.py); device: the name of its GPU, absent without
           one
    log    loss, grad_norm, learning_rate, epoch (each where the trainer tells it; NaN may stand
           there), step_s: mean seconds a step since the last log, without saves
    save   save_s: seconds that the save took; the checkpoint is complete on all processes
    stop   reason: job_end, told (SIGTERM) or diverged; written just before leaving unfinished
    end    the last step is done

Where it stops a run, each process leaves with exit code UNFINISHED or DIVERGED, before the trainer
writes weights and results to the root of its output folder as if it had finished.
"""

import json
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sft.trainers.entry import installed_versions

UNFINISHED = os.EX_TEMPFAIL  # 75: a checkpoint is there, and another attempt goes on from it
DIVERGED = 76

STEPS_FILE = "steps.jsonl"
TOUCH_S = 10.0
MOST_OF_STEPS = 0.95
LEAST_SAVES_BETWEEN = 10  # at most a tenth of a run goes into saves
# Between 6300 h (the Llama 3 report: 419 faults of 2048 nodes in 54 days) and a young machine.
MTBF_HOURS = 1000
RUINED_LOGS = 2
LAST_MESSAGE_S = 1.0  # NCCL sends in the background: others may still wait for what this one says
PACKAGES = (
    *("torch", "transformers", "accelerate", "deepspeed", "peft", "liger_kernel", "flash_attn"),
    *("llamafactory", "axolotl", "datasets", "tokenizers"),
)
LOGGED = ("loss", "grad_norm", "learning_rate", "epoch")

SENTENCES = {
    "job_end": "stopped before the end of the job at {at}; checkpoint-{step} is complete",
    "told": "stopped on SIGTERM at {at}; checkpoint-{step} is complete",
    "diverged": "stopped at {at}: loss or gradients are not finite; this state is not saved",
}


class Wish(IntEnum):
    """What a process wants at the end of a step; all do what the highest of them says."""

    GO_ON = 0
    SAVE = 1
    JOB_END = 2
    TOLD = 3


class Pace:
    """How long the last steps and saves took, in seconds."""

    def __init__(self) -> None:
        self.steps: deque[float] = deque(maxlen=100)
        self.saves: deque[float] = deque(maxlen=5)

    def step_s(self) -> float:
        """What nearly all steps stay below."""
        return sorted(self.steps)[int(MOST_OF_STEPS * len(self.steps))]

    def save_s(self, guess: float) -> float:
        """The longest of the last saves; `guess` before the first."""
        return max(self.saves, default=guess)


class StepsFile:
    """The open steps.jsonl; each event is one write, so that readers see whole lines."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        self.touched = 0.0
        size = os.fstat(self.file).st_size
        if size and os.pread(self.file, 1, size - 1) != b"\n":
            os.write(self.file, b"\n")  # half a line of a killed process would spoil the next one

    def write(self, event: Mapping[str, Any]) -> None:
        os.write(self.file, json.dumps(event).encode() + b"\n")

    def touch(self) -> None:
        """Renew the file's mtime, the sign of life between events, at most every TOUCH_S."""
        if time.monotonic() - self.touched >= TOUCH_S:
            self.touched = time.monotonic()
            os.utime(self.file)


class Keeper(TrainerCallback):
    """Saves and stops a run so that at most the steps since the last save are lost.

    What one process knows (a signal; on the first, the clock) all must do at the same step. So each
    step ends with one all-reduce of an integer, for which the process waits for its GPU. In
    exchange the trainer no longer waits for it at each micro-batch to look for NaN.

    With `saves_by_time` the trainer's `save_steps` does not count: a save is due when
    `save_interval_s` has passed since the last one. The last step is saved as without it.
    """

    def __init__(self, saves_by_time: bool) -> None:
        self.saves_by_time = saves_by_time
        self.job_end = float(os.environ.get("SFT_JOB_END", math.inf))
        self.margin_s = float(os.environ.get("SFT_END_MARGIN_S", 60))
        self.guess_s = float(os.environ.get("SFT_SAVE_GUESS_S", 120))
        self.mtbf_hours = float(os.environ.get("SFT_NODE_MTBF_HOURS", MTBF_HOURS))
        self.pace = Pace()
        self.unlogged: list[float] = []  # seconds of each step since the last log
        self.steps: StepsFile | None = None  # of the first process
        self.told = False
        self.ruined_logs = 0
        self.stopping: str | None = None  # the reason, once all have agreed

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.saves_by_time:
            args.save_steps = 0  # never by steps; save_strategy still saves the last one

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        follow_arguments(args, state)
        # The filter logs a mean (0.0 where none is) in place of a loss that is not finite, and
        # DeepSpeed hides such gradients: the norm of each group counts as -1. So a ruined ZeRO-3
        # run would look sound. Under fp16, loss scaling makes such losses and skips their steps.
        args.logging_nan_inf_filter = args.fp16
        if state.is_world_process_zero:
            path = Path(args.output_dir) / STEPS_FILE
            self.pace.saves.extend(newest_save_s(path))
            self.steps = StepsFile(path)
        versions = [f"{name}=={version}" for name, version in installed_versions(PACKAGES).items()]
        self._note("begin", state, world_size=args.world_size, versions=versions, **name_device())
        self.step_began = self.saved = time.monotonic()
        if args.dataloader_num_workers:
            loader = kwargs["train_dataloader"].base_dataloader
            loader.worker_init_fn = partial(outlive_sigterm, loader.worker_init_fn)
        # Only now: before the first step there is nothing to save, and SIGTERM ends a process.
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: object) -> None:
        self.told = True

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.steps:
            self.steps.touch()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        now = time.monotonic()
        self.pace.steps.append(now - self.step_began)
        self.unlogged.append(now - self.step_began)
        self.step_began = self.save_began = now
        if self.steps:
            self.steps.touch()
        if self._ask(args, state, control) >= Wish.SAVE:
            control.should_save = True
        if control.should_save or is_last(state):
            control.should_log = True  # which tells whether the state is worth keeping

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float],
        **kwargs: Any,
    ) -> None:
        if "loss" not in logs:  # a summary
            return
        told = {key: logs[key] for key in LOGGED if key in logs}
        self._note("log", state, **told, step_s=sum(self.unlogged) / len(self.unlogged))
        self.unlogged.clear()
        finite = all(math.isfinite(logs[key]) for key in ("loss", "grad_norm") if key in logs)
        skipped = args.fp16 and kwargs["optimizer"].step_was_skipped  # the weights are untouched
        if agree(args, not finite and not skipped):
            self.ruined_logs += 1
            control.should_save = False
            if self.ruined_logs == RUINED_LOGS or self.stopping or is_last(state):
                self.stopping = "diverged"
                control.should_training_stop = True
        else:
            self.ruined_logs = 0

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        agree(args, 0)  # each process writes files of its own, after the first's trainer_state.json
        self.saved = self.step_began = time.monotonic()
        self.pace.saves.append(self.saved - self.save_began)
        self._note("save", state, save_s=self.saved - self.save_began)
        self._ask(args, state, control)  # the signal may have come, or the time gone, meanwhile

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.stopping:
            self._leave(args, state)
        if control.should_save:  # save_strategy: epoch
            self.save_began = time.monotonic()
            control.should_log = True
            control.should_save = not self.ruined_logs  # the last step may be logged already

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.stopping:
            self._leave(args, state)
        if is_last(state):
            self._note("end", state)

    def _ask(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> Wish:
        """What all do now; where that is to stop, the trainer's loop is told to end."""
        if self.stopping or is_last(state):  # it ends anyway
            return Wish.GO_ON
        wish = Wish(agree(args, self._wish(args)))
        if wish >= Wish.JOB_END:
            self.stopping = wish.name.lower()
            control.should_training_stop = True
        return wish

    def _wish(self, args: TrainingArguments) -> Wish:
        if self.told:
            return Wish.TOLD
        if not self.steps:
            return Wish.GO_ON
        save_s = self.pace.save_s(self.guess_s)
        if self.job_end - time.time() < self.pace.step_s() + save_s + self.margin_s:
            return Wish.JOB_END
        if self.saves_by_time and time.monotonic() - self.saved >= self._interval_s(args, save_s):
            return Wish.SAVE
        return Wish.GO_ON

    def _interval_s(self, args: TrainingArguments, save_s: float) -> float:
        if not self.pace.saves:  # save early once, to learn how long it takes
            return LEAST_SAVES_BETWEEN * save_s
        num_nodes = args.world_size // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        return save_interval_s(save_s, self.mtbf_hours, num_nodes)

    def _note(self, event: str, state: TrainerState, **facts: Any) -> None:
        if self.steps:
            what = {"event": event, "step": state.global_step, "max_steps": state.max_steps}
            self.steps.write({"time": time.time(), **what, **facts})

    def _leave(self, args: TrainingArguments, state: TrainerState) -> NoReturn:
        """End this process; the trainer's own end would write results as of a finished run."""
        at = f"step {state.global_step} of {state.max_steps}"
        sentence = SENTENCES[self.stopping].format(at=at, step=state.global_step)
        self._note("stop", state, reason=self.stopping)
        if state.is_world_process_zero:
            print(f"\n{sentence}", flush=True)  # after the progress bar's open line
        tell_torchrun(sentence)
        if args.world_size > 1:
            time.sleep(LAST_MESSAGE_S)
        # Python's own end would take the process group apart, which hung under gloo and DDP.
        sys.stderr.flush()
        os._exit(DIVERGED if self.stopping == "diverged" else UNFINISHED)


def agree(args: TrainingArguments, value: int) -> int:
    """The highest `value` of all processes; comes back once all have called it."""
    if args.world_size == 1:
        return value
    highest = torch.tensor(value, dtype=torch.int32, device=args.device)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return int(highest.item())


def tell_torchrun(sentence: str) -> None:
    """Let torchrun's summary of failed processes show `sentence` as what this one died of."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = {"py_callstack": sentence, "timestamp": int(time.time())}
        reply = {"message": {"message": sentence, "extraInfo": extra}}
        with suppress(FileNotFoundError):  # a launch script that was told too removes its TMPDIR
            Path(path).write_text(json.dumps(reply))


def name_device() -> dict[str, str]:
    """{"device": …} where there is a GPU."""
    return {"device": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}


def is_last(state: TrainerState) -> bool:
    return state.global_step >= state.max_steps


def save_interval_s(save_s: float, mtbf_hours: float, num_nodes: int) -> float:
    """Seconds between two saves that lose the least to saves and faults together.

    `mtbf_hours` is the mean time between faults of one node. First-order optimum of J. W. Young,
    "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; never below
    LEAST_SAVES_BETWEEN saves' time.
    """
    young = math.sqrt(2 * save_s * mtbf_hours * 3600 / num_nodes)
    return max(young, LEAST_SAVES_BETWEEN * save_s)


def follow_arguments(args: TrainingArguments, state: TrainerState) -> None:
    """Set anew what a resumed trainer took from its old state and what is not history.

    transformers 5.6 sets max_steps, num_train_epochs and what is of a process itself. The intervals
    come from the state; train_batch_size does too, and only serves to warn of a difference.
    """
    state.compute_steps(args, state.max_steps)
    state.train_batch_size = args.train_batch_size


def newest_save_s(path: Path) -> list[float]:
    """How long the newest save took that is noted in a steps.jsonl; empty where none is."""
    if not path.exists():
        return []
    lines = (line for line in reversed(path.read_bytes().splitlines()) if b'"save_s"' in line)
    for line in lines:
        with suppress(ValueError):  # a killed process left half a line
            return [json.loads(line)["save_s"]]
    return []


def outlive_sigterm(initialize: Callable[[int], None], worker_id: int) -> None:
    """Initialize a worker of a DataLoader, and let it end on SIGTERM of its own process only.

    torchrun and Slurm send SIGTERM to whole process groups; torch ends a training process at once
    whose worker died of it.
    """
    initialize(worker_id)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_for_parent, daemon=True).start()


def _end_for_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)

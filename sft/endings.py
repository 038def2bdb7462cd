"""How an attempt ended, and whether the same run may be tried again by itself.

Evidence counts in this order: what lies on disk, the trainer's own last word in steps.jsonl, what
the supervisor did, Slurm's word, the log of the attempt, the exit code. A log is read for the first
real error of each rank: what follows it on other ranks, and in the summaries of launchers, tells
only that they lost a peer. The forms of lines are those of torch 2.4 to 2.13, NCCL 2.14 to 2.28 and
Slurm 22.05 to 24.05; the numbers of fatal Xids are from NVIDIA's catalogue
(docs.nvidia.com/deploy/xid-errors).
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any

SHOWN = 8  # telling lines of an ending
WIDTH = 300  # characters of one of them


class Kind(StrEnum):
    """The kinds of endings."""

    COMPLETED = "completed"
    OUT_OF_TIME = "out_of_time"  # stopped by itself before the job's end, with a checkpoint
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"  # of the host
    CUDA_OUT_OF_MEMORY = "cuda_out_of_memory"
    COMMUNICATION = "communication"
    HARDWARE = "hardware"
    STUCK = "stuck"
    DISK_FULL = "disk_full"
    QUOTA = "quota"
    FAILED_START = "failed_start"
    EXCEPTION = "exception"
    DIVERGED = "diverged"
    KILLED = "killed"  # by a signal from outside that nothing explains
    LOST = "lost"  # nothing is known


# The same run, tried again, may well get further.
RETRIED = frozenset(
    {
        *(Kind.OUT_OF_TIME, Kind.TIMEOUT, Kind.PREEMPTED, Kind.NODE_FAIL, Kind.COMMUNICATION),
        *(Kind.HARDWARE, Kind.STUCK, Kind.KILLED, Kind.LOST),
    }
)


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: a sentence with the remedy, the telling lines, the node to avoid."""

    kind: Kind
    text: str
    lines: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()

    @property
    def retry(self) -> bool:
        """Whether the same run may be tried again by itself."""
        return self.kind in RETRIED


class Weight(IntEnum):
    """What explains more comes first; of equals, the first in the log."""

    NODE = 0
    RESOURCE = 1
    EXCEPTION = 2
    CRASH = 3
    NETWORK = 4
    TIMED_OUT = 5
    LOST_PEER = 6  # ranks say so of any other rank that ended
    ABORT = 7
    SHELL = 8  # before training only: some sites' start files fail without harm
    FORCED = 9


@dataclass(frozen=True)
class Sign:
    """A class of lines: what happened, with `{0}` for the pattern's first group, and the remedy."""

    weight: Weight
    kind: Kind
    pattern: re.Pattern[str]
    what: str
    remedy: str


def _signs(weight: Weight, kind: Kind, *rows: tuple[str, str, str]) -> list[Sign]:
    return [Sign(weight, kind, re.compile(pattern), *said) for pattern, *said in rows]


AGAIN = "another attempt goes on from the newest checkpoint"
ELSEWHERE = f"{AGAIN}, without this node where only one is concerned"
RESUME = "start the workflow again to go on from the newest checkpoint"
PROFILE = "in the site's profile"
ENVIRONMENTS = "(docs/add_a_site.md, Environments)"
GRACE = ", as preemption with a grace time does"
MORE_MEMORY = f"{AGAIN}; if it happens again, ask for more memory"

[NO_GPU] = _signs(
    Weight.NODE,
    Kind.HARDWARE,
    (
        r"no CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver",
        "a node shows no GPU to the training",
        ELSEWHERE,
    ),
)
[NO_GPU_AT_ALL] = _signs(
    Weight.NODE,
    Kind.FAILED_START,
    (
        NO_GPU.pattern.pattern,
        "no node of the job shows a GPU to the training",
        f"correct how GPUs are asked for {PROFILE} (gpu_request, sbatch_options, srun_options)",
    ),
)
[HOST_MEMORY] = _signs(
    Weight.RESOURCE,
    Kind.OUT_OF_MEMORY,
    (
        r"\boom[-_]kill|task[s \d,-]+: Out Of Memory|killed by signal: Killed|^MemoryError"
        r"|can't allocate memory|Cannot allocate memory|std::bad_alloc",
        "a node's memory ran out (not that of its GPUs)",
        f"ask for more (mem_mb of the rule train {PROFILE}), use fewer dataloader workers, or do "
        "without offload to the CPU",
    ),
)
SIGNS = [
    *_signs(
        Weight.NODE,
        Kind.HARDWARE,
        (
            r"\bXid \([^)]*\): (48|6[234]|74|79|9[245]|119|12[01]|136|140)\b",
            "the driver reports a broken GPU (Xid {0})",
            ELSEWHERE,
        ),
        (
            r"GPU has fallen off the bus|Unable to determine the device handle|GPU is lost",
            "a GPU is no longer there",
            ELSEWHERE,
        ),
        (
            r"uncorrectable (ECC|NVLink) error|CUDA_ERROR_(ECC|NVLINK)_UNCORRECTABLE",
            "a GPU has an uncorrectable {0} error",
            ELSEWHERE,
        ),
        (
            r"(?i)\bnvlink\b.*\b(?:error|failed|failure|down|inactive)\b",
            "a link between GPUs fails (NVLink)",
            ELSEWHERE,
        ),
        (
            r"CUDA_ERROR_SYSTEM_NOT_READY|system not yet initialized"
            r"|devices?(?:\(s\))? (?:is|are|is/are) busy or unavailable",
            "a node's GPUs are not ready for work",
            ELSEWHERE,
        ),
    ),
    NO_GPU,
    *_signs(
        Weight.NODE,
        Kind.NODE_FAIL,
        (
            r"srun: error: Task launch for \S+ failed on node (\S+): (.+)",
            "Slurm could not start the training on {0} ({1})",
            ELSEWHERE,
        ),
    ),
    *_signs(
        Weight.RESOURCE,
        Kind.QUOTA,
        (
            r"\[Errno 122\]|Disk quota exceeded|os error 122",
            "the quota of a file system is used up",
            f"make room, or let the results lie elsewhere, then {RESUME}",
        ),
    ),
    *_signs(
        Weight.RESOURCE,
        Kind.OUT_OF_MEMORY,
        (
            r"allocate shared memory\(shm\)|creating shared memory segment"
            r"|insufficient shared memory|killed by signal: Bus error|/dev/shm/.*No space left",
            "/dev/shm, memory that processes share, ran full",
            "use fewer dataloader workers (dataloader_num_workers: 0), or have the site enlarge it",
        ),
    ),
    *_signs(
        Weight.RESOURCE,
        Kind.DISK_FULL,
        (
            r"\[Errno 28\][^']*(?:'([^']*)')?|No space left on device|os error 28",
            "a disk is full ({0})",
            f"make room there (spill_folder {PROFILE} if it is a node's /tmp), then {RESUME}",
        ),
        (
            r"PytorchStreamWriter failed|iostream error|unexpected pos \d+ vs \d+",
            "a file could not be written to its end: the disk is full, or a quota used up",
            f"make room, then {RESUME}",
        ),
    ),
    *_signs(
        Weight.RESOURCE,
        Kind.CUDA_OUT_OF_MEMORY,
        (
            r"(?:CUDA|HIP) out of memory\. (Tried to allocate [\d.]+ \w+\. GPU \d+ has a total "
            r"capac\w+ of [\d.]+ \w+)|(?:CUDA|HIP) out of memory|CUDA error: out of memory"
            r"|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (?:2 )?'out of memory'",
            "a GPU's memory ran out ({0})",
            "hold fewer tokens on a device (per_device_train_batch_size, cutoff_len, "
            "enable_liger_kernel, gradient checkpointing); take ZeRO-3 or offload if weights and "
            "optimizer do not fit; more nodes do not help activations",
        ),
    ),
    *_signs(
        Weight.RESOURCE,
        Kind.FAILED_START,
        (
            r"(ibv_\w+).*Cannot allocate memory",
            "InfiniBand may not lock memory ({0})",
            f"raise it (ulimit -l unlimited in setup {PROFILE}), or ask the site's staff",
        ),
    ),
    HOST_MEMORY,
    *_signs(
        Weight.EXCEPTION,
        Kind.FAILED_START,
        (
            r"(\d+ training processes found each other, expected \d+)",
            "{0}",
            f"compare nodes and gpus_per_node {PROFILE} with what the job got; another rendezvous "
            "(c10d or static) may find all",
        ),
        (
            r"(\S+): no tokens there",
            "the tokens at {0} are gone or were never complete",
            "start the workflow again: it makes them anew",
        ),
        (
            r"Some keys are not used by the HfArgumentParser: (.+)",
            "the trainer does not know the keys {0}",
            "correct them in the base config or the row",
        ),
        (
            r"FlashAttention ?\d? has been toggled on|flash_attn seems to be not installed"
            r"|flash-attn is not installed",
            "flash-attn is asked for and is not in the trainer's environment",
            f"install it there, or set attn: sdpa {PROFILE}",
        ),
        (
            r"No module named '?([\w.]+)'?",
            "the environment lacks the module {0}",
            f"install it, or correct the line that enters the environment {PROFILE} {ENVIRONMENTS}",
        ),
        (
            r"(\S+\.so[.\d]*): cannot open shared object|version `(\S+)' not found"
            r"|undefined symbol: (\S+)",
            "a library does not fit the trainer's environment ({0})",
            f"load the modules that it was built with (setup {PROFILE}), or build it anew",
        ),
        (
            r"driver version is insufficient|driver on your system is too old"
            r"|no kernel image is available|unsupported display driver|forward compatibility was",
            "torch in the trainer's environment does not fit the nodes' GPUs or their driver",
            f"install one that was built for them {ENVIRONMENTS}",
        ),
        (
            r"Error building extension '(\w+)'|(CUDAMismatchException)|JIT load the (\w+) op",
            "DeepSpeed could not compile {0}",
            f"name the compilers (CC, CXX, CUDA_HOME among variables {PROFILE})",
        ),
        (
            r"couldn't connect to '?https://huggingface|LocalEntryNotFoundError"
            r"|OfflineModeIsEnabled|Repo id must be|is not a valid model identifier"
            r"|Failed to load tokenizer",
            "the trainer found no model or tokenizer where the config says",
            "check model_name_or_path in train.yaml; start the workflow again to fetch it anew",
        ),
        (
            r"\bwandb\.\S*Error|api_key not configured",
            "Weights & Biases could not start",
            f"set wandb_mode: offline or disabled {PROFILE}, or log in with `wandb login`",
        ),
        (
            r"AF_UNIX path too long",
            "a socket's path is longer than 107 characters",
            "let TMPDIR be short: launch.sh makes one below /tmp; see that nothing undoes it",
        ),
        (
            r"used a DP world size of (\d+) but the current world size is (\d+)",
            "the checkpoint is of {0} processes, and the job has {1}",
            "go back to the number of nodes of before, or start over in another folder",
        ),
    ),
    *_signs(
        Weight.EXCEPTION,
        Kind.EXCEPTION,
        (
            r"PytorchStreamReader failed|invalid header or archive|deserializing header"
            r"|SafetensorError: Error while deser|Ran out of input",
            "a file of weights or of a checkpoint is broken",
            f"move the checkpoint that the lines name away, then {RESUME}",
        ),
        (
            r"mha_graph->execute",
            "cuDNN's attention failed, as it does on long sequences in torch 2.9 with CUDA 13",
            f'set TORCH_CUDNN_SDPA_ENABLED: "0" among variables {PROFILE}',
        ),
        (
            r"device-side assert triggered",
            "an index lies outside of a tensor on the GPU, mostly a token id beyond the vocabulary",
            "compare tokenizer and model; CUDA_LAUNCH_BLOCKING=1 shows the line",
        ),
        (
            r"CUDA error: (an illegal memory access|unspecified launch failure|misaligned address)",
            "a kernel failed on the GPU ({0})",
            "a fault of the code as a rule (packing, attention, liger): change what is new in the "
            "config; if the same config ran before, keep away from this node (bad_nodes)",
        ),
        (
            r"(?:\[Errno 13\] Permission denied|\[Errno 30\] Read-only file system)"
            r"(?:: '([^']*)')?",
            "a file may not be written or read ({0})",
            "check who owns it, and that compute nodes may write to that file system",
        ),
        (
            r"\[Errno (37|38)\]",
            "a file system has no file locks (errno {0})",
            f"let caches lie elsewhere (hf_home, spill_folder {PROFILE})",
        ),
        (
            r"\[Errno 24\]|can't start new thread|[tT]hread creation failed|pthread_create"
            r"|fork: .*Resource temporarily unavailable",
            "a limit on open files or processes was reached",
            f"use fewer dataloader workers, or raise it (ulimit -n, ulimit -u in setup {PROFILE})",
        ),
        (
            r"(ncclInvalidUsage)|invalid usage[^,]*, NCCL",
            "NCCL was used wrongly, mostly by two processes on one GPU",
            f"compare gpus_per_node {PROFILE} with the processes that were started",
        ),
    ),
    *_signs(
        Weight.EXCEPTION,
        Kind.HARDWARE,
        (
            r"\[Errno (5|107|108|116|121)\]|os error (5|107|108|116|121)\b",
            "a file system failed under the training (errno {0})",
            ELSEWHERE,
        ),
    ),
    *_signs(
        Weight.EXCEPTION,
        Kind.DIVERGED,
        (
            r"loss scale already at minimum",
            "gradients overflow at the smallest loss scale",
            "train in bf16, or with a lower learning_rate",
        ),
    ),
    *_signs(
        Weight.CRASH,
        Kind.HARDWARE,
        (r"Failed to initialize NVML: (.+)", "a node's driver does not answer ({0})", ELSEWHERE),
    ),
    *_signs(
        Weight.CRASH,
        Kind.KILLED,
        (
            r"failed \(exitcode: -9\) local_rank: (\d+)",
            "a training process was killed (SIGKILL, local rank {0}), mostly since its node's "
            "memory ran out",
            MORE_MEMORY,
        ),
    ),
    *_signs(
        Weight.CRASH,
        Kind.EXCEPTION,
        (
            r"failed \(exitcode: -11\)|Fatal Python error: Segment|task[s \d,-]+: Segmentation",
            "a training process crashed (segmentation fault)",
            "compiled code failed: compare the environment with its pins; if the same one trained "
            "before, keep away from this node (bad_nodes)",
        ),
        (
            r"failed \(exitcode: -7\)|Fatal Python error: Bus error|task[s \d,-]+: Bus error",
            "a training process crashed (bus error): /dev/shm ran full, or a file that is mapped "
            "into memory went away",
            "use fewer dataloader workers (dataloader_num_workers: 0); leave tokens and models "
            "alone while they are read",
        ),
        (
            r"failed \(exitcode: -4\)|: Illegal instruction|Exec format error",
            "a program is not made for the nodes' processors",
            f"build the environment on such a node {ENVIRONMENTS}",
        ),
    ),
    *_signs(
        Weight.NETWORK,
        Kind.COMMUNICATION,
        (
            r"EADDRINUSE|[aA]ddress already in use",
            "the port of the rendezvous is taken",
            f"{AGAIN}: another job has another port",
        ),
        (
            r"Got completion from peer.*?(?:status=|with error )(\w+)|(IBV_WC_RETRY_EXC_ERR)"
            r"|Got async event ?: (?!.*GID)(.+)|async fatal event on QP.*?: (.+)|(ibv_\w+ failed)",
            "the network between nodes fails (InfiniBand: {0})",
            f"{ELSEWHERE}; if it happens again, raise NCCL_IB_TIMEOUT",
        ),
    ),
    *_signs(
        Weight.TIMED_OUT,
        Kind.COMMUNICATION,
        (
            r"collective operation timeout: WorkNCCL\(.*?OpType=(\w+).*?ran for (\d+) millisec",
            "ranks waited for each other in vain ({0}, {1} ms)",
            f"{AGAIN}; if it happens at the same step again, one rank does other work than the "
            "rest",
        ),
        (r"Heartbeat monitor timed out|watchdog got stuck", "NCCL made no progress", AGAIN),
        (
            r"(RendezvousTimeoutError|waiting for clients\. \d+/\d+ clients joined"
            r"|client socket has (?:timed out|failed to connect)(?:.*? to \([^)]*\))?"
            r"|Name or service not known|No route to host|wait timeout after \d+ ?ms)",
            "not all nodes found each other ({0})",
            f"{AGAIN}; if it happens again, try the other rendezvous, or master_suffix, {PROFILE}",
        ),
        (
            r"(nccl(?:System|Internal|Remote|UnhandledCuda)Error)|NCCL error",
            "communication between GPUs failed ({0})",
            f"{AGAIN}; NCCL_DEBUG: WARN among variables {PROFILE} tells more",
        ),
        (
            r"(connectFullMesh failed|Timed out waiting \d+ms for \w+ operation)",
            "communication between processes failed (Gloo: {0})",
            AGAIN,
        ),
    ),
    *_signs(
        Weight.LOST_PEER,
        Kind.COMMUNICATION,
        (
            r"(Connection closed by (?:remote )?peer|Connection reset by peer|[bB]roken pipe"
            r"|Connection refused|RendezvousConnectionError|RendezvousClosedError"
            r"|DistNetworkError|DistStoreError)",
            "the connection to another process broke ({0}), and no process says why",
            AGAIN,
        ),
    ),
    *_signs(
        Weight.ABORT,
        Kind.EXCEPTION,
        (
            r"failed \(exitcode: -6\)|Fatal Python error: Aborted|terminate called|: Aborted",
            "a training process gave up (SIGABRT)",
            "read the lines before it in the log",
        ),
    ),
    *_signs(
        Weight.ABORT,
        Kind.KILLED,
        (r"^KeyboardInterrupt", "the training was interrupted (SIGINT)", AGAIN),
    ),
    *_signs(
        Weight.SHELL,
        Kind.FAILED_START,
        (
            r"(EnvironmentLocationNotFound|EnvironmentNameNotFound|Could not find conda environment"
            r"|Run 'conda init' before|(?:activate|conda\.sh): No such file or directory)",
            "the trainer's environment could not be entered ({0})",
            f"correct its line under environments {PROFILE} {ENVIRONMENTS}",
        ),
        (
            r"module\(s\) are unknown:? ?(.*)|Unable to locate a modulefile for (.+)",
            "the site has no such module ({0})",
            f"correct setup {PROFILE}",
        ),
        (
            r"srun: error: (Unable to create step .*|.*configuration is not available.*)",
            "Slurm refused to start the training inside of the job ({0})",
            f"correct srun_options or sbatch_options {PROFILE}",
        ),
        (
            r"line \d+: (.+): (command not found|not found|No such file or directory"
            r"|unbound variable|Permission denied)|execve\(\): (.+): (\S.*)",
            "launch.sh stopped ({0}: {1})",
            f"correct setup, environments or variables {PROFILE}",
        ),
        (
            r"(\S+) cannot read (\S+): it has to lie",
            "{1} cannot be read on {0}",
            "let this repository, its environment and the results lie where compute nodes see them",
        ),
    ),
    *_signs(
        Weight.FORCED,
        Kind.KILLED,
        (
            r"srun: error: (\S+): tasks? [\d,-]+: Killed",
            "the training on {0} was killed (SIGKILL)",
            MORE_MEMORY,
        ),
        (
            r"\*\*\* STEP \S+ ON \S+ CANCELLED AT|Received 15 death signal",
            f"the training was told to stop (SIGTERM){GRACE}",
            AGAIN,
        ),
    ),
]
[UNKNOWN] = _signs(
    Weight.EXCEPTION,
    Kind.EXCEPTION,
    (r"(.+)", "{0}", f"the same run would end so again: correct the cause, then {RESUME}"),
)

# Lines that say nothing of a cause: summaries, consequences, and what looks bad and is not.
NOISE = re.compile(
    "|".join(
        (
            r"NCCL INFO|opCount|shm_broadcast|shared memory broadcast block",
            r"The IPv[46] network addresses of|resource_tracker|destroy_process_group\(\)",
            r"has NOT been destroyed",
            r"^srun: (?:launch/slurm|Job step aborted|Terminating|Force Terminated|got SIG)",
            r"^srun: (?:forcing|Warning|job \d+)",
            r"^srun: error: \S+: tasks? [\d,-]+: (?:Exited with|Terminated)",
            r"ChildFailedError|SignalException|got signal: 15|RendezvousGracefulExit",
            r"^[WI]\d{4} .*closing signal|failed \(exitcode: (?:-15|\d+)\)",
            r"^\s*[-=*]{10,}$| FAILED$|^Failures:|NO_OTHER_FAILURES|Root Cause|^\[\d+\]:$",
            r"^\s*(?:time|host|rank|exitcode|error_file|traceback)\s*: ",
            r"^frame #\d+|^Exception raised from|<omitting python frames>",
            r"kernel errors might be|For debugging consider|TORCH_USE_CUDA_DSA|Search for `cuda",
            r"Setting OMP_NUM_THREADS|application as needed|^\s*[\^~]+$|\d+%\|",
            r"most recent call (?:first|last)\):|^ +File \"",
            r"^The above exception was|^During handling of the above",
        )
    )
)

SUPERVISOR = "[sft "  # how lines of sft.attempt begin; it may tell of earlier endings

_LABEL = re.compile(r" *(\d+): ?")  # srun --label
_RANK = re.compile(r"\[rank(\d+)\]: ?")
_BAR = re.compile(r"^.*?\d+%\|[^\[]*\[[^\]]*\]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LOSS = re.compile(r"\{'loss': ")
_BEGINS = "Traceback (most recent call last):"
_CHAINED = ("The above exception was the direct", "During handling of the above", "Original Trace")
_EXCEPTION = re.compile(
    r"(?:(?:[A-Za-z_]\w*\.)*[A-Z]\w*|(?:\w+\.)+[a-z]*(?:error|timeout))(?:: |:?$)"
)
_LIBRARY = re.compile(r'File "(?:[^"]*/(?:site-packages|dist-packages|lib/python3[^/]*|bin)/|<)')
_STACK = re.compile(r"^Current thread .*most recent call first")
_CANCELLED = re.compile(
    r"\*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED AT \S+"
    r"(?: DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE|JOB REQUEUE))?"
)
_NODE_FAILURE = re.compile(r"srun: error: Node failure on (\S+)")
_LISTENS = re.compile(r"([\w.-]+):\d+:\d+ .*NCCL INFO Bootstrap.*?:([\d.]+)<")
_PEER = re.compile(r"(?:peer|from|to) ([\w.:-]+)<\d+>")
_OWN_FAULT = re.compile(r"ibv_\w+ failed|Got async event|async fatal event")

# What the words of Slurm mean. FAILED and COMPLETED say no more than the exit code.
SLURM_WORDS = {
    **{"TIMEOUT": Kind.TIMEOUT, "TIME LIMIT": Kind.TIMEOUT},
    **{"PREEMPTED": Kind.PREEMPTED, "PREEMPTION": Kind.PREEMPTED, "JOB REQUEUE": Kind.PREEMPTED},
    **{"NODE_FAIL": Kind.NODE_FAIL, "NODE FAILURE": Kind.NODE_FAIL, "BOOT_FAIL": Kind.NODE_FAIL},
    **{"OUT_OF_MEMORY": Kind.OUT_OF_MEMORY},
    **{"CANCELLED": Kind.CANCELLED, "DEADLINE": Kind.CANCELLED, "REVOKED": Kind.CANCELLED},
}


@dataclass(frozen=True)
class Line:
    """A line of a log without labels and progress bars, and the task and rank that it is of."""

    text: str
    task: int | None = None
    rank: int | None = None

    @property
    def process(self) -> tuple[int | None, int | None]:
        """What tells its process from others, as far as the log does."""
        return self.task, self.rank


@dataclass(frozen=True)
class Failure:
    """An exception that ended a process.

    `causes` are the last lines of the exceptions that led to it, `details` what follows its own,
    `frames` where it was raised: the innermost place outside of installed packages, and the
    innermost of all. `place` is the number of its line in what was read.
    """

    line: Line
    causes: tuple[str, ...]
    frames: tuple[str, ...]
    details: tuple[str, ...]
    place: int

    @property
    def texts(self) -> tuple[str, ...]:
        """What says of which class it is."""
        return (*self.causes, self.line.text, *self.details)

    @property
    def shown(self) -> tuple[str, ...]:
        """What is worth showing of it."""
        return (*self.causes[:2], self.line.text, *self.details, *self.frames)


@dataclass(frozen=True)
class _Found:
    """A line or failure of a known class."""

    sign: Sign
    match: re.Match[str]
    line: Line
    place: int
    failure: Failure | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it says."""
        return self.failure.texts if self.failure else (self.line.text,)

    @property
    def order(self) -> tuple[int, bool, int]:
        return self.sign.weight, self.failure is None, self.place


@dataclass(frozen=True)
class _Log:
    """What was read of a log: its lines since the last signs of progress.

    `begun` tells whether steps were made, `addresses` which node said to have which.
    """

    lines: tuple[Line, ...]
    nodes: tuple[str, ...]
    begun: bool
    addresses: Mapping[str, str]

    @cached_property
    def _failures_and_rest(self) -> tuple[list[Failure], list[tuple[int, Line]]]:
        failures, inside = _read_tracebacks(self.lines)
        rest = [pair for pair in enumerate(self.lines) if pair[0] not in inside]
        return failures, [(place, line) for place, line in rest if not NOISE.search(line.text)]

    @cached_property
    def found(self) -> tuple[_Found, ...]:
        """All of it that is of a known class, the best explanation first."""
        failures, rest = self._failures_and_rest
        found = [_classify_failure(each) for each in failures]
        for place, line in rest:
            if not line.text.startswith(SUPERVISOR):
                found += _classify_line(line, place)
        if self.begun:
            found = [each for each in found if each.sign.weight is not Weight.SHELL]
        return tuple(sorted(found, key=lambda each: each.order))

    def of_kind(self, kind: Kind) -> list[_Found]:
        """All that is of a kind, in the order of `found`."""
        return [each for each in self.found if each.sign.kind is kind]

    def writer(self, line: Line) -> str | None:
        """The node whose task wrote a line; None where the log does not tell."""
        if line.task is not None:
            return self.nodes[line.task]
        return self.nodes[0] if len(self.nodes) == 1 else None

    def concerned(self, line: Line) -> str | None:
        """The one node that a line names, or the one that wrote it where it names none."""
        words = {_short(word) for word in re.findall(r"[\w.-]+", line.text)}
        named = [node for node in self.nodes if _short(node) in words]
        return named[0] if len(named) == 1 else None if named else self.writer(line)

    def node_at(self, address: str) -> str | None:
        """The node that a name or an address in a line of NCCL's stands for."""
        name = _short(self.addresses.get(address, address))
        return next((node for node in self.nodes if _short(node) == name), None)

    def last(self) -> tuple[str, ...]:
        """The last lines that are neither noise nor a traceback."""
        return _shown(line.text for _, line in self._failures_and_rest[1][-5:])


def judge_ending(
    *,
    slurm_state: str | None,
    exit_code: int | None,
    log: str,
    steps: Sequence[Mapping[str, Any]],
    nodes: Sequence[str],
    cause: Kind | None,
    complete: bool,
    seconds: float,
    failed_nodes: Sequence[str],
) -> Ending:
    """How an attempt ended.

    `slurm_state` is a state as squeue or sacct write it, None where nothing is known of the job;
    `exit_code` a shell's or, below 0, the number of the signal; `steps` the events that this
    attempt wrote to steps.jsonl; `nodes` the job's nodes in the order of srun's tasks; `cause`
    what its supervisor did; `seconds` how long it lasted; `failed_nodes` those that Slurm names.
    """
    read = _read_log(log, nodes)
    read = replace(read, begun=read.begun or any(each["event"] != "begin" for each in steps))
    where = _where(steps, read.begun)
    stop = next((each["reason"] for each in reversed(steps) if each["event"] == "stop"), None)
    if complete:
        return Ending(Kind.COMPLETED, f"complete {where}")
    if stop in ("job_end", "diverged"):
        return _end_by_trainer(stop, where)
    if cause:
        return _end_by_supervisor(cause, read, where, seconds)
    if kind := _slurm_word(slurm_state) or _word_in_log(read):
        return _end_by_slurm(kind, slurm_state or "", read, steps, where, failed_nodes)
    if stop:
        text = f"told to stop {where} (SIGTERM){GRACE}; {AGAIN}"
        return Ending(Kind.KILLED, text)
    if read.found:
        return _explain(read, where)
    return _end_by_exit(slurm_state, exit_code, read, where, seconds)


def first_error(log: str, nodes: Sequence[str] = ()) -> Failure | None:
    """The exception that explains most of a log; None where no process shows one.

    Where several ranks failed, those that only lost a peer come last.
    """
    found = _read_log(log, nodes).found
    return next((each.failure for each in found if each.failure), None)


# --- reading a log -------------------------------------------------------------------------------


def _read_log(log: str, nodes: Sequence[str]) -> _Log:
    """What a log says since its last signs of progress: what came before did no harm.

    Progress are steps that were logged. A progress bar is none: `srun --label` holds it back until
    its line ends. Another process may be one step ahead, so the last logged steps do not count.
    """
    lines = [line for text in log.split("\n") for line in _read_line(text, len(nodes))]
    said = [_LISTENS.search(line.text) for line in lines if "NCCL INFO Bootstrap" in line.text]
    addresses = {match[2]: match[1] for match in said if match}
    logged = [place for place, line in enumerate(lines) if _LOSS.search(line.text)]
    start = logged[-3] if len(logged) > 2 else 0
    return _Log(tuple(lines[start:]), tuple(nodes), bool(logged), addresses)


def _read_line(text: str, tasks: int) -> list[Line]:
    """The lines that one line of a file holds: progress bars write over themselves."""
    task = None
    if (label := _LABEL.match(text)) and int(label[1]) < tasks:
        task, text = int(label[1]), text[label.end() :]
    lines = []
    for piece in text.split("\r"):
        piece = _BAR.sub("", _COLOUR.sub("", piece))
        rank = _RANK.match(piece)
        piece = piece[rank.end() :] if rank else piece
        if piece.strip():
            lines.append(Line(piece.rstrip(), task, int(rank[1]) if rank else None))
    return lines


def _read_tracebacks(lines: Sequence[Line]) -> tuple[list[Failure], set[int]]:
    """The failures of all processes but launchers, and the places of the lines that they fill."""
    ended: dict[tuple, list[Failure]] = defaultdict(list)
    frames: dict[tuple, list[str]] = {}
    chained: set[tuple] = set()
    inside = set()
    for place, line in enumerate(lines):
        process = line.process
        if line.text.startswith(_CHAINED):
            chained.add(process)
        if _BEGINS in line.text:
            frames[process] = []
        elif process not in frames:
            continue
        elif line.text.startswith(" "):
            frames[process].append(line.text.strip())
        elif _EXCEPTION.match(line.text):
            before = ended[process].pop() if process in chained and ended[process] else None
            ended[process].append(_failure(lines, place, frames.pop(process), before))
            chained.discard(process)
        else:
            continue
        inside.add(place)
    failures = sorted(itertools.chain(*ended.values()), key=lambda each: each.place)
    return [each for each in failures if not NOISE.search(each.line.text)], inside


def _failure(
    lines: Sequence[Line], place: int, frames: Sequence[str], before: Failure | None
) -> Failure:
    places = [
        f"{text}: {code}" if not code.startswith("File ") else text
        for text, code in itertools.pairwise([*frames, "File "])
        if text.startswith("File ")
    ]
    own = [text for text in places if not _LIBRARY.match(text)]
    return Failure(
        line=lines[place],
        causes=(*before.causes, before.line.text) if before else (),
        frames=tuple(dict.fromkeys([*own[-1:], *places[-1:]])),
        details=_details(lines, place),
        place=place,
    )


def _details(lines: Sequence[Line], place: int) -> tuple[str, ...]:
    """What the same process says right after the line of an error, such as NCCL's last error."""
    after = _following(lines, place)[:3]
    return tuple(itertools.takewhile(lambda text: not NOISE.search(text), after))


def _following(lines: Sequence[Line], place: int) -> list[str]:
    """The next lines of the process that wrote the line at `place`."""
    near = lines[place + 1 : place + 40]
    return [line.text for line in near if line.process == lines[place].process]


def _classify_failure(failure: Failure) -> _Found:
    for sign in SIGNS:
        for text in failure.texts:
            if match := sign.pattern.search(text):
                return _Found(sign, match, failure.line, failure.place, failure)
    match = UNKNOWN.pattern.search(failure.line.text)
    return _Found(UNKNOWN, match, failure.line, failure.place, failure)


def _classify_line(line: Line, place: int) -> list[_Found]:
    for sign in SIGNS:
        if match := sign.pattern.search(line.text):
            return [_Found(sign, match, line, place)]
    return []


# --- judging -------------------------------------------------------------------------------------


def _end_by_trainer(reason: str, where: str) -> Ending:
    if reason == "job_end":
        text = f"stopped by itself {where} before the job's end, with a checkpoint; {AGAIN}"
        return Ending(Kind.OUT_OF_TIME, text)
    return Ending(
        Kind.DIVERGED,
        f"loss or gradients were not finite {where}, and nothing of that state was saved: lower "
        "learning_rate, or look at max_grad_norm and the data, then start the workflow again",
    )


def _end_by_supervisor(cause: Kind, read: _Log, where: str, seconds: float) -> Ending:
    if cause is not Kind.STUCK:
        text = f"stopped on purpose {where}: start the workflow again to go on from the newest "
        return Ending(cause, f"{text}checkpoint")
    if not read.lines:
        text = f"no line of a log in {_lasting(seconds)}: a node hangs before it starts the job"
        return Ending(cause, f"{text} (its prolog); {AGAIN}", blamed=_only(read.nodes))
    # What follows are the traces of its being ended.
    first = next((each for each in read.found if each.sign.weight <= Weight.EXCEPTION), None)
    shown = f"; the log shows: {_what(first)}" if first else ""
    return Ending(
        cause,
        f"no progress {where}, ended after {_lasting(seconds)}{shown}; {AGAIN}",
        _shown([*_stacks(read), *(_telling(read) if first else read.last())]),
        _blamed(read.of_kind(Kind.HARDWARE), read),
    )


UNSAVED = "no checkpoint was saved in this job: save more often, or ask for a longer wall time"


def _end_by_slurm(
    kind: Kind,
    state: str,
    read: _Log,
    steps: Sequence[Mapping[str, Any]],
    where: str,
    failed_nodes: Sequence[str],
) -> Ending:
    words = [line.text for line in read.lines if _word_in_line(line.text)]
    if kind is Kind.NODE_FAIL:
        return _end_by_node(read, where, failed_nodes, words)
    if kind is Kind.OUT_OF_MEMORY:
        text = f"{HOST_MEMORY.what} ({where}): {HOST_MEMORY.remedy}"
        return Ending(kind, text, _shown(each.line.text for each in read.of_kind(kind)))
    if kind is Kind.PREEMPTED:
        text = f"Slurm gave the nodes to another job {where}; {AGAIN}"
        return Ending(kind, text, _shown(words))
    earlier = next((each for each in read.found if each.sign.weight <= Weight.CRASH), None)
    shown = f"; before that the log shows: {_what(earlier)}" if earlier else ""
    lines = _shown([*words[:1], *(_telling(read) if earlier else ())])
    if kind is Kind.TIMEOUT:
        saved = max((each["step"] for each in steps if each["event"] == "save"), default=None)
        then = f"the next job goes on from step {saved}" if saved else UNSAVED
        return Ending(kind, f"Slurm ended the job at its time limit {where}; {then}{shown}", lines)
    return Ending(kind, f"{_who_cancelled(state)} {where}{shown}: {RESUME}", lines)


def _who_cancelled(state: str) -> str:
    if state.startswith("DEADLINE"):
        return "Slurm gave the job up at its --deadline"
    if match := re.match(r"CANCELLED by (\d+)", state):
        staff = " (root, so the site's staff as a rule)" if match[1] == "0" else ""
        return f"cancelled by user {match[1]}{staff}"
    return "cancelled"


def _end_by_node(
    read: _Log, where: str, failed_nodes: Sequence[str], words: Sequence[str]
) -> Ending:
    seen = [match[1] for text in words if (match := _NODE_FAILURE.search(text))]
    failed = list(dict.fromkeys(failed_nodes or seen))
    nodes = f"{', '.join(failed)} failed" if failed else "a node of the job failed"
    text = f"{nodes} {where}; {ELSEWHERE}"
    return Ending(Kind.NODE_FAIL, text, _shown(words), _only(failed))


def _explain(read: _Log, where: str) -> Ending:
    """The ending that the log explains."""
    first = read.found[0]
    sign = first.sign
    if sign is NO_GPU and len(read.nodes) > 1 and _is_everywhere(sign, read):
        sign = NO_GPU_AT_ALL
    kind = sign.kind
    if kind in (Kind.FAILED_START, Kind.EXCEPTION):
        kind = Kind.EXCEPTION if read.begun else Kind.FAILED_START
    place = ", ".join([*_who(first, read), where])
    text = f"{_what(replace(first, sign=sign))} ({place}): {sign.remedy}"
    return Ending(kind, text, _telling(read), _blamed(read.of_kind(sign.kind), read))


def _is_everywhere(sign: Sign, read: _Log) -> bool:
    writers = {read.writer(each.line) for each in read.found if each.sign is sign}
    return writers == set(read.nodes)


def _end_by_exit(
    state: str | None, exit_code: int | None, read: _Log, where: str, seconds: float
) -> Ending:
    if exit_code is None and (state or "").startswith("FAILED"):
        exit_code = 1
    if exit_code is None:
        text = f"nothing is known of how it ended {where} after {_lasting(seconds)}; {AGAIN}"
        return Ending(Kind.LOST, text, read.last())
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number == 53 and not read.lines:
        return Ending(
            Kind.QUOTA,
            f"ended after {_lasting(seconds)} with signal 53 and no log: Slurm could not make the "
            "log's file: look at space and number of files (quota) where the results lie; if a "
            "job of `sbatch --wrap hostname` ends so too, it is for the site's staff",
        )
    if exit_code == 0:
        text = f"ended {where} without a fault, yet its last step was not made; {AGAIN}"
        return Ending(Kind.LOST, text, read.last())
    if number in (9, 15):
        text = f"killed by signal {number} {where}, and nothing says by whom; {AGAIN}"
        return Ending(Kind.KILLED, text, read.last())
    kind = Kind.EXCEPTION if read.begun else Kind.FAILED_START
    how = f"signal {number}" if number > 0 else f"exit code {exit_code}"
    seen = "the log does not say why" if read.lines else "there is no line in its log"
    text = f"ended {where} after {_lasting(seconds)} with {how}, and {seen}: {UNKNOWN.remedy}"
    return Ending(kind, text, read.last())


def _slurm_word(state: str | None) -> Kind | None:
    return SLURM_WORDS.get(state.split()[0].rstrip("+")) if state else None


def _word_in_log(read: _Log) -> Kind | None:
    """What Slurm's daemons wrote into the log of why they ended the job."""
    words = (_word_in_line(line.text) for line in read.lines)
    return next((word for word in words if word), None)


def _word_in_line(text: str) -> Kind | None:
    """The word in a line of Slurm's. That a step is cancelled it writes whatever ended the step."""
    if _NODE_FAILURE.search(text):
        return Kind.NODE_FAIL
    match = _CANCELLED.search(text)
    if match and (match[2] or match[1] == "JOB"):
        return SLURM_WORDS[match[2] or "CANCELLED"]
    return None


def _blamed(found: Sequence[_Found], read: _Log) -> tuple[str, ...]:
    """The node that is the cause, if it is one alone."""
    if not found or found[0].sign.kind not in (Kind.HARDWARE, Kind.NODE_FAIL, Kind.COMMUNICATION):
        return ()
    if found[0].sign.kind is Kind.COMMUNICATION:
        weight = found[0].sign.weight  # ranks that lost such a peer say so of each other
        return _faulty_peer([each for each in found if each.sign.weight is weight], read)
    return _only({read.concerned(each.line) for each in found})


def _faulty_peer(found: Sequence[_Found], read: _Log) -> tuple[str, ...]:
    """The node that all others lost, or the only one whose own network fails."""
    texts = [text for each in found for text in each.texts]
    peers = {match[1] for text in texts if (match := _PEER.search(text))}
    if peers:
        return _only({read.node_at(peer) for peer in peers})
    return _only({read.writer(each.line) for each in found if _OWN_FAULT.search(each.line.text)})


def _only(nodes: Iterable[str | None]) -> tuple[str, ...]:
    """The node, if there is one alone and it is known."""
    known = set(nodes)
    return tuple(known) if len(known) == 1 and None not in known else ()


# --- saying it -----------------------------------------------------------------------------------


def _where(steps: Sequence[Mapping[str, Any]], begun: bool) -> str:
    if not begun:
        return "before its first step"
    if not steps:
        return "in training"
    return f"after step {max(each['step'] for each in steps)} of {steps[-1]['max_steps']}"


def _who(found: _Found, read: _Log) -> list[str]:
    """The rank and node that a line comes from, as far as it is known."""
    rank = [] if found.line.rank is None else [f"rank {found.line.rank}"]
    node = read.writer(found.line)
    return [" on ".join([*rank, *([node] if node else [])])] if rank or node else []


def _what(found: _Found) -> str:
    """What happened, with what the line says of it."""
    said = [group for group in found.match.groups() if group] or [found.match[0]]
    return found.sign.what.format(*(_cut(text.strip(), 200) for text in said), "")


def _telling(read: _Log) -> tuple[str, ...]:
    """The lines that say why: the first error of all, and others of its kind."""
    first = read.found[0]
    alike = [each for each in read.found[1:] if each.sign is first.sign]
    own = first.failure.shown if first.failure else first.texts
    more = []
    if first.sign.weight in (Weight.CRASH, Weight.ABORT):
        more = [*_stacks(read), *read.last()]
    return _shown([*own, *(each.line.text for each in alike[:3]), *more])


def _stacks(read: _Log) -> list[str]:
    """Where processes were, by the stacks that faulthandler writes, each place with its count."""
    stacks = [place for place, line in enumerate(read.lines) if _STACK.match(line.text)]
    places = Counter(text for stack in stacks for text in _following(read.lines, stack)[:1])
    return [f"{count} × {place.strip()}" for place, count in places.most_common(4)]


def _shown(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_cut(line, WIDTH) for line in lines))[:SHOWN]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _short(node: str) -> str:
    return node.split(".")[0]


def _lasting(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

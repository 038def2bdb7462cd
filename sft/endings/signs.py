"""The table of signs: what lines of a log mean, and what to do about it.

The forms of lines are those of torch 2.4 to 2.13, NCCL 2.14 to 2.28 and Slurm 22.05 to 24.05; the
numbers of fatal Xids are from NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors).
"""

import re
from dataclasses import dataclass, replace
from enum import IntEnum

from sft.endings.ending import Kind


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

NO_GPU = Sign(
    Weight.NODE,
    Kind.HARDWARE,
    re.compile(r"no CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver"),
    "a node shows no GPU to the training",
    ELSEWHERE,
)
NO_GPU_AT_ALL = replace(
    NO_GPU,
    kind=Kind.FAILED_START,
    what="no node of the job shows a GPU to the training",
    remedy=f"correct how GPUs are asked for {PROFILE} (gpu_request, sbatch_options, srun_options)",
)
HOST_MEMORY = Sign(
    Weight.RESOURCE,
    Kind.OUT_OF_MEMORY,
    re.compile(
        r"\boom[-_]kill|task[s \d,-]+: Out Of Memory|killed by signal: Killed|^MemoryError"
        r"|can't allocate memory|Cannot allocate memory|std::bad_alloc"
    ),
    "a node's memory ran out (not that of its GPUs)",
    f"ask for more (mem_mb of the rule train {PROFILE}), use fewer dataloader workers, or do "
    "without offload to the CPU",
)
UNKNOWN = Sign(
    Weight.EXCEPTION,
    Kind.EXCEPTION,
    re.compile(r"(.+)"),
    "{0}",
    f"the same run would end so again: correct the cause, then {RESUME}",
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
            r"(?<!\S)(\S+): no tokens there",
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
            r"(?<!\S)(\S+\.so[.\d]*): cannot open shared object|version `(\S+)' not found"
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
            r"(?<!\S)(\S+) cannot read (\S+): it has to lie",
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
# In lower case: each line that a sign knows holds one of these, and few other lines do. To look for
# each sign in each line of a long start takes many seconds.
HINTS = (
    *("error", "fail", "no ", "not known", "not found", "not yet", "not installed", "not used"),
    *("not a valid", "not configured", "could not", "cannot", "n't ", "notfound", "invalid"),
    *("unable to determine", "unable to locate", "unknown", "undefined", "unbound", "unexpected"),
    *("unsupported", "insufficient", "compatib", "too long", "too old", "denied", "refused"),
    *("exceeded", "already", "available", "ran out", "memory", "oom", "alloc", "xid", "is lost"),
    *("fallen", "cudamis", "nvlink", "ibv_", "async", "signal", "cancelled", "abort", "terminate"),
    *("interrupt", "segm", "illegal", "assert", "peer", "pipe", "timed out", "timeout", "watchdog"),
    *("clients", "eaddr", "pthread", "execve", "conda init", "world size of", "found each"),
    *("toggled", "jit load", "offline", "repo id", "deserializ", "mha_graph"),
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
            r"most recent call (?:first|last)\):|^ +File \"|^ +Garbage-collecting",
            r"^Extension modules: |(?:, [\w.]+){8}",  # srun breaks such a line in several
            r"^The above exception was|^During handling of the above",
        )
    )
)

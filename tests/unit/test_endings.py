"""How attempts ended, by true excerpts of logs and by what Slurm says.

tests/data/logs holds the longer excerpts. Those of torch, LLaMA-Factory and Slurm on CPU were made
by failing on purpose and trimmed; of what needs GPUs or a network between nodes they have the form
that the named thread shows, with hosts, paths and numbers of our own.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sft.endings import RETRIED, SHOWN, SIGNS, WIDTH, Ending, Kind, first_error, judge_ending

LOGS = Path(__file__).parents[1] / "data" / "logs"
TWO = ("lrdn0417", "lrdn0418")
HERE_TORCH = "torchrun of torch 2.13 on CPU"
HERE_SLURM = "srun --label of Slurm 22.05"
HERE_TRAINER = "LLaMA-Factory 0.9.5 on CPU"
SITES = "reports of the three sites"


def read(name: str) -> str:
    return (LOGS / f"{name}.log").read_bytes().decode()


def event(name: str, step: int, **more: Any) -> dict[str, Any]:
    return {"time": 1e9 + step, "event": name, "step": step, "max_steps": 704, **more}


IN_TRAINING = (event("begin", 60, world_size=8), event("log", 120, loss=0.7))


def judge(log: str = "", **told: Any) -> Ending:
    """The ending of an attempt of two nodes, of which only what is given is known."""
    known = {
        **{"slurm_state": None, "exit_code": 1, "log": log, "steps": (), "nodes": TWO},
        **{"cause": None, "complete": False, "seconds": 480.0, "failed_nodes": ()},
    }
    return judge_ending(**(known | told))


@dataclass(frozen=True)
class Case:
    """A log, in a file of its name or in `log`, what it is taken for, and where it is from."""

    name: str
    kind: Kind
    telling: str
    source: str
    log: str = ""
    nodes: tuple[str, ...] = TWO
    blamed: tuple[str, ...] = ()
    remedy: str = ""


CASES = (
    # Python exceptions
    Case("raise_on_one_rank", Kind.EXCEPTION, "KeyError: 'input_ids'", HERE_SLURM),
    Case("rendezvous_at_the_tail", Kind.EXCEPTION, "FileNotFoundError", "trap 69, wespeaker#171"),
    Case("module_missing", Kind.FAILED_START, "No module named 'nothing_of_", HERE_TORCH),
    Case("wrong_value", Kind.FAILED_START, "nonsense is not a valid Sched", HERE_TRAINER),
    Case("unknown_key", Kind.FAILED_START, "['lerning_rate']", HERE_TRAINER, remedy="base config"),
    Case("no_tokens", Kind.FAILED_START, "no tokens there", HERE_TRAINER, remedy="again"),
    Case("no_model", Kind.FAILED_START, "Repo id must be", HERE_TRAINER, remedy="model_name_or"),
    Case(
        "too_few_processes",
        Kind.FAILED_START,
        "1 training processes found each other, expected 8",
        HERE_TRAINER,
        "0: RuntimeError: 1 training processes found each other, expected 8",
        remedy="gpus_per_node",
    ),
    Case(
        "flash_attention_missing",
        Kind.FAILED_START,
        "FlashAttention2",
        "trap 31",
        "0: ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the "
        "following error: the package flash_attn seems to be not installed.",
        remedy="attn: sdpa",
    ),
    Case(
        "other_number_of_processes",
        Kind.FAILED_START,
        "DP world size of 32",
        "DeepSpeed#3810",
        "0: deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a "
        "DP world size of 32 but the current world size is 64. Automatic adjustment of ZeRO's "
        "optimizer state partitioning with a new world size is not currently supported.",
        remedy="number of nodes of before",
    ),
    Case(
        "wandb_without_network",
        Kind.FAILED_START,
        "wandb.errors.errors.CommError",
        "wandb#9865",
        "0: wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.",
        remedy="wandb_mode",
    ),
    Case(
        "long_socket_path",
        Kind.FAILED_START,
        "AF_UNIX path too long",
        "returnn#1571",
        "0: OSError: AF_UNIX path too long",
        remedy="TMPDIR",
    ),
    Case(
        "extension_not_built",
        Kind.FAILED_START,
        "cpu_adam",
        "trap 36",
        "0: RuntimeError: Error building extension 'cpu_adam'",
        remedy="CC, CXX",
    ),
    Case(
        "library_missing",
        Kind.FAILED_START,
        "libcudart.so.12",
        "vllm#31018",
        "0: ImportError: libcudart.so.12: cannot open shared object file: No such file",
        remedy="setup",
    ),
    Case(
        "cudnn_attention",
        Kind.FAILED_START,
        "mha_graph->execute",
        "trap 32",
        "0: RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support "
        "the graph. mha_graph->execute(handle, variant_pack, workspace_ptr.get()).is_good()",
        remedy="TORCH_CUDNN_SDPA_ENABLED",
    ),
    Case(
        "permission",
        Kind.FAILED_START,
        "[Errno 13]",
        SITES,
        "0: PermissionError: [Errno 13] Permission denied: '/data/shared/hf/hub/.locks'",
        remedy="who owns it",
    ),
    Case("illegal_access", Kind.EXCEPTION, "an illegal memory access", "trap 37"),
    # Memory and disks
    Case(
        "cuda_out_of_memory",
        Kind.CUDA_OUT_OF_MEMORY,
        "Tried to allocate 10.08 GiB",
        "LlamaFactory#4559",
    ),
    Case(
        "nccl_without_gpu_memory",
        Kind.CUDA_OUT_OF_MEMORY,
        "out of memory",
        "pytorch#111187",
        "0: lrdn0417:534:1763 [3] enqueue.cc:1556 NCCL WARN Cuda failure 2 'out of memory'\n"
        "0: [rank3]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, "
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3",
        remedy="cutoff_len",
    ),
    Case("host_oom_kill", Kind.OUT_OF_MEMORY, "Detected 1 oom_kill event", "tusas#149"),
    Case(
        "host_oom_kill_of_old_slurm",
        Kind.OUT_OF_MEMORY,
        "oom-kill event(s)",
        "HAFS#101",
        "slurmstepd: error: Detected 1 oom-kill event(s) in step 3495064.0 cgroup. Some of your "
        "processes may have been killed by the cgroup out-of-memory handler.",
    ),
    Case("host_memory", Kind.OUT_OF_MEMORY, "DefaultCPUAllocator", HERE_TORCH, remedy="mem_mb"),
    Case("dataloader_killed", Kind.OUT_OF_MEMORY, "killed by signal: Killed", HERE_TORCH),
    Case("shared_memory", Kind.OUT_OF_MEMORY, "(shm)", HERE_TORCH, remedy="dataloader_num_work"),
    Case(
        "shared_memory_of_nccl",
        Kind.OUT_OF_MEMORY,
        "/dev/shm/nccl-",
        "ci-infra#490",
        "0: lrdn0417:534:1763 [3] misc/shmutils.cc:132 NCCL WARN Error while creating shared "
        "memory segment /dev/shm/nccl-5f0WDd (size 9637888), error: No space left on device (28)",
        remedy="/dev/shm",
    ),
    Case(
        "bus_error_in_dataloader",
        Kind.OUT_OF_MEMORY,
        "Bus error",
        "pytorch#5040",
        "0: RuntimeError: DataLoader worker (pid 27770) is killed by signal: Bus error. It is "
        "possible that dataloader's workers are out of shared memory.",
        remedy="/dev/shm",
    ),
    Case("disk_full_open", Kind.DISK_FULL, "[Errno 28]", HERE_TORCH, remedy="spill_folder"),
    Case("disk_full_torch", Kind.DISK_FULL, "unexpected pos 576 vs 534", HERE_TORCH),
    Case("disk_full_safetensors", Kind.DISK_FULL, "os error 28", HERE_TORCH),
    Case(
        "quota",
        Kind.QUOTA,
        "[Errno 122]",
        SITES,
        "0: OSError: [Errno 122] Disk quota exceeded: '/scratch_fast/checkpoint-100/optimizer.pt'",
        remedy="elsewhere",
    ),
    # Communication
    Case("port_taken", Kind.COMMUNICATION, "EADDRINUSE", HERE_TORCH, remedy="another port"),
    Case("port_of_another", Kind.COMMUNICATION, "Connection reset by peer", HERE_TORCH),
    Case("rendezvous_timeout", Kind.COMMUNICATION, "RendezvousTimeoutError", HERE_TORCH),
    Case("rendezvous_no_client", Kind.COMMUNICATION, "1/2 clients joined", HERE_TORCH),
    Case("rendezvous_no_server", Kind.COMMUNICATION, "client socket has timed out", HERE_TORCH),
    Case("rendezvous_alone", Kind.COMMUNICATION, "RendezvousConnectionError", "pytorch#107021"),
    Case("nccl_watchdog", Kind.COMMUNICATION, "ran for 600061 milliseconds", "LlamaFactory#6269"),
    Case("nccl_remote", Kind.COMMUNICATION, "UNDELIVERABLE", "nccl#1928"),
    Case(
        "nccl_heartbeat",
        Kind.COMMUNICATION,
        "Heartbeat monitor timed out",
        "ProcessGroupNCCL.cpp of torch 2.6",
        "1: [rank5]:[F1102 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 Rank 5] Heartbeat monitor "
        "timed out! Process will be terminated after dumping debug info. workMetaList_.size()=1",
    ),
    Case(
        "infiniband",
        Kind.COMMUNICATION,
        "IBV_WC_RETRY_EXC_ERR(12)",
        "nccl#1405",
        nodes=("c611-011", "c611-012", "c611-013"),
        blamed=("c611-012",),
        remedy="NCCL_IB_TIMEOUT",
    ),
    Case(
        "infiniband_two_peers",
        Kind.COMMUNICATION,
        "IBV_WC_RETRY_EXC_ERR(12)",
        "nccl#1405",
        nodes=("c611-011", "c611-012", "c611-013"),
    ),
    Case(
        "peer_by_name",
        Kind.COMMUNICATION,
        "Connection closed by remote peer",
        "nccl#795",
        "0: misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer lrdn0418.site<478>",
        blamed=("lrdn0418",),
    ),
    Case(
        "own_port_of_one_node",
        Kind.COMMUNICATION,
        "port error",
        "nccl#905",
        "1: lrdn0418:534:1763 [3] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : "
        "port error",
        blamed=("lrdn0418",),
    ),
    Case(
        "gloo_mesh",
        Kind.COMMUNICATION,
        "connectFullMesh failed",
        "occlum#1604",
        "0: RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/"
        "pair.cc:144] no error",
    ),
    # Nodes
    Case("ecc_error", Kind.HARDWARE, "uncorrectable ECC", "vllm#5222", blamed=("lrdn0418",)),
    Case("ecc_error_on_two_nodes", Kind.HARDWARE, "uncorrectable ECC", "vllm#5222"),
    Case(
        "gpu_off_the_bus",
        Kind.HARDWARE,
        "fallen off the bus",
        "NVIDIA's catalogue of Xids",
        "0: NVRM: Xid (PCI:0000:4b:00): 79, pid=812, GPU has fallen off the bus.",
        blamed=("lrdn0417",),
    ),
    Case(
        "device_handle",
        Kind.HARDWARE,
        "Unable to determine the device handle",
        "returnn#1486",
        "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
        nodes=("lrdn0417",),
        blamed=("lrdn0417",),
    ),
    Case(
        "link_between_gpus",
        Kind.HARDWARE,
        "NVLink error",
        "CUDA runtime API, error 220",
        "1: RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        blamed=("lrdn0418",),
    ),
    Case(
        "gpus_not_ready",
        Kind.HARDWARE,
        "system not yet initialized",
        "pytorch#35710",
        "1: RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet "
        "initialized",
        blamed=("lrdn0418",),
    ),
    Case(
        "one_node_without_gpu",
        Kind.HARDWARE,
        "No CUDA GPUs",
        SITES,
        "1: RuntimeError: No CUDA GPUs are available",
        blamed=("lrdn0418",),
    ),
    Case(
        "only_node_without_gpu",
        Kind.HARDWARE,
        "no CUDA-capable device",
        SITES,
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        nodes=("lrdn0417",),
        blamed=("lrdn0417",),
    ),
    Case(
        "all_nodes_without_gpu",
        Kind.FAILED_START,
        "No CUDA GPUs",
        SITES,
        "0: RuntimeError: No CUDA GPUs are available\n1: RuntimeError: No CUDA GPUs are available",
        remedy="gpu_request",
    ),
    Case(
        "file_system_lost",
        Kind.HARDWARE,
        "[Errno 116]",
        "trap 69",
        "1: OSError: [Errno 116] Stale file handle: '/project/tokens/mix/datasets/data-0.arrow'",
        blamed=("lrdn0418",),
    ),
    Case(
        "launch_refused_by_a_node",
        Kind.NODE_FAIL,
        "Task launch for",
        "geopm#1020",
        "srun: error: Task launch for StepId=440575.0 failed on node lrdn0418: Communication "
        "connection failure",
        blamed=("lrdn0418",),
    ),
    # Slurm's own lines, where it says nothing else
    Case("time_limit", Kind.TIMEOUT, "DUE TO TIME LIMIT", HERE_SLURM, remedy="save more often"),
    Case("scancel", Kind.CANCELLED, "*** JOB 5 ON", HERE_SLURM),
    Case("preempted", Kind.PREEMPTED, "DUE TO PREEMPTION", HERE_SLURM),
    Case("preempted_in_grace", Kind.KILLED, "CANCELLED AT", HERE_SLURM),
    Case("node_down", Kind.NODE_FAIL, "Node failure on", HERE_SLURM, blamed=("c601-002",)),
    # Signals and shells
    Case("worker_killed", Kind.KILLED, "exitcode: -9", HERE_SLURM, remedy="memory"),
    Case("told_to_stop", Kind.KILLED, "15 death signal", HERE_TORCH),
    Case("segfault", Kind.FAILED_START, "exitcode: -11", HERE_TORCH, remedy="pins"),
    Case(
        "segfault_without_launcher",
        Kind.FAILED_START,
        "Segmentation fault",
        HERE_SLURM,
        "srun: error: lrdn0418: task 1: Segmentation fault\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=4.4\n"
        "0: slurmstepd: error: *** STEP 4.4 ON lrdn0417 CANCELLED AT 2026-12-01T04:00:52 ***",
    ),
    Case(
        "activation_missing",
        Kind.FAILED_START,
        "bin/activate: No such file",
        HERE_SLURM,
        "srun: error: lrdn0418: task 1: Exited with exit code 1\n"
        "1: launch.sh: line 9: /project/envs/otagent/bin/activate: No such file or directory",
        remedy="environments",
    ),
    Case(
        "conda_environment_missing",
        Kind.FAILED_START,
        "EnvironmentNameNotFound",
        "conda 24",
        "0: EnvironmentNameNotFound: Could not find conda environment: otagent",
        remedy="environments",
    ),
    Case(
        "module_unknown",
        Kind.FAILED_START,
        '"GCC/15.3.0"',
        "Lmod 8.7",
        "0: Lmod has detected the following error:  The following module(s) are unknown: "
        '"GCC/15.3.0"',
        remedy="setup",
    ),
    Case(
        "command_not_found",
        Kind.FAILED_START,
        "module: command not found",
        HERE_SLURM,
        "0: launch.sh: line 8: module: command not found",
        remedy="setup",
    ),
    Case(
        "wrong_processor",
        Kind.FAILED_START,
        "Exec format error",
        HERE_SLURM,
        "0: slurmstepd: error: execve(): /project/envs/x86/bin/python: Exec format error",
        remedy="on such a node",
    ),
    Case(
        "step_not_created",
        Kind.FAILED_START,
        "Unable to create step",
        HERE_SLURM,
        "srun: error: Unable to create step for job 12: More processors requested than permitted",
        remedy="srun_options",
    ),
    Case(
        "repository_out_of_sight",
        Kind.FAILED_START,
        "cannot read",
        "train.sbatch",
        "lrdn0417 cannot read /home/me/python: it has to lie where compute nodes see it",
        remedy="compute nodes see them",
    ),
    # Nothing of this is a cause
    Case("only_noise", Kind.FAILED_START, "", "traps 154 and 155, vllm#27313"),
)


def judge_case(case: Case) -> Ending:
    return judge(case.log or read(case.name), nodes=case.nodes)


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_log_tells_the_kind_of_ending(case):
    assert judge_case(case).kind is case.kind


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_node_is_blamed_where_it_alone_is_the_cause(case):
    assert judge_case(case).blamed == case.blamed


@pytest.mark.parametrize("case", [each for each in CASES if each.telling], ids=by_name)
def test_telling_line_is_shown(case):
    assert any(case.telling in line for line in judge_case(case).lines)


@pytest.mark.parametrize("case", [each for each in CASES if each.remedy], ids=by_name)
def test_remedy_names_what_to_change(case):
    assert case.remedy in judge_case(case).text


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_ending_is_short_and_in_one_line(case):
    ending = judge_case(case)

    assert "\n" not in ending.text
    assert len(ending.lines) <= SHOWN
    assert all(len(line) <= WIDTH for line in ending.lines)


def test_each_file_of_a_log_is_judged():
    judged = {case.name for case in CASES if not case.log} | {"hang"}

    assert {path.stem for path in LOGS.iterdir()} == judged


# The log: which error counts.


def test_error_of_the_first_rank_is_shown_with_its_place():
    ending = judge(read("raise_on_one_rank"), nodes=("jpbo-001-01", "jpbo-001-02"))

    assert "rank 3 on jpbo-001-02" in ending.text
    assert ending.lines == (
        "KeyError: 'input_ids'",
        'File "/project/sft-launch/helper.py", line 4, in inner: return d["input_ids"]',
    )


def test_first_error_is_not_that_of_ranks_that_lost_a_peer():
    failure = first_error(read("raise_on_one_rank"), TWO)

    assert (failure.line.text, failure.line.rank) == ("KeyError: 'input_ids'", 3)


def test_there_is_no_first_error_where_only_the_launcher_raised():
    assert first_error(read("told_to_stop"), TWO) is None


def test_causes_of_an_exception_are_shown_with_it():
    assert judge(read("no_model")).lines[:3] == (
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
        "'namespace/repo_name': '/no/such/model'. Use `repo_type` argument if needed.",
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        "'/no/such/model'. Use `repo_type` argument if needed.",
        "OSError: Failed to load tokenizer.",
    )


def test_own_place_is_shown_before_that_in_a_library():
    assert [line for line in judge(read("unknown_key")).lines if line.startswith("File")] == [
        'File "/project/sft-launch/sft/trainers/llamafactory.py", line 138, in train: '
        "run_exp(arguments, callbacks=[AssertWorldSize(), keeper])",
        'File "/project/envs/otagent/lib/python3.11/site-packages/transformers/hf_argparser.py", '
        'line 383, in parse_dict: raise ValueError(f"Some keys are not used by the '
        'HfArgumentParser: {sorted(unused_keys)}")',
    ]


def test_traceback_without_a_place_is_read():
    assert judge("0: Traceback (most recent call last):\n0: OSError: x\n").lines == ("OSError: x",)


def test_numbers_of_a_full_gpu_are_in_the_sentence():
    text = judge(read("cuda_out_of_memory")).text

    assert "Tried to allocate 10.08 GiB. GPU 1 has a total capacity of 63.41 GiB" in text


LOSS = "0: {'loss': 0.69, 'grad_norm': 0.4}\n"
CAUGHT = '0: Traceback (most recent call last):\n0:   File "/x/a.py", line 1, in f\n0: '


def test_error_that_training_survived_is_none():
    log = f"{CAUGHT}OSError: [Errno 28] No space left on device\n{3 * LOSS}" + read("nccl_watchdog")

    assert judge(log).kind is Kind.COMMUNICATION


def test_error_of_another_process_counts_though_a_step_is_logged_after_it():
    log = 3 * LOSS + "1: KeyError: 'x'\n" + CAUGHT.replace("0: ", "1: ") + f"KeyError: 'x'\n{LOSS}"

    assert "KeyError" in judge(log).text


def test_progress_bar_that_srun_held_back_hides_no_error():
    bar = "0: \r" + "\r".join(f" {n}%|#  | {n}/100 [00:0{n % 9}<00:01, 9.8it/s]" for n in range(99))

    assert "KeyError" in judge(f"{CAUGHT}KeyError: 'x'\n{bar}\n").text


def test_error_at_the_end_of_a_progress_bar_is_read():
    bar = "\r  0%|          | 0/30 [00:00<?, ?it/s]\r  3%|▎ | 1/30 [40:55<25:10, 264.19s/it]"
    log = f"0: {bar}[rank1]: {CAUGHT.replace('0: ', '', 1)}".replace("\n0: ", "\n0: [rank1]: ")

    assert "rank 1" in judge(f"{log}KeyError: 'x'\n").text


def test_padded_labels_of_many_tasks_are_read():
    nodes = tuple(f"n{number:02d}" for number in range(12))
    log = f" 3: {CAUGHT}KeyError: 'x'\n".replace("0: ", " 3: ").replace(" 3:  3: ", " 3: ")

    assert "n03" in judge(log, nodes=nodes).text


def test_number_that_is_no_task_is_no_label():
    assert judge("404: not found\n").lines == ("404: not found",)


def test_one_node_needs_no_label():
    log = CAUGHT.replace("0: ", "") + "RuntimeError: CUDA error: uncorrectable ECC error\n"

    assert judge(log, nodes=("n1",)).blamed == ("n1",)


def test_supervisors_words_are_no_evidence():
    log = "[sft 2026-11-02 10:01:00] the last attempt ended so: CUDA out of memory\n"

    assert judge(log, exit_code=None).kind is Kind.LOST


def test_supervisors_refusal_is_the_telling_line():
    refusal = "[sft 2026-11-02 10:01:00] /r/checkpoints: holds checkpoints of 8 processes"

    assert judge(f"{refusal}\n").lines == (refusal,)


def test_exception_counts_more_than_a_line_that_somebody_wrote_before():
    warning = "0: wandb: WARNING could not write: [Errno 28] No space left on device\n"

    assert judge(warning + read("cuda_out_of_memory")).kind is Kind.CUDA_OUT_OF_MEMORY


def test_colours_are_not_shown():
    assert judge("0: \x1b[34m\x1b[1mwandb\x1b[0m: bye\n").lines == ("wandb: bye",)


def test_shells_complaint_is_no_cause_once_training_began():
    ending = judge(f"0: launch.sh: line 8: module: command not found\n{LOSS}", exit_code=None)

    assert ending.kind is Kind.LOST


def test_application_faults_of_a_gpu_are_not_its_hardware():
    log = "0: NVRM: Xid (PCI:0000:4b:00): 31, pid=812, MMU Fault\n"

    assert judge(log, exit_code=None).kind is Kind.LOST


def test_start_that_failed_is_an_exception_once_steps_were_made():
    assert judge(read("module_missing"), steps=IN_TRAINING).kind is Kind.EXCEPTION


def test_step_is_named_where_it_is_known():
    assert "after step 120 of 704" in judge(read("ecc_error"), steps=IN_TRAINING).text


@pytest.mark.parametrize("seed", range(100))
def test_any_mixture_of_lines_has_one_ending(seed):
    rng = random.Random(seed)
    known = [line for path in sorted(LOGS.iterdir()) for line in read(path.stem).split("\n")]
    log = "\n".join(rng.choices([*known, "", "0:", "1: \r", "0: [rank1]: ", CAUGHT], k=40))
    ending = judge(log[rng.randrange(30) :])

    assert ending.text.count("\n") == 0 and len(ending.blamed) <= 1


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.what[:40])
def test_own_sentences_are_not_read_as_errors(sign):
    text = f"{sign.what} (rank 3 on n1): {sign.remedy}"

    assert not [each.what for each in SIGNS if each.pattern.search(text) and each is not sign]


# Other evidence, and its order.


def stopped(reason: str) -> tuple[dict[str, Any], ...]:
    return (*IN_TRAINING, event("save", 121, save_s=9.0), event("stop", 121, reason=reason))


def test_complete_run_is_completed_whatever_followed():
    ending = judge(read("scancel"), complete=True, slurm_state="CANCELLED by 0", steps=IN_TRAINING)

    assert ending == Ending(Kind.COMPLETED, "complete after step 120 of 704")


def test_stop_before_the_jobs_end_is_out_of_time_though_slurm_says_failed():
    ending = judge(read("worker_killed"), steps=stopped("job_end"), slurm_state="FAILED")

    assert (ending.kind, ending.lines) == (Kind.OUT_OF_TIME, ())


def test_run_that_stopped_itself_for_ruined_numbers_diverged():
    assert judge(steps=stopped("diverged"), slurm_state="TIMEOUT").kind is Kind.DIVERGED


def test_run_that_was_told_to_stop_was_killed_where_slurm_says_no_more():
    assert judge(steps=stopped("told"), slurm_state="FAILED").kind is Kind.KILLED


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("TIMEOUT", Kind.TIMEOUT),
        ("PREEMPTED", Kind.PREEMPTED),
        ("NODE_FAIL", Kind.NODE_FAIL),
        ("BOOT_FAIL", Kind.NODE_FAIL),
        ("OUT_OF_MEMORY", Kind.OUT_OF_MEMORY),
        ("CANCELLED", Kind.CANCELLED),
        ("CANCELLED+", Kind.CANCELLED),
        ("CANCELLED by 4711", Kind.CANCELLED),
        ("DEADLINE", Kind.CANCELLED),
    ],
)
def test_slurms_word_counts_more_than_the_log(state, kind):
    ending = judge(read("nccl_watchdog"), steps=stopped("told"), slurm_state=state)

    assert ending.kind is kind


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("CANCELLED", "cancelled after"),
        ("CANCELLED by 4711", "by user 4711 after"),
        ("CANCELLED by 0", "by user 0 (root"),
        ("DEADLINE", "--deadline"),
    ],
)
def test_it_is_said_who_cancelled(state, words):
    assert words in judge(steps=IN_TRAINING, slurm_state=state).text


def test_error_before_the_time_limit_is_shown():
    ending = judge(read("cuda_out_of_memory"), slurm_state="TIMEOUT")

    assert "a GPU's memory ran out" in ending.text
    assert any("CUDA out of memory" in line for line in ending.lines)


def test_time_limit_says_where_the_next_job_goes_on():
    steps = (*IN_TRAINING, event("save", 100, save_s=9.0))

    assert "goes on from step 100" in judge(steps=steps, slurm_state="TIMEOUT").text


def test_time_limit_without_a_checkpoint_says_so():
    assert "no checkpoint was saved" in judge(steps=IN_TRAINING, slurm_state="TIMEOUT").text


def test_failed_node_that_slurm_names_is_blamed():
    ending = judge(read("node_down"), slurm_state="NODE_FAIL", failed_nodes=["lrdn0418"])

    assert ending.blamed == ("lrdn0418",)


def test_no_node_is_blamed_where_several_failed():
    ending = judge(slurm_state="NODE_FAIL", failed_nodes=TWO)

    assert (ending.blamed, "lrdn0417, lrdn0418 failed" in ending.text) == ((), True)


def test_own_deed_counts_more_than_the_log():
    assert judge(read("nccl_watchdog"), cause=Kind.STUCK).kind is Kind.STUCK


def test_places_where_processes_hang_are_counted():
    lines = judge(read("hang"), cause=Kind.STUCK, steps=IN_TRAINING).lines

    assert [line.partition('"')[0] + line.rpartition(" ")[2] for line in lines[:2]] == [
        "2 × File all_reduce",
        "1 × File from_file",
    ]


def test_signals_that_ended_a_stuck_run_do_not_explain_it():
    assert "SIGABRT" not in judge(read("hang"), cause=Kind.STUCK).text


def test_place_of_a_crash_is_shown():
    stack = '0: Current thread 0x1 (most recent call first):\n0:   File "/x/a.py", line 3 in f\n'
    log = f"0: Fatal Python error: Segmentation fault\n0: \n{stack}"

    assert '1 × File "/x/a.py", line 3 in f' in judge(log).lines


def test_what_python_says_beside_a_stack_is_not_shown():
    names = ", ".join(f"pandas._libs.lib{number}" for number in range(20))
    stack = "0: Current thread 0x1 (most recent call first):\n0:   Garbage-collecting\n"
    frame = '0:   File "/x/a.py", line 3 in f\n0: \n'
    log = f"0: last words\n{stack}{frame}0: Extension modules: {names}\n0: s.lib, {names}\n"

    lines = judge(log, cause=Kind.STUCK).lines
    assert lines == ('1 × File "/x/a.py", line 3 in f', "last words")


def test_broken_node_of_a_stuck_run_is_blamed():
    assert judge(read("ecc_error"), cause=Kind.STUCK).blamed == ("lrdn0418",)


def test_job_that_writes_no_log_hangs_before_it_starts():
    ending = judge(cause=Kind.STUCK, nodes=("n1",))

    assert ("prolog" in ending.text, ending.blamed) == (True, ("n1",))


def test_none_of_several_nodes_is_blamed_for_a_job_that_writes_no_log():
    assert judge(cause=Kind.STUCK).blamed == ()


def test_stop_by_the_user_is_cancelled():
    assert judge(read("told_to_stop"), cause=Kind.CANCELLED).kind is Kind.CANCELLED


def test_signal_53_without_a_log_is_a_log_that_could_not_be_made():
    ending = judge(exit_code=-53, slurm_state="FAILED", seconds=12.0)

    assert (ending.kind, "number of files" in ending.text) == (Kind.QUOTA, True)


@pytest.mark.parametrize(
    ("exit_code", "kind"),
    [
        (137, Kind.KILLED),
        (-9, Kind.KILLED),
        (143, Kind.KILLED),
        (-15, Kind.KILLED),
        (139, Kind.FAILED_START),
        (-11, Kind.FAILED_START),
        (127, Kind.FAILED_START),
        (1, Kind.FAILED_START),
        (0, Kind.LOST),
        (None, Kind.LOST),
    ],
)
def test_exit_code_counts_where_the_log_says_nothing(exit_code, kind):
    assert judge(read("only_noise"), exit_code=exit_code).kind is kind


def test_failure_of_unknown_cause_in_training_is_not_tried_again():
    ending = judge("0: so long\n", steps=IN_TRAINING)

    assert (ending.kind, ending.retry, ending.lines) == (Kind.EXCEPTION, False, ("so long",))


def test_state_failed_counts_where_no_exit_code_is_known():
    assert judge(slurm_state="FAILED", exit_code=None).kind is Kind.FAILED_START


@pytest.mark.parametrize("kind", Kind)
def test_only_what_may_end_otherwise_is_tried_again(kind):
    assert Ending(kind, "").retry == (kind in RETRIED)


def test_what_would_end_so_again_is_not_tried_again():
    final = {"completed", "cancelled", "out_of_memory", "cuda_out_of_memory", "disk_full", "quota"}
    final |= {"failed_start", "exception", "diverged"}

    assert set(Kind) - RETRIED == final

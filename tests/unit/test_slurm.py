"""What is made of the answers of Slurm's commands, and of their silence.

The commands are fakes on PATH that print what a Slurm 22.05 printed. tests/slurm asks a real one.
"""

import multiprocessing
import os
import resource
import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from sft import slurm
from sft.errors import SftError
from sft.slurm import End, SlurmAway, read_queue
from tests.unit.doctoring import TITLES, FakeSlurm
from tests.unit.killing import kill, start, wait_until

QUEUE = "JOBID|STATE|REASON|NODELIST|START_TIME|END_TIME|TIME_LEFT|TIME_LIMIT|TIME|NAME"
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
INVALID = "slurm_load_jobs error: Invalid job id specified"
SUBMIT = """
from sft import slurm
slurm.submit(Path("train.sbatch"), Path(sys.argv[1], "jobs"))
"""


@pytest.fixture
def fake(tmp_path, monkeypatch) -> FakeSlurm:
    """Slurm's commands, and a temporary folder of their own for shared answers."""
    commands = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", commands.path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return commands


def row(job_id: str, name: str, state: str = "RUNNING", reason: str = "None") -> str:
    return f"{job_id}|{state}|{reason}|lrdn0001|N/A|N/A|10:00|30:00|20:00|{name}"


def show(fake: FakeSlurm, *rows: str) -> None:
    fake.says("squeue", "\n".join([QUEUE, *rows]))


def count_questions(fake: FakeSlurm, answer: str) -> Path:
    """Let squeue take its time to print an answer; a file that gets a line for each question."""
    asked = fake.folder / "asked"
    fake.script("squeue", f"echo >> {asked}; sleep 0.2; {answer}")
    return asked


@contextmanager
def limit(kind: int, number: int) -> Iterator[None]:
    """Let this process have only so much of a resource."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


# Silence and refusal


def test_queue_of_nothing_but_titles_is_empty(fake):
    show(fake)

    assert read_queue() == {}


@pytest.mark.parametrize(
    ("printed", "errors", "code", "said"),
    [
        ("", "", 0, "an empty answer"),
        ("", "", 1, "exit code 1, not a word"),
        ("", AWAY, 1, "Unable to contact"),
        ("", "bash: fork: retry: Resource temporarily unavailable", 254, "fork: retry"),
        ("", "squeue: error: Munge encode failed: Failed to access /run/munge.socket", 1, "Munge"),
        ("Welcome to the cluster", "", 0, "Welcome to the cluster"),
    ],
)
def test_what_is_no_list_is_no_empty_queue(fake, printed, errors, code, said):
    fake.says("squeue", printed, errors, code)

    with pytest.raises(SlurmAway, match=said):
        read_queue()


def test_refusal_is_told_from_silence(fake):
    fake.says("squeue", "", "squeue: error: Invalid user: me", 1)

    with pytest.raises(SftError, match="Invalid user"):
        read_queue()


def test_missing_commands_are_no_silence(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(SftError, match="is this a node of a Slurm cluster"):
        slurm.cancel(["1"])


def test_command_that_hangs_is_silence_and_is_ended(fake, monkeypatch):
    monkeypatch.setattr(slurm, "ASK_S", 0.2)
    pid = fake.folder / "pid"
    fake.script("squeue", f"echo $$ > {pid}; sleep 60")

    with pytest.raises(SlurmAway, match="squeue: no answer"):
        read_queue()
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


def test_host_that_cannot_start_a_command_is_silent(fake):
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)

    with limit(resource.RLIMIT_NOFILE, free + 3), pytest.raises(SlurmAway, match="open files"):
        slurm.cancel(["1"])


# The queue


def test_jobs_of_a_name_come_oldest_first(fake):
    show(fake, row("10", "a"), row("9", "a", "COMPLETED"), row("11", "b"), row("8_2", "a"))
    queue = read_queue()

    assert [(job.id, job.is_active) for job in queue["a"]] == [
        ("8_2", True),
        ("9", False),
        ("10", True),
    ]
    assert (queue["b"][0].nodes, queue["b"][0].time_left) == ("lrdn0001", "10:00")


@pytest.mark.parametrize(
    "name",
    [
        "a|b c",
        "ünï",
        "tab\tx",
        "sep\u2028x",
        "nel\x85x",
        "\x1b[31mred",
        "$(x);",
        "quote'\"",
        "\x0b",
    ],
)
def test_name_may_hold_any_character(fake, name):
    show(fake, row("1", name), row("2", "b"))

    assert {key: [job.id for job in jobs] for key, jobs in read_queue().items()} == {
        name: ["1"],
        "b": ["2"],
    }


def test_name_with_a_line_feed_hides_no_other_job(fake):
    show(fake, row("1", "line\nfeed"), row("2", "b"))

    assert "b" in read_queue()


def test_name_that_is_no_utf_8_hides_no_other_job(fake):
    fake.script(
        "squeue", f"printf '%s\\n%s\\xe9\\n%s\\n' '{QUEUE}' '{row('1', 'a')}' {row('2', 'b')!r}"
    )

    assert list(read_queue()) == ["a\ufffd", "b"]


def test_reason_is_kept_in_slurms_words(fake):
    reason = "Job's QOS not permitted to use this partition (a denies b, c)"
    show(fake, row("1", "a", "PENDING", reason))

    assert read_queue()["a"][0].reason == reason


def test_run_has_the_jobs_of_its_name_and_those_submitted_for_it(fake, tmp_path):
    checkpoints = tmp_path / "runs" / "small" / "checkpoints" / "0123abcd"
    checkpoints.mkdir(parents=True)
    (checkpoints / "jobs").write_text("3\n")
    name = slurm.job_name(checkpoints)
    moved, other = "sft-small-99999999", "sft-small-11111111"
    show(fake, row("5", name), row("3", moved), row("4", other), row("3", "unlike"))

    assert [job.id for job in slurm.jobs_of_run(checkpoints)] == ["3", "5"]


# One answer for many


def ask_at_once(max_age_s: float) -> None:
    """Eight processes ask for the queue."""
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=read_queue, args=(max_age_s,)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8


def test_processes_that_ask_at_once_ask_slurm_once(fake):
    asked = count_questions(fake, f"echo '{QUEUE}'")
    ask_at_once(20)

    assert asked.read_text() == "\n"


def test_processes_that_want_the_newest_at_once_share_it(fake):
    asked = count_questions(fake, f"echo '{QUEUE}'")
    ask_at_once(0)

    assert len(asked.read_text()) <= 3


def test_who_wants_the_newest_gets_no_older_one(fake):
    show(fake)
    read_queue()
    show(fake, row("1", "a"))

    assert read_queue(20) == {} and "a" in read_queue(0)


def test_answer_to_a_question_of_before_is_not_the_newest(fake):
    begun, answer = fake.folder / "begun", fake.folder / "answer"
    answer.write_text(f"{QUEUE}\n")
    fake.script("squeue", f"cat {answer}; touch {begun}; sleep 0.3")
    earlier = multiprocessing.get_context("fork").Process(target=read_queue, args=(0,))
    earlier.start()
    wait_until(begun.exists)
    answer.write_text(f"{QUEUE}\n{row('1', 'a')}\n")

    assert "a" in read_queue(0)
    earlier.join()


@pytest.mark.parametrize("age_s", [21, -60])
def test_answer_that_is_old_or_from_the_future_is_not_taken(fake, age_s):
    show(fake)
    read_queue()
    [cache] = Path(tempfile.gettempdir()).glob("sft-*/queue-*")
    os.utime(cache, (time.time() - age_s, time.time() - age_s))
    show(fake, row("1", "a"))

    assert "a" in read_queue(20)


@pytest.mark.parametrize("answer", ["true", f"echo '{AWAY}' >&2; exit 1"])
def test_silence_is_shared_too(fake, answer):
    asked = count_questions(fake, answer)
    for _ in range(3):
        with pytest.raises(SlurmAway):
            read_queue()

    assert asked.read_text() == "\n"


def test_answer_that_cannot_be_kept_is_given_all_the_same(fake):
    show(fake, row("1", "a"))

    for size in (0, 9):
        with limit(resource.RLIMIT_FSIZE, size):
            assert "a" in read_queue()
    assert "a" in read_queue()


def test_folder_of_another_user_is_refused(fake, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4711)

    with pytest.raises(SftError, match="belongs to another user"):
        read_queue()


# Submitting


@pytest.mark.parametrize(
    "printed", ["12", "12;leonardo", "Welcome!\nYour budget: 3 h\n12", "Submitted batch job 12"]
)
def test_id_of_a_job_is_returned_and_recorded(fake, tmp_path, printed):
    fake.says("sbatch", printed, "sbatch: a word of the site")
    record = tmp_path / "jobs"
    record.write_text("7\n")

    assert slurm.submit(Path("train.sbatch"), record) == "12"
    assert record.read_text() == "7\n12\n"


def test_script_and_options_reach_sbatch_as_they_are(fake, tmp_path):
    asked, script = tmp_path / "asked", tmp_path / "a b'$(x);é.sbatch"
    fake.script("sbatch", f"printf '%s\\n' \"$@\" > {asked}; echo 1")
    slurm.submit(script, tmp_path / "the jobs", ["--series", "2"], exclude="n[1-2],n4")

    assert asked.read_text().splitlines() == [
        "--parsable",
        "--exclude=n[1-2],n4",
        str(script),
        *("--series", "2"),
    ]


def test_refused_job_is_not_recorded(fake, tmp_path):
    said = "sbatch: error: Batch job submission failed: Invalid qos"
    fake.says("sbatch", "", said, 1)

    with pytest.raises(SftError, match=f"^{said}$"):
        slurm.submit(Path("train.sbatch"), tmp_path / "jobs")
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    ("printed", "error", "said"),
    [
        ("", SlurmAway, "exit code 1, not a word"),
        ("see the site's portal", SftError, "see the site's portal"),
    ],
)
def test_success_without_an_id_is_none(fake, tmp_path, printed, error, said):
    fake.says("sbatch", printed)

    with pytest.raises(error, match=f"^{said}$"):
        slurm.submit(Path("train.sbatch"), tmp_path / "jobs")
    assert not (tmp_path / "jobs").exists()


def let_sbatch_wait(fake: FakeSlurm) -> tuple[Path, Path]:
    """Let sbatch print an id only when a file is there; a file that tells it began, and that."""
    begun, may_end = fake.folder / "begun", fake.folder / "may_end"
    wait = f"touch {begun}; for _ in {{1..900}}; do [[ -e {may_end} ]] && break; sleep 0.02; done"
    fake.script("sbatch", f"{wait}; echo a word >&2; echo 12")
    return begun, may_end


def test_id_is_recorded_though_the_caller_is_killed(fake, tmp_path):
    begun, may_end = let_sbatch_wait(fake)
    caller = start(SUBMIT, tmp_path)
    wait_until(begun.exists)
    kill(caller)
    may_end.touch()

    wait_until(lambda: (tmp_path / "jobs").exists() and (tmp_path / "jobs").read_text() == "12\n")


def test_id_is_recorded_though_the_caller_is_tired_of_waiting(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "ASK_S", 0.3)
    begun, may_end = let_sbatch_wait(fake)
    with pytest.raises(SlurmAway, match="no answer"):
        slurm.submit(Path("train.sbatch"), tmp_path / "jobs")
    assert begun.exists()
    may_end.touch()

    wait_until(lambda: (tmp_path / "jobs").exists() and (tmp_path / "jobs").read_text() == "12\n")


@pytest.mark.parametrize("keep_secrets", [False, True])
def test_sbatch_sees_no_secret_unless_its_script_wants_it(
    fake, tmp_path, monkeypatch, keep_secrets
):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fake.script("sbatch", f"printenv HF_TOKEN > {tmp_path}/token; echo 1")
    slurm.submit(Path("train.sbatch"), tmp_path / "jobs", keep_secrets=keep_secrets)

    assert (tmp_path / "token").read_text() == ("hf_secret\n" if keep_secrets else "")


def test_job_of_this_process_and_a_persons_settings_do_not_reach_commands(
    fake, tmp_path, monkeypatch
):
    for name in ("SLURM_JOB_ID", "SBATCH_PARTITION", "SQUEUE_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    fake.script("squeue", f"compgen -e > {tmp_path}/names; echo '{QUEUE}'")
    read_queue()
    names = (tmp_path / "names").read_text().split()

    assert [each for each in names if each.startswith(("SLURM", "SBATCH", "SQ"))] == ["SLURM_CONF"]


def test_refusal_is_explained_by_what_slurm_says_now(fake):
    fake.associations = ["lab||normal|normal||||"]
    fake.write()

    assert "yours by account: lab: normal" in slurm.explain("Invalid qos specification")


def test_refusal_is_explained_though_slurm_says_no_more(fake):
    fake.says("scontrol", "", AWAY, 1)

    assert "write a qos that your account has" in slurm.explain("Invalid qos specification")


# How a job ended


@pytest.mark.parametrize(
    ("shown", "end"),
    [
        ("JobState=RUNNING ExitCode=0:0 NodeList=n1", End("RUNNING", 0, "n1")),
        ("JobState=FAILED ExitCode=143:0 NodeList=n[1-2]", End("FAILED", 143, "n[1-2]")),
        ("JobState=CANCELLED ExitCode=0:15 NodeList=(null)", End("CANCELLED", -15, "")),
        (
            "JobState=FAILED PreemptTime=2026-12-01T04:13:05 ExitCode=15:0 NodeList=n1",
            End("PREEMPTED", 15, "n1"),
        ),
        ("JobState=FAILED PreemptTime=None ExitCode=1:0 NodeList=n1", End("FAILED", 1, "n1")),
    ],
)
def test_controller_tells_how_a_job_ended(fake, shown, end):
    fake.says("scontrol", f"JobId=1 JobName=sft-a|b {shown} StdErr=/r/logs/slurm-1.log")

    assert slurm.ask_end("1") == end


def forget(fake: FakeSlurm) -> None:
    """Let the controller know no job any more."""
    fake.says("scontrol", "", INVALID, 1)


def test_accounting_knows_what_the_controller_forgot(fake):
    forget(fake)
    rows = ["NODE_FAIL|0:0|n[1-2]", "CANCELLED by 1000|0:0|None assigned"]
    fake.says("sacct", "\n".join(["State|ExitCode|NodeList", *rows]))

    assert slurm.ask_end("1") == End("CANCELLED by 1000", 0, "")


@pytest.mark.parametrize(
    ("printed", "errors", "code"),
    [
        ("State|ExitCode|NodeList", "", 0),
        ("", "Slurm accounting storage is disabled", 1),
    ],
)
def test_end_that_nobody_knows_is_none(fake, printed, errors, code):
    forget(fake)
    fake.says("sacct", printed, errors, code)

    assert slurm.ask_end("1") is None


@pytest.mark.parametrize(
    ("errors", "code"),
    [("", 0), ("sacct: error: Problem talking to the database: Connection refused", 1)],
)
def test_silent_accounting_does_not_make_a_job_unknown(fake, errors, code):
    forget(fake)
    fake.says("sacct", "", errors, code)

    with pytest.raises(SlurmAway):
        slurm.ask_end("1")


@pytest.mark.parametrize(("errors", "code"), [("", 0), ("", 1), (AWAY, 1)])
def test_silent_controller_is_not_one_that_forgot(fake, errors, code):
    fake.says("scontrol", "", errors, code)
    fake.says("sacct", "State|ExitCode|NodeList\nFAILED|1:0|n1")

    with pytest.raises(SlurmAway):
        slurm.ask_end("1")


# Times and nodes


@pytest.mark.parametrize(
    ("rows", "end_s"),
    [
        (["2026-12-01T05:10:38"], datetime(2026, 12, 1, 5, 10, 38).timestamp()),
        (["N/A"], None),
        ([], None),
    ],
)
def test_end_of_a_job_is_read(fake, rows, end_s):
    fake.says("squeue", "\n".join(["END_TIME", *rows]))

    assert slurm.end_time("1") == end_s


def test_silence_about_the_end_of_a_job_is_not_a_job_without_end(fake):
    fake.says("squeue", "")

    with pytest.raises(SlurmAway):
        slurm.end_time("1")


def test_nodes_of_a_notation_are_listed(fake):
    fake.write()

    assert slurm.list_nodes("n[1-3]") == ["n1", "n2", "n3"]
    assert slurm.list_nodes("") == []


def test_nodes_that_do_not_work_are_listed_once(fake):
    states = "n1 down*\nn2 idle\nn3 drain\nn3 drain\nn4 drng\nn5 fail\nn6 mix"
    fake.script("sinfo", f"printf '%s\\n' {shlex.quote(states)}")

    assert slurm.down_nodes("n[1-6]") == ["n1", "n3", "n5"]


# Jobs of a snakemake


PLACED = "JOBID|WORK_DIR|COMMENT"


def test_jobs_of_a_snakemake_are_those_of_its_folder(fake):
    comments = [
        "1|/p/a b|rule_pretokenize_wildcards_x|y",
        "2|/p/elsewhere|rule_pretokenize_wildcards_x",
        "3|/p/a b|(null)",
        "4|/p/a b/c|rule_render",
    ]
    fake.says("squeue", "\n".join([PLACED, *comments]))

    assert slurm.jobs_of_snakemake(Path("/p/a b")) == {"1": "pretokenize x|y"}


def test_jobs_of_a_killed_snakemake_are_waited_for(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "WAIT_S", 0)
    answers = ["exit 1", "exit 1", *[f"echo '{PLACED}'; echo '1|/p|rule_render'"] * 2]
    cases = " ".join(f"{number}) {text};;" for number, text in enumerate(answers, start=1))
    fake.script(
        "squeue",
        f"echo >> {tmp_path}/n; case $(wc -l < {tmp_path}/n) in {cases} *) echo '{PLACED}';; esac",
    )
    said = []
    slurm.wait_for_jobs(Path("/p"), said.append)

    assert [text.partition(":")[0] for text in said] == [
        "Slurm does not answer",
        "waiting for jobs that a snakemake left here when it was killed",
    ]
    assert said[1].endswith(": 1 (render)")


def test_titles_of_the_doctors_fake_are_no_queue(fake):
    fake.says("squeue", TITLES["squeue"])

    with pytest.raises(SlurmAway):
        read_queue()

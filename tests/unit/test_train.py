"""A run is trained once and to its end, whoever is killed on the way."""

import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from sft import local, train
from sft.errors import SftError
from sft.files import read_json, write_yaml
from sft.process import ProcessId
from sft.site import Site
from tests.unit.killing import kill, start, start_until_wait, wait_until
from tests.workflow import stub_trainer

DRIVER = """
from sft import step, train
from sft.site import Site
folder = Path(sys.argv[1])
train.POLL_S = 0.02
with step.step_log(str(folder / "train.log"), "train a"):
    train.train(Site("here"), folder, 1, 0)
"""


@dataclass(frozen=True)
class Run:
    """A rendered run whose trainer is the stub."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints" / "0123abcd"

    @property
    def reached(self) -> Path:
        return self.folder / "paused"

    def render(self, **variables: str) -> None:
        """Write train.yaml, and a launch.sh that gives the stub these variables."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        write_yaml(self.folder / "train.yaml", {"output_dir": str(self.checkpoints)})
        exports = [f"export {key}='{value}'" for key, value in variables.items()]
        command = (
            f"exec '{sys.executable}' '{stub_trainer.__file__}' train {self.folder}/train.yaml"
        )
        (self.folder / "launch.sh").write_text("\n".join([*exports, command]))

    def pause(self, place: str) -> None:
        """Render a launch.sh whose stub waits at a place until `reached` is gone."""
        self.render(PAUSE_AT=place, PAUSE_REACHED=str(self.reached))

    def train(self, world_size: int = 1, keep: int = 0) -> dict:
        return train.train(Site("here"), self.folder, world_size, keep)

    def attempts(self) -> list[dict]:
        return read_json(self.checkpoints / "attempts.json")

    def endings(self) -> list[str]:
        return [each["ending"] for each in self.attempts()]

    def starts(self) -> list[int]:
        """The step from which each start of the trainer went on."""
        text = (self.folder / "logs" / "trainer.log").read_text()
        lines = [line for line in text.splitlines() if line.startswith("the stub starts")]
        return [int(line.split()[-1]) for line in lines]

    def start_paused(self, place: str):
        """A driver whose training waits at a place."""
        self.pause(place)
        driver = start(DRIVER, self.folder)
        wait_until(lambda: self.reached.exists() or driver.poll() is not None)
        assert self.reached.exists(), driver.communicate()[0]
        return driver


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "POLL_S", 0.02)
    run = Run(tmp_path)
    run.render()
    yield run
    if process := local.find(run.checkpoints / "process"):
        process.stop()


def state_of(folder):
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


# --- to the end ----------------------------------------------------------------------------------


def test_run_is_summed_up(run):
    made = run.train()
    assert made["checkpoints"] == made["weights"] == str(run.checkpoints)
    assert made["fingerprint"] == "0123abcd"
    assert (made["global_step"], made["max_steps"]) == (4, 4)
    assert made["losses"] == [[1, 1.9], [2, 1.8], [3, 1.7], [4, 1.6]]
    assert made["loss_start"] == pytest.approx(1.8) and made["loss_end"] == pytest.approx(1.7)
    assert made["attempts"] == run.attempts()
    assert (made["started"], made["finished"]) == (
        run.attempts()[0]["started"],
        run.attempts()[0]["finished"],
    )


def test_each_logged_step_is_said_once(run, caplog):
    with caplog.at_level(logging.INFO, "sft"):
        run.train()
    steps = [text for text in caplog.messages if text.startswith("step")]
    assert steps == [f"step {n} of 4, loss {2 - n / 10:.4f}, 0.5 s a step" for n in range(1, 5)]


def test_complete_run_is_left_untouched(run):
    first = run.train()
    before = state_of(run.folder)
    assert run.train() == first
    assert state_of(run.folder) == before


def test_run_that_was_launched_by_hand_is_accepted(run):
    stub_trainer.train(run.folder / "train.yaml")
    finished = (run.checkpoints / "trainer_state.json").stat().st_mtime
    made = run.train(world_size=8)
    [attempt] = made["attempts"]
    assert attempt["ending"] == "completed" and attempt["world_size"] == 8
    assert attempt["finished"] == train.utc(finished)
    assert attempt["started"] == train.utc(finished - 2.5)


# --- failures ------------------------------------------------------------------------------------


def test_failure_shows_the_last_lines_of_its_own_output(run):
    (run.folder / "logs").mkdir()
    (run.folder / "logs" / "trainer.log").write_text("of an earlier attempt\n")
    run.render(FAIL_AT="train:3")
    with pytest.raises(SftError) as error:
        run.train()
    text = str(error.value)
    assert "training ended before its last step: " in text
    assert "  | RuntimeError: no luck at train:3" in text
    assert "of an earlier attempt" not in text
    assert run.endings() == ["exception"] and run.attempts()[0]["exit_code"] == 1


def test_exit_code_0_before_the_last_step_is_a_failure(run):
    run.render(LEAVE_AT="train:3")
    with pytest.raises(SftError, match="before its last step"):
        run.train()
    assert run.attempts()[0]["exit_code"] == 0


def test_failed_run_goes_on_from_its_newest_checkpoint(run):
    run.render(FAIL_AT="train:3")
    with pytest.raises(SftError):
        run.train()
    run.render()
    assert run.train()["global_step"] == 4
    assert run.starts() == [0, 2]
    assert [each["resumed"] for each in run.attempts()] == [None, "checkpoint-2"]


def test_resumed_run_has_the_weights_of_an_undisturbed_one(run, tmp_path):
    run.render(FAIL_AT="train:3")
    with pytest.raises(SftError):
        run.train()
    run.render()
    run.train()
    other = Run(tmp_path / "undisturbed")
    other.render()
    other.train()
    ours, theirs = (each.checkpoints / "model.safetensors" for each in (run, other))
    assert ours.read_bytes() == theirs.read_bytes()


def test_broken_newest_checkpoint_is_put_aside_and_said(run, caplog):
    run.render(FAIL_AT="train:3")
    with pytest.raises(SftError):
        run.train()
    stub_trainer.write_checkpoint(run.checkpoints / "checkpoint-3", 3)
    weights = run.checkpoints / "checkpoint-3" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    run.render()
    with caplog.at_level(logging.INFO, "sft"):
        run.train()
    assert "checkpoint-3 cannot be resumed and is now broken-checkpoint-3" in caplog.text
    assert run.starts() == [0, 2]
    assert (run.checkpoints / "broken-checkpoint-3" / "model.safetensors").exists()


def test_run_that_is_killed_after_its_last_checkpoint_is_not_trained_further(run):
    kill(run.start_paused("train:end"))
    local.find(run.checkpoints / "process").stop()
    weights = run.checkpoints / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    made = run.train()
    assert run.starts() == [0]
    assert (made["global_step"], made["losses"][-1]) == (4, [4, 1.6])
    assert made["weights"] == str(run.checkpoints / "checkpoint-4")


def test_checkpoint_without_its_last_file_is_not_resumed(run):
    run.render(FAIL_AT="train:2")
    with pytest.raises(SftError):
        run.train()
    (run.checkpoints / "checkpoint-2" / "trainer_state.json").unlink()
    run.render()
    run.train()
    assert run.starts() == [0, 0]


def test_line_that_was_half_written_at_the_start_is_passed_over(run, caplog):
    log = run.checkpoints / "steps.jsonl"
    log.write_text('{"time": 1, "event": "log", "step": 1, "lo')
    launch = run.folder / "launch.sh"
    launch.write_text(f"""echo 'ss": 2.0}}' >> {log}\n""" + launch.read_text())
    with caplog.at_level(logging.INFO, "sft"):
        run.train()
    assert "step 4 of 4" in caplog.text and run.endings() == ["completed"]


def test_log_of_steps_that_begins_anew_is_read_from_its_beginning(run, caplog):
    (run.checkpoints / "steps.jsonl").write_text("\n" * 10_000)
    launch = run.folder / "launch.sh"
    launch.write_text(f"rm {run.checkpoints}/steps.jsonl\n" + launch.read_text())
    with caplog.at_level(logging.INFO, "sft"):
        run.train()
    assert "step 1 of 4" in caplog.text


def test_error_after_the_last_step_is_said_and_no_failure(run, caplog):
    launch = run.folder / "launch.sh"
    launch.write_text(launch.read_text().replace("exec ", "") + "\nexit 3\n")
    with caplog.at_level(logging.WARNING, "sft"):
        run.train()
    assert "the run is complete, though its training ended with exit code 3" in caplog.text
    assert run.endings() == ["completed"]


def test_other_number_of_processes_is_refused_where_there_are_checkpoints(run):
    run.render(FAIL_AT="train:3")
    with pytest.raises(SftError):
        run.train(world_size=8)
    with pytest.raises(SftError, match="holds checkpoints of 8 processes, and the row asks for 16"):
        run.train(world_size=16)
    assert run.starts() == [0]


def test_other_number_of_processes_may_start_where_no_checkpoint_is(run):
    run.render(FAIL_AT="train:1")
    with pytest.raises(SftError):
        run.train(world_size=8)
    run.render()
    run.train(world_size=16)
    assert [each["world_size"] for each in run.attempts()] == [8, 16]


# --- drivers that die ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_driver_that_is_told_to_stop_stops_the_training_and_says_so(run, number):
    driver = run.start_paused("train:3")
    driver.send_signal(number)
    text = driver.communicate()[0]
    assert driver.returncode == 1
    assert text.endswith("[train a] stopped; run again to go on from the newest checkpoint\n")
    assert run.endings() == ["cancelled"]
    assert local.find(run.checkpoints / "process") is None


def test_second_signal_does_not_disturb_the_stopping(run):
    driver = run.start_paused("train:3")
    launch = "trap 'sleep 0.5' TERM; " + (run.folder / "launch.sh").read_text().replace("exec", "")
    kill(driver)
    local.find(run.checkpoints / "process").stop()
    run.reached.unlink()
    (run.folder / "launch.sh").write_text(launch)
    driver = start(DRIVER, run.folder)
    wait_until(run.reached.exists)
    driver.send_signal(signal.SIGINT)
    wait_until(lambda: "stopping process" in (run.folder / "train.log").read_text())
    driver.send_signal(signal.SIGINT)
    driver.communicate()
    assert run.endings()[-1] == "cancelled"
    assert local.find(run.checkpoints / "process") is None


def test_driver_that_is_killed_leaves_a_training_that_the_next_attaches_to(run, caplog):
    kill(run.start_paused("train:3"))
    process = local.find(run.checkpoints / "process")
    assert process and run.endings() == [None]
    run.reached.unlink()
    with caplog.at_level(logging.INFO, "sft"):
        run.train()
    assert run.starts() == [0]
    assert run.endings() == ["completed"]


def test_attached_training_that_fails_shows_its_last_lines(run):
    run.pause("train:2")
    launch = run.folder / "launch.sh"
    launch.write_text("export FAIL_AT=train:3\n" + launch.read_text())
    driver = start(DRIVER, run.folder)
    wait_until(run.reached.exists)
    kill(driver)
    run.reached.unlink()
    with pytest.raises(SftError, match="RuntimeError: no luck at train:3"):
        run.train()
    assert run.endings() == ["exception"]


def test_training_that_is_killed_with_its_supervisor_is_an_attempt_that_was_killed(run):
    kill(run.start_paused("train:3"))
    for pid in local.find(run.checkpoints / "process")._family():
        os.kill(pid, signal.SIGKILL)
    run.render()
    run.train()
    assert run.starts() == [0, 2]
    assert run.endings() == ["lost", "completed"]


def test_driver_that_is_killed_before_it_starts_the_training_leaves_no_attempt(run):
    code = DRIVER.replace("folder =", "from sft import local\nlocal.start = wait\nfolder =", 1)
    kill(start_until_wait(code, run.folder))
    run.train()
    assert run.starts() == [0] and run.endings() == ["completed"]


def test_supervisor_that_is_killed_alone_takes_its_trainer_along(run):
    run.pause("train:3")
    launch = run.folder / "launch.sh"
    launch.write_text(launch.read_text().replace("exec ", "") + "\n")
    driver = start(DRIVER, run.folder)
    wait_until(run.reached.exists)
    process = local.find(run.checkpoints / "process")
    os.kill(process.id.pid, signal.SIGKILL)
    driver.communicate()
    assert driver.returncode == 1 and not process._family()
    assert run.endings() == ["lost"]


def test_training_of_another_host_is_not_doubled(run):
    (run.checkpoints / "process").write_text(f"{ProcessId('elsewhere', 12, 345)}\n")
    with pytest.raises(SftError, match="go on at elsewhere"):
        run.train()
    assert not (run.checkpoints / "attempts.json").exists()


def test_run_that_another_host_completed_is_complete(run):
    run.train()
    (run.checkpoints / "process").write_text(f"{ProcessId('elsewhere', 12, 345)}\n")
    assert run.train()["global_step"] == 4


# --- two drivers ---------------------------------------------------------------------------------


def test_two_drivers_at_the_same_moment_start_one_training(run):
    run.pause("train:3")
    slow = """
from sft import train
def look(attempts):
    time.sleep(1)
    return 1
train.newest_series = look
"""
    drivers = [start(slow + DRIVER, run.folder) for _ in range(4)]
    wait_until(run.reached.exists)
    logs = run.folder / "train.log"
    wait_until(lambda: logs.read_text().count("attaching to process") == 3)
    run.reached.unlink()
    for driver in drivers:
        text = driver.communicate()[0]
        assert driver.returncode == 0, text
    assert run.starts() == [0]
    assert run.endings() == ["completed"]


def test_driver_that_waits_for_one_that_is_killed_attaches(run):
    run.pause("train:3")
    slow = "from sft import local\nlocal._WRAPPER = 'sleep 1; ' + local._WRAPPER\n"
    first = start(slow + DRIVER, run.folder)
    wait_until(lambda: (run.checkpoints / "attempts.json").exists())
    second = start(DRIVER, run.folder)
    kill(first)
    logs = run.folder / "train.log"
    wait_until(lambda: "attaching to process" in logs.read_text())
    wait_until(run.reached.exists)
    run.reached.unlink()
    second.communicate()
    assert second.returncode == 0 and run.starts() == [0]


def test_attempts_are_json_that_a_person_can_read(run):
    run.train()
    [attempt] = json.loads((run.checkpoints / "attempts.json").read_text())
    assert (attempt["ending"], attempt["from_step"], attempt["to_step"]) == ("completed", 0, 4)
    assert attempt["log"] == str(run.folder / "logs" / "trainer.log")

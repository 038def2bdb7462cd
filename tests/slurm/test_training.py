"""Trainings that nothing disturbs, on one node and on two."""

import json

from tests.compiled import extensions
from tests.slurm.project import TRAINER


def test_run_is_trained_by_one_job(new_run, undisturbed):
    run = new_run()
    run.train()

    [attempt] = run.attempts()
    assert (attempt["ending"], attempt["to_step"], attempt["launcher"]) == (
        "completed",
        12,
        "slurm",
    )
    assert run.weights() == undisturbed()


def test_two_nodes_train_one_run_over_gloo(new_run):
    run = new_run(num_nodes=2)
    run.train()

    [attempt] = run.attempts()
    assert attempt["nodes"] == ["lrdn0001", "lrdn0002"]
    assert attempt["world_size"] == 2


def test_two_ranks_train_one_run_with_zero_3(new_run):
    config = {"deepspeed": "ds_z3.json", "max_steps": 6}
    run = new_run(num_nodes=2, config=config, variables=extensions(TRAINER))
    run.train(wait_s=300)

    assert len(list(run.checkpoints.glob("checkpoint-4/global_step4/*optim_states.pt"))) == 2


def test_next_link_does_not_stay_in_the_queue_of_a_complete_run(new_run, project):
    run = new_run()
    run.train()

    queued = project.cluster.ask("squeue", "--noheader", "--format=%j", "--states=PENDING")
    assert run.folder.name not in queued


def test_complete_run_is_not_trained_again(new_run):
    run = new_run()
    run.train()
    before = json.dumps(run.attempts())
    run.train()

    assert json.dumps(run.attempts()) == before

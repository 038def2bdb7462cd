"""What starts a training: launch.sh, once on each node, and train.sbatch, the job around it."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import jinja2

from sft.backends import BACKENDS
from sft.batch import derive_batch
from sft.environment import REPOSITORY, job_variables, prologue
from sft.experiment import Experiment
from sft.files import read_yaml, write_text
from sft.request import Request
from sft.site import Site
from sft.slurm import job_name

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
)


def launch_text(experiment: Experiment, site: Site, config: Path) -> str:
    """The text of launch.sh for a rendered config, which lies in the run's folder."""
    batch = derive_batch(experiment, site)
    backend = BACKENDS[experiment.backend]
    module, *arguments = backend.train_arguments(config, batch.world_size)
    wandb = site.wandb_mode != "disabled"
    return TEMPLATES.get_template("launch.sh.j2").render(
        experiment=experiment.name,
        site=site.name,
        num_nodes=experiment.num_nodes,
        processes=site.processes_per_node,
        has_modules=site.launcher == "slurm",
        prologue=prologue(site, experiment.environment),
        variables=_quoted(job_variables(site) | _saving(experiment, site)),
        spill_folder=shlex.quote(site.spill_folder) if site.spill_folder else "",
        tmp_gb=site.tmp_gb,
        wandb_folder=shlex.quote(str(config.parent / "logs")) if wandb else "",
        distributed=batch.world_size > 1,
        master_suffix=site.master_suffix,
        command=_command(site, experiment.num_nodes, module, arguments),
    )


def _quoted(variables: Mapping[str, str]) -> dict[str, str]:
    return {key: shlex.quote(value) for key, value in variables.items()}


def _saving(experiment: Experiment, site: Site) -> dict[str, str]:
    """The variable that tells training how often faults come, where no `save_steps` does."""
    if not BACKENDS[experiment.backend].read_recipe(experiment.config).saves_by_time:
        return {}
    return {"SFT_NODE_MTBF_HOURS": f"{site.node_mtbf_hours:g}"}


def _command(site: Site, num_nodes: int, module: str, arguments: list[str]) -> str:
    if num_nodes * site.processes_per_node == 1:
        return shlex.join(["python", "-m", module, *arguments])
    lines = [
        "python -m torch.distributed.run",
        f"--nnodes {num_nodes} --nproc-per-node {site.processes_per_node}",
    ]
    if site.rendezvous == "static":
        lines.append(
            '--node-rank "${SLURM_NODEID:-0}" '
            '--master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
        )
    else:
        lines.append(
            '--rdzv-backend c10d --rdzv-id "${SLURM_JOB_ID:-$$}" '
            '--rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT"'
        )
        # Without it, a node compares the endpoint's name with its own, which a suffix changes.
        lines.append('--rdzv-conf "is_host=$((${SLURM_NODEID:-0} == 0))"')
    lines.append(f"-m {shlex.join([module, *arguments])}")
    return " \\\n  ".join(lines)


def kept_checkpoints(experiment: Experiment) -> int:
    """How many whole checkpoints of a run stay; 0 for all."""
    return BACKENDS[experiment.backend].read_recipe(experiment.config).save_total_limit or 0


def sbatch_text(
    experiment: Experiment, site: Site, request: Request, checkpoints: Path, run: Path
) -> str:
    """The text of train.sbatch, the job in which the launch.sh of the folder `run` is started."""
    return TEMPLATES.get_template("train.sbatch.j2").render(
        options=_options(experiment, site, request, job_name(checkpoints), run / "logs"),
        experiment=experiment.name,
        site=site.name,
        script=run / "train.sbatch",
        python=shlex.quote(sys.executable),
        repository=shlex.quote(str(REPOSITORY)),
        run=shlex.quote(str(run)),
        config=shlex.quote(str(run / "train.yaml")),
        launch=shlex.quote(str(run / "launch.sh")),
        logs=shlex.quote(str(run / "logs")),
        checkpoints=shlex.quote(str(checkpoints)),
        world_size=derive_batch(experiment, site).world_size,
        keep=kept_checkpoints(experiment),
        stuck_minutes=f"{site.stuck_minutes:g}",
        num_nodes=experiment.num_nodes,
        cpus=site.cpus_per_node,
        srun_options=site.srun_options,
    )


def _options(
    experiment: Experiment, site: Site, request: Request, name: str, logs: Path
) -> list[str]:
    """What follows #SBATCH, a line each."""
    gpus = {"gres": f"--gres={request.gres or f'gpu:{site.gpus_per_node}'}"}
    gpus |= {"gpus-per-node": f"--gpus-per-node={site.gpus_per_node}", "none": ""}
    asked = {
        "account": request.account,
        "partition": request.partition,
        "qos": request.qos,
        "constraint": request.constraint,
        "mem": f"{request.memory_mb}M" if request.memory_mb else "",
        "exclude": ",".join(site.bad_nodes),
    }
    return [
        f"--job-name={name}",
        "--dependency=singleton",
        *(f"--{option}={value}" for option, value in asked.items() if value),
        f"--time={round(request.minutes or site.max_minutes)}",
        f"--nodes={experiment.num_nodes}",
        f"--ntasks-per-node=1 --cpus-per-task={site.cpus_per_node}",
        "--no-requeue",
        *filter(None, [gpus[site.gpu_request], request.extra, site.sbatch_options]),
        f"--output={shlex.quote(f'{logs}/slurm-%j.log')}",
        "--open-mode=append",
        "--export=ALL",
    ]


def write_script(experiment: Experiment, site: Site, request: Request, config: Path) -> None:
    """Write train.sbatch beside a rendered config, where the site has Slurm."""
    if site.launcher == "slurm":
        checkpoints = Path(read_yaml(config)["output_dir"])
        text = sbatch_text(experiment, site, request, checkpoints, config.resolve().parent)
        write_text(config.with_name("train.sbatch"), text)

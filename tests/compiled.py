"""What DeepSpeed compiles before several processes train on CPUs, made once for all tests.

    python -m tests.compiled        in a trainer's environment

Left to the training processes, a job of its own would take one to two minutes of two cores for it,
and torch's lock would stay where the compiler's process is killed: all others wait on it for ever.
"""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

ALL = Path(__file__).resolve().parents[1] / ".torch_extensions"
VARIABLE = "TORCH_EXTENSIONS_DIR"
LIMIT_S = 600


@functools.cache
def extensions(environment: Path) -> dict[str, str]:
    """The variable that gives an environment's training processes what is compiled for it.

    RuntimeError, with what the compiler said, where it cannot be made.
    """
    folder = ALL / environment.name.removeprefix(".venv-")  # each has a DeepSpeed of its own
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "held", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not _is_whole(folder / "deepspeed_shm_comm"):
            shutil.rmtree(folder / "deepspeed_shm_comm", ignore_errors=True)
            _compile(environment, folder)
    return {VARIABLE: str(folder)}


def entered(environment: Path) -> str:
    """PATH as in an environment that is entered.

    Its ninja makes anew what the system's, of another version, has made, and the other way round.
    """
    return f"{environment / 'bin'}:{os.environ['PATH']}"


def _is_whole(part: Path) -> bool:
    return (part / f"{part.name}.so").exists() and not (part / "lock").exists()


def _compile(environment: Path, folder: Path) -> None:
    done = subprocess.run(
        [environment / "bin" / "python", "-m", "tests.compiled"],
        cwd=ALL.parent,
        env=os.environ | {VARIABLE: str(folder), "PATH": entered(environment)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"DeepSpeed's part for CPUs does not compile:\n{done.stdout[-3000:]}")


def main() -> None:
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    if VARIABLE not in os.environ:
        sys.exit(f"{VARIABLE} is not set; expected the folder to compile to")
    ShareMemCommBuilder().load(verbose=True)


if __name__ == "__main__":
    main()

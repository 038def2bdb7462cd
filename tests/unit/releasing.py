"""A small trained model, its base, and what made it, to be released."""

import json
from pathlib import Path

import pytest

from sft.files import read_json
from sft.release import Provenance, assemble_release

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}"
TOKENIZER = {
    "eos_token": "<|im_end|>",
    "extra_special_tokens": ["<|im_start|>"],
    "tokenizer_class": "TokenizersBackend",
}
CODE = {"commit": "f" * 40, "dirty": True, "pushed": False}
CONFIG = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "dtype": "bfloat16"}
SHAPES = {"model.embed_tokens.weight": [8, 4], "model.layers.0.mlp.weight": [4, 4]}


def write_model(folder: Path) -> None:
    """A folder as LLaMA-Factory leaves it after a run, in small."""
    folder.mkdir(parents=True)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in SHAPES.items():
        start, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    data = bytes(index % 251 for index in range(end))
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    for name, content in {
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": 2},
        "tokenizer.json": {"model": {"vocab": {"/usr/bin/": 1}}},
        "tokenizer_config.json": TOKENIZER,
        "trainer_state.json": {"global_step": 4},
    }.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "README.md").write_text("the trainer's own card, with base_model: /home/me/base")
    (folder / "training_args.bin").write_bytes(b"x")
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "optimizer.pt").write_bytes(b"x")


@pytest.fixture
def weights(tmp_path) -> Path:
    write_model(tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


@pytest.fixture
def base(tmp_path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# Base\n")
    (folder / "config.json").write_text("{}")
    return folder


def provenance() -> Provenance:
    return Provenance(
        experiment={
            **{"name": "smoke", "hub_id": "laion/smoke", "backend": "llamafactory"},
            **{"template": "chatml", "overrides": {"learning_rate": 1e-4}},
        },
        base_model={
            **{"name": "qwen3-8b", "source": "hub:Qwen/Qwen3-8B"},
            **{"revision": "b968826d9c46dd6066d109eabc6255188de91218", "sha256": "0" * 64},
        },
        datasets=[
            {
                **{"name": "web", "source": "hub:org/web", "revision": "c" * 40},
                **{"sha256": "1" * 64, "rows": 1200, "tokens": 340000},
            },
            {
                **{"name": "mine", "source": "local:/scratch/me/mine.jsonl", "revision": None},
                **{"sha256": "2" * 64, "rows": 10, "tokens": 2000},
            },
        ],
        accepted=[
            {
                **{"source": "web", "fault": "duplicate_rows", "count": 40, "of": 1200},
                "by": "accept: web:duplicate_rows",
            }
        ],
        config={
            **{"model_name_or_path": "/scratch/me/cache/snapshots/b968", "learning_rate": 1e-4},
            **{"output_dir": "/scratch/me/runs/smoke/checkpoints", "template": "chatml"},
            **{"deepspeed": "/home/me/sft/deepspeed/ds_z3.json", "bf16": True},
        },
        training={
            **{"global_step": 4, "losses": [(1, 2.5), (2, 2.0), (3, 1.75), (4, 1.5)]},
            **{"started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T01:00:00+00:00"},
            **{"world_size": 8, "num_nodes": 2, "global_batch_size": 96},
            "throughput": {
                **{"step_s": 4.0, "tokens_per_s": 81234.5, "mfu": 0.314},
                "device": "NVIDIA A100-SXM-64GB",
            },
        },
        attempts=[
            {"job_id": "4711", "ending": "out_of_time", "code": CODE},
            {"job_id": "4712", "ending": "completed", "code": CODE},
        ],
        weights={"merged": 0, "kept": None},
        served={"conversations": 19, "refused": []},
        versions={"torch": "2.13.0", "transformers": "5.6.0"},
        git=CODE,
        site="leonardo",
        job_ids=["4711", "4712"],
    )


def assemble(weights: Path, base: Path, made: Provenance | None = None) -> Path:
    release = weights.parent / "release"
    assemble_release(weights, base, release, made or provenance(), accept)
    return release


def accept(folder: Path) -> None:
    """In the place of what looks at the chat template; see test_served.py."""


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**read_json(path), **changes}))


def wrap_names(path: Path) -> None:
    """Let all tensors of a safetensors file have names as torch.compile leaves them."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    wrapped = {
        name if name == "__metadata__" else f"_orig_mod.{name}": value
        for name, value in header.items()
    }
    text = json.dumps(wrapped).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])

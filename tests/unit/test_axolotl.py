"""axolotl's base configs, the table's words for it, and what is rendered."""

from dataclasses import replace
from pathlib import Path

import pytest

from sft.backends import axolotl, llamafactory
from sft.backends.axolotl_words import REASONS, SHARED, WORDS
from sft.batch import derive_batch
from sft.files import read_yaml
from sft.site import Site
from tests.unit.experiments import EXPERIMENT, SITE

CONFIG = {
    **{"environment": "sft-axolotl", "template": "chatml_tools", "sequence_len": 512},
    **{"micro_batch_size": 2, "global_batch_size": 16, "num_epochs": 2, "learning_rate": 1e-4},
    **{"warmup_steps": 10, "bf16": True, "deepspeed": "ds_z3.json", "save_steps": 100},
}
PATHS = axolotl.TrainPaths(
    model=Path("/models/m"),
    tokens=Path("/tokens/key/tokens"),
    output=Path("/runs/r/checkpoints/01234567"),
    deepspeed=Path("/runs/r/deepspeed.json"),
)
# A word of the table, a cell, and what axolotl is told.
TRANSLATED = {
    "stage": ("sft", {}),
    "finetuning_type": ("lora", {"adapter": "lora"}),
    "cutoff_len": ("4096", {"sequence_len": 4096}),
    "num_train_epochs": ("3", {"num_epochs": 3}),
    "per_device_train_batch_size": ("4", {"micro_batch_size": 4}),
    "lr_scheduler_type": ("cosine", {"lr_scheduler": "cosine"}),
    "optim": ("adamw_torch", {"optimizer": "adamw_torch"}),
    "warmup_steps": ("0.1", {"warmup_ratio": 0.1}),
    "packing": ("true", {"sample_packing": True}),
    "train_on_prompt": ("true", {"train_on_inputs": True}),
    "preprocessing_num_workers": ("16", {"dataset_num_proc": 16}),
    "flash_attn": ("fa2", {"attn_implementation": "flash_attention_2"}),
    "disable_gradient_checkpointing": ("true", {"gradient_checkpointing": False}),
    "enable_liger_kernel": (
        "true",
        {
            **{"liger_rope": True, "liger_rms_norm": True, "liger_glu_activation": True},
            "liger_fused_linear_cross_entropy": True,
        },
    ),
    "pure_bf16": ("true", {"bfloat16": True, "bf16": None}),
    "lora_rank": ("8", {"lora_r": 8}),
    "lora_target": (
        "q_proj, v_proj",
        {"lora_target_linear": None, "lora_target_modules": ["q_proj", "v_proj"]},
    ),
    "max_steps": ("-1", {"max_steps": None}),
    "additional_target": ("lm_head", {"lora_modules_to_save": ["lm_head"]}),
    "use_dora": ("true", {"peft_use_dora": True}),
    "use_rslora": ("true", {"peft_use_rslora": True}),
    "use_reentrant_gc": ("true", {"gradient_checkpointing_kwargs": {"use_reentrant": True}}),
    "use_eaft_loss": ("true", {"use_eaft": True}),
    "use_fast_tokenizer": ("false", {"tokenizer_use_fast": False}),
}
# Cells that are no value of the word; each was taken for one, or ended in a traceback.
MISTAKES = {
    "warmup_steps": "ten",
    "disable_gradient_checkpointing": "ture",
    "pure_bf16": "[1]",
    "cutoff_len": "4k",
    "max_steps": "0",
}


def experiment(**changes: object):
    config = {key: each for key, each in (CONFIG | changes).items() if each is not None}
    return replace(EXPERIMENT, backend="axolotl", config=config, num_nodes=1)


def rendered(site: Site = SITE, **changes: object) -> dict:
    made = experiment(**changes)
    return axolotl.render_config(made, site, derive_batch(made, site), PATHS)


@pytest.mark.parametrize("word", WORDS)
def test_word_of_the_table_is_translated(word):
    cell, expected = TRANSLATED[word]
    overrides, lines = axolotl.read_overrides({word: cell}, "row")

    assert (overrides, lines) == (expected, [])
    assert not axolotl.config_faults(overrides, "row")


@pytest.mark.parametrize("word", llamafactory.known_keys())
def test_each_word_of_llamafactory_is_translated_shared_or_refused(word):
    if word in WORDS or word in SHARED:
        return  # their tests follow
    overrides, lines = axolotl.read_overrides({word: "1"}, "row")

    assert lines or axolotl.config_faults(overrides, "row")


@pytest.mark.parametrize("word", MISTAKES)
def test_mistake_is_refused_in_the_words_of_the_row(word):
    overrides, lines = axolotl.read_overrides({word: MISTAKES[word]}, "row")
    [line] = [*lines, *axolotl.config_faults(overrides, "row")]

    assert line.startswith(f"row, {word}: found ")


def test_word_without_a_counterpart_names_the_nearest_key():
    _, [line] = axolotl.read_overrides({"oft_target": "all"}, "row")

    assert "has no counterpart in axolotl; of its own keys, did you mean" in line


@pytest.mark.parametrize("word", SHARED)
def test_shared_words_are_known_to_both(word):
    assert word in llamafactory.known_keys()
    assert word in axolotl.known_keys()


@pytest.mark.parametrize("word", REASONS)
def test_refusal_says_why_there_is_no_counterpart(word):
    _, [line] = axolotl.read_overrides({word: "true"}, "t.tsv, line 2")

    assert line.startswith(f"t.tsv, line 2, {word}: found true, which has no counterpart")
    assert REASONS[word] in line


def test_value_without_a_counterpart_is_refused():
    overrides, [line] = axolotl.read_overrides({"finetuning_type": "freeze"}, "row")

    assert not overrides
    assert "finetuning_type: found freeze, which has no counterpart in axolotl" in line


def test_same_setting_in_two_words_is_refused():
    _, [line] = axolotl.read_overrides({"cutoff_len": "512", "sequence_len": "1024"}, "row")

    assert line == "row, sequence_len: cutoff_len says the same; keep one of them"


def test_unknown_key_is_refused_with_the_nearest():
    [line] = axolotl.config_faults({"sequence_length": 512}, "base.yaml")

    assert "unknown key; did you mean 'sequence_len'" in line


def test_datasets_in_a_base_config_are_refused_with_the_reason():
    [line] = axolotl.config_faults({"datasets": [{"path": "x"}]}, "base.yaml")

    assert "datasets: leave it out; it comes from the mix that the row names" in line


def test_plugin_that_is_not_known_here_is_refused():
    [line] = axolotl.config_faults({"plugins": ["my.Plugin"]}, "base.yaml")

    assert "plugins: found my.Plugin, expected axolotl.integrations.liger.LigerPlugin or" in line


def test_trainer_of_ones_own_is_refused():
    [line] = axolotl.config_faults({"trainer_cls": "my.Trainer"}, "base.yaml")

    assert line == "base.yaml, trainer_cls: leave it out; the trainer is axolotl's own"


@pytest.mark.parametrize("key", ["dpo_beta", "eval_batch_size", "wandb_run_id", "rope_scaling"])
def test_key_without_an_effect_is_refused(key):
    assert f"base.yaml, {key}: leave it out" in axolotl.config_faults({key: 1}, "base.yaml")[0]


def test_unknown_key_of_a_nested_table_is_refused():
    config = {"fsdp_config": {"fsdp_version": 2, "state_dict": "SHARDED_STATE_DICT"}}
    [line] = axolotl.config_faults(config, "base.yaml")

    assert "state_dict: unknown key; did you mean 'state_dict_type'" in line


@pytest.mark.parametrize(
    ("attention", "is_refused"),
    [
        *[("sdpa", False), ("eager", False), ("flash_attention_2", False)],
        *[("fp8", True), ("kernels-community/flash-attn3@v1", False), ("someone/kernel", True)],
    ],
)
def test_packing_needs_attention_that_keeps_examples_apart(attention, is_refused):
    config = CONFIG | {"sample_packing": True, "attn_implementation": attention}
    lines = axolotl.whole_config_faults(config, "row")

    assert [line for line in lines if "row, sample_packing:" in line] == lines
    assert bool(lines) == is_refused


def test_adapter_says_what_axolotl_has_no_default_of():
    lines = axolotl.whole_config_faults(CONFIG | {"adapter": "lora"}, "row")

    assert [line.partition(": ")[0] for line in lines] == [
        *("row, lora_r", "row, lora_alpha", "row, lora_target_modules"),
    ]


def test_quantized_weights_need_an_adapter():
    [line] = axolotl.whole_config_faults(CONFIG | {"load_in_8bit": True}, "row")

    assert line.startswith("row, load_in_8bit: only an adapter")


@pytest.mark.parametrize("key", ["bf16", "fp16"])
def test_full_training_does_not_lose_its_fp32_weights_unsaid(key):
    config = {name: value for name, value in CONFIG.items() if name not in ("bf16", "deepspeed")}
    [line] = axolotl.whole_config_faults(config | {key: True}, "row")

    assert line.startswith(f"row, {key}: ")
    assert not axolotl.whole_config_faults(config | {"bfloat16": True}, "row")


def test_warmup_is_never_left_to_axolotl():
    config = {key: value for key, value in CONFIG.items() if key != "warmup_steps"}
    [line] = axolotl.whole_config_faults(config, "row")

    assert "warmup_steps: missing; axolotl would warm up" in line


@pytest.mark.parametrize("key", axolotl.NEEDED_KEYS)
def test_what_is_needed_is_asked_for(key):
    config = {name: value for name, value in CONFIG.items() if name != key}

    assert f"row, {key}: missing" in axolotl.whole_config_faults(config, "row")[0]


@pytest.mark.parametrize("path", sorted(axolotl.CONFIG_FOLDER.rglob("*.yaml")), ids=str)
def test_shipped_base_configs_have_no_fault(path):
    config = read_yaml(path)

    assert not axolotl.config_faults(config, path.name)
    assert not axolotl.whole_config_faults(config, path.name)


def test_tokenizer_is_the_one_of_the_tokens():
    made = rendered()

    assert made["tokenizer_config"] == "/tokens/key/tokenizer"
    assert made["datasets"] == [{"path": "/tokens/key/tokens", "type": None}]
    assert "chat_template" not in made


def test_launcher_keys_are_never_rendered():
    assert not rendered(accept=["x"], max_samples=4).keys() & axolotl.LAUNCHER_KEYS.keys()


def test_batch_is_divided_over_the_processes():
    made = rendered(replace(SITE, gpus_per_node=4))

    assert made["micro_batch_size"] * made["gradient_accumulation_steps"] * 4 == 16


def test_strategy_of_a_row_outdoes_the_save_steps_of_its_base_config():
    made = experiment(save_strategy="epoch")
    recipe = axolotl.read_recipe(made.config)

    assert "save_steps" not in rendered(save_strategy="epoch")
    assert (recipe.save_steps, recipe.save_each_epoch) == (None, True)


def test_site_says_which_attention_is_used():
    assert rendered(replace(SITE, attn="fa2"))["attn_implementation"] == "flash_attention_2"
    assert rendered(replace(SITE, attn="sdpa"))["attn_implementation"] == "sdpa"


@pytest.mark.parametrize("said", [{}, {"attn_implementation": None}])
def test_packing_names_its_attention_where_a_site_has_none(said):
    site = replace(SITE, attn="auto")
    made = experiment(sample_packing=True)
    made = replace(made, config={**made.config, **said})
    packed = axolotl.render_config(made, site, derive_batch(made, site), PATHS)

    assert packed["attn_implementation"] == "sdpa"
    assert "attn_implementation" not in rendered(site)


def test_row_can_leave_attention_to_the_model():
    overrides, lines = axolotl.read_overrides({"flash_attn": "auto"}, "row")

    assert (overrides, lines) == ({"attn_implementation": None}, [])


def test_our_plugin_stands_before_those_whose_keys_are_set():
    assert rendered(liger_rope=True)["plugins"] == [
        axolotl.PLUGIN,
        "axolotl.integrations.liger.LigerPlugin",
    ]


def test_weights_and_biases_follow_the_site():
    quiet = rendered(replace(SITE, wandb_mode="disabled"))
    told = rendered(replace(SITE, wandb_mode="offline", variables={"WANDB_PROJECT": "p"}))

    assert quiet["use_wandb"] is False and "wandb_project" not in quiet
    assert (told["use_wandb"], told["wandb_project"], told["wandb_mode"]) == (True, "p", "offline")


def test_kernels_of_adapters_are_off_without_a_gpu():
    made = rendered(
        replace(SITE, gpus_per_node=0), adapter="lora", deepspeed=None, micro_batch_size=1
    )

    assert not any(made[key] for key in axolotl.LORA_KERNELS)


def test_tokens_are_asked_for_with_the_template_and_the_mix():
    made = axolotl.render_pretokenize(experiment(), Path("/models/m"), Path("/r"), 8)

    assert made["chat_template"] == "jinja"
    assert made["chat_template_jinja"].endswith("chatml_tools.jinja")
    assert made["special_tokens"] == {"eos_token": "<|im_end|>"}
    assert made["excess_length_strategy"] == "truncate"
    assert made["mix"]["sources"] == [each.name for each in EXPERIMENT.mix.datasets]
    assert not made.keys() & axolotl.LAUNCHER_KEYS.keys()


def test_own_template_of_axolotl_goes_by_its_name():
    made = axolotl.render_pretokenize(
        experiment(template="llama3"), Path("/models/m"), Path("/r"), 8
    )

    assert made["chat_template"] == "llama3" and "chat_template_jinja" not in made


def test_learning_rate_is_science_and_logging_is_not():
    kept = axolotl.science(CONFIG | {"logging_steps": 5, "dataset_num_proc": 8})

    assert "learning_rate" in kept
    assert not kept.keys() & {"logging_steps", "dataset_num_proc", "micro_batch_size"}


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({}, "safetensors"),
        ({"deepspeed": "ds_z3_nogather.json"}, "zero3"),
        ({"adapter": "lora"}, "lora"),
        ({"deepspeed": None, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}, "fsdp"),
    ],
)
def test_layout_follows_from_the_config(changes, layout):
    assert axolotl.read_recipe(experiment(**changes).config).layout == layout


@pytest.mark.parametrize(
    ("changes", "bytes_a_parameter"),
    [
        ({}, (2.0, 2.0, 12.0)),
        ({"deepspeed": None}, (2.0, 2.0, 4.0)),  # weights are loaded in bf16
        ({"deepspeed": None, "bf16": None, "bfloat16": True}, (2.0, 2.0, 4.0)),
        ({"deepspeed": None, "bf16": False}, (4.0, 4.0, 8.0)),
    ],
)
def test_states_are_those_that_axolotl_keeps(changes, bytes_a_parameter):
    states = axolotl.read_recipe(experiment(**changes).config).states

    assert (states.weights, states.gradients, states.optimizer) == bytes_a_parameter


def test_run_without_save_steps_is_saved_by_time():
    recipe = axolotl.read_recipe(experiment(save_steps=None, save_strategy="steps").config)

    assert recipe.saves_by_time and recipe.save_total_limit == 2


@pytest.mark.parametrize(
    ("changes", "package", "words"),
    [
        ({}, "deepspeed", "deepspeed: ds_z3.json"),
        ({"attn_implementation": "flash_attention_2"}, "flash_attn", "attn_implementation"),
        ({"liger_rope": True}, "liger_kernel", "liger_rope"),
        ({"cut_cross_entropy": True}, "cut_cross_entropy", "cut_cross_entropy"),
        ({"load_in_4bit": True}, "bitsandbytes", "load_in_4bit"),
        ({"optimizer": "adamw_bnb_8bit"}, "bitsandbytes", "optimizer: adamw_bnb_8bit"),
        ({"optimizer": "ao_adamw_8bit"}, "torchao", "optimizer: ao_adamw_8bit"),
    ],
)
def test_packages_are_asked_for_with_the_key_that_wants_them(changes, package, words):
    asked = axolotl.needed_packages(experiment(**changes).config, "sdpa")

    assert asked[package].startswith(words)


def test_site_with_flash_attention_asks_for_its_package():
    assert "flash_attn" in axolotl.needed_packages(CONFIG, "fa2")
    assert "flash_attn" not in axolotl.needed_packages(CONFIG, "sdpa")


@pytest.mark.parametrize("key", axolotl.UNMERGED)
def test_adapter_that_could_not_be_released_is_refused_before_it_is_trained(key):
    adapter = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_linear": True}
    [line] = axolotl.whole_config_faults(CONFIG | adapter | {key: True}, "row")

    assert line.startswith(f"row, {key}: leave it out; such an adapter cannot be merged")

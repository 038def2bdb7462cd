"""What a training process of the tests finds imported when it is forked, see tiny_run.py."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}

from sft.trainers.llamafactory import _import_trainer

_import_trainer()

import deepspeed  # noqa: E402, F401  # accelerate imports it whatever is trained
import llamafactory.train.tuner  # noqa: E402, F401
from transformers import LlamaForCausalLM  # noqa: E402, F401

"""What a training process of the tests finds imported when it is forked, see tiny_training.py."""

import os

from sft.trainers.axolotl import SETTINGS

os.environ |= SETTINGS | {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive", "SFT_ON_CPU": "1"}

import axolotl.train  # noqa: F401
from axolotl.core.builders import HFCausalTrainerBuilder  # noqa: F401
from axolotl.utils import trainer  # noqa: F401
from transformers import LlamaForCausalLM  # noqa: F401

import sft.trainers.axolotl_plugin  # noqa: F401

"""How much memory a GPU needs, part by part: only the first part shrinks with more nodes."""

from dataclasses import dataclass

from sft.recipe import Batch, Recipe, States
from sft.sizes import Size

GIB = 2**30
CONTEXT_GIB = 2.0  # a guess: the CUDA context, NCCL's buffers, gaps between allocations
# Bytes a logit without a fused loss: bf16 logits, their fp32 copy, and its softmax or gradient
# (transformers' ForCausalLMLoss). The 18 GiB of which 32k tokens × 151,936 logits are known to run
# out of memory are the fp32 copy alone.
LOGIT_BYTES = 2 + 4 + 4


@dataclass(frozen=True)
class Memory:
    """Memory of one GPU in GiB.

    `states` are weights, gradients and optimizer, which more GPUs share; `gathered` the weights
    that are whole for a moment; `activations` and `logits` belong to the tokens of one process and
    stay the same on any number of nodes. All but `states` are estimates.
    """

    states: float
    gathered: float
    activations: float
    logits: float
    other: float = CONTEXT_GIB

    @property
    def total(self) -> float:
        """All parts together."""
        return self.states + self.gathered + self.activations + self.logits + self.other


def estimate_memory(size: Size, recipe: Recipe, batch: Batch) -> Memory:
    """The memory of a GPU when every sequence of a device batch is `cutoff_len` long."""
    tokens = batch.per_device * recipe.cutoff_len
    return Memory(
        states=state_bytes(size.parameters, recipe.states, batch.world_size) / GIB,
        gathered=_gathered_bytes(size.parameters, recipe.states) / GIB,
        activations=_activation_bytes(size, recipe, tokens) / GIB,
        logits=0 if recipe.fused_loss else LOGIT_BYTES * tokens * size.vocabulary / GIB,
    )


def state_bytes(parameters: int, states: States, world_size: int) -> float:
    """Bytes on one GPU that are there at every moment: a lower bound, without any activation.

    ZeRO divides optimizer (stage 1), gradients (2) and weights (3) by the number of processes
    (arXiv 1910.02054, section 5). What is offloaded counts nothing here; gradients go where the
    optimizer is (ZeRO-Offload, arXiv 2101.06840). An unknown optimizer counts nothing.
    """
    weights = states.weights / (world_size if states.zero_stage >= 3 else 1)
    gradients = states.gradients / (world_size if states.zero_stage >= 2 else 1)
    optimizer = (states.optimizer or 0) / (world_size if states.zero_stage >= 1 else 1)
    if states.optimizer_on_cpu:
        gradients = optimizer = 0
    if states.weights_on_cpu:
        weights = 0
    return parameters * (weights + gradients + optimizer)


def host_bytes(parameters: int, states: States, num_nodes: int) -> float:
    """Bytes of CPU memory that offloaded states take on each node.

    The optimizer, and gradients once as they come and once in fp32 (DeepSpeed's stage3.py); weights
    where they are offloaded too.
    """
    each = states.gradients + 4 + (states.optimizer or 0) if states.optimizer_on_cpu else 0
    if states.weights_on_cpu:
        each += states.weights
    return parameters * each / num_nodes


def _gathered_bytes(parameters: int, states: States) -> float:
    """Weights that are whole on a GPU for a moment.

    ZeRO-3 gathers `stage3_max_live_parameters` at most. Under autocast of fp32 weights a bf16 copy
    of them comes and goes.
    """
    if states.zero_stage >= 3:
        return states.weights * min(parameters, states.max_live_parameters)
    return 2 * parameters if states.weights == 4 else 0


def _activation_bytes(size: Size, recipe: Recipe, tokens: int) -> float:
    """Bytes that the layers keep for the backward pass, in bf16.

    By the counting of Korthikanti et al. (arXiv 2205.05198, section 4.1), for layers without
    dropout and with a gated MLP. A token keeps, in numbers: the inputs of two norms, of the
    attention and of the MLP (4 hidden); queries and the attention's output (2 query), keys and
    values (2 key_value); gate, up, their activation and product (4 inner). Attention scores, 5
    bytes × heads × tokens², are kept by eager attention alone. With recomputation each layer keeps
    its input, and one layer at a time all of the above.
    """
    numbers = 4 * size.hidden + 2 * size.query + 2 * size.key_value + 4 * size.inner
    layer = 2.0 * numbers * tokens
    if recipe.eager_attention:
        layer += 5.0 * size.heads * tokens * recipe.cutoff_len
    if not recipe.recomputes:
        return size.layers * layer
    return size.layers * 2 * size.hidden * tokens + layer

"""Model FLOPs utilisation: the share of the GPUs' peak that goes into training the model."""

import re

from sft.sizes import Size

# Dense bf16 without sparsity, in TFLOP/s, from NVIDIA's data sheets. H200 and GH200 compute as an
# H100 does: what differs is their memory.
PEAKS_TFLOPS = {
    "A100": 312.0,
    "H100": 989.4,
    "H200": 989.4,
    "GH200": 989.4,
    "B200": 2250.0,
    "GB200": 2500.0,
    "L40S": 362.0,
}
# Other forms of a card, by a further word of its name.
OTHER_FORMS = {("H100", "PCIe"): 756.0, ("H100", "NVL"): 835.0, ("H200", "NVL"): 835.5}


def peak_tflops(card: str) -> float | None:
    """The peak of a card by the name that torch gives it; None for one that is not listed.

    Whole words count: "NVIDIA GH200 120GB" is no H200.
    """
    words = re.split(r"[\s_-]+", card)
    for (name, form), peak in OTHER_FORMS.items():
        if name in words and form in words:
            return peak
    return next((peak for name, peak in PEAKS_TFLOPS.items() if name in words), None)


def flops_per_token(size: Size, length: float) -> float:
    """What training on a token of a sequence of `length` tokens computes, without recomputing.

    6 × active parameters that multiply, so without an input embedding that is not the head too
    (Kaplan et al., arXiv 2001.08361), and 6 × layers × query width × tokens of the sequence for
    causal attention (PaLM, arXiv 2204.02311, appendix B, halved), in layers that attend to all of
    it.
    """
    attending = size.layers - size.linear
    return 6.0 * (size.active - size.looked_up) + 6.0 * attending * size.query * length


def utilisation(
    tokens_per_s: float, size: Size, length: float, world_size: int, peak: float
) -> float:
    """The share of `peak` (TFLOP/s of one of `world_size` GPUs) at tokens a second of all."""
    return tokens_per_s * flops_per_token(size, length) / (world_size * peak * 1e12)

"""Model FLOPs utilisation, with numbers that are worked out by hand."""

from dataclasses import replace

import pytest

from sft.mfu import flops_per_token, peak_tflops, utilisation
from sft.sizes import Size

LLAMA3_8B = Size(
    parameters=8_030_261_248,
    active=8_030_261_248,
    layers=32,
    hidden=4096,
    heads=32,
    query=4096,
    key_value=1024,
    inner=14336,
    vocabulary=128256,
    looked_up=525_336_576,
)


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A100-SXM-64GB", 312.0),
        ("NVIDIA A100-PCIE-40GB", 312.0),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H100 NVL", 835.0),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA GH200 120GB", 989.4),
        ("NVIDIA GH200 480GB", 989.4),
        ("GH200", 989.4),
        ("NVIDIA B200", 2250.0),
        ("NVIDIA GB200", 2500.0),
        ("NVIDIA L40S", 362.0),
    ],
)
def test_peak_is_that_of_the_card(card, peak):
    assert peak_tflops(card) == peak


@pytest.mark.parametrize("card", ["NVIDIA RTX A6000", "AMD Instinct MI250X", "XH200", ""])
def test_card_that_is_not_listed_has_no_peak(card):
    assert peak_tflops(card) is None


def test_flops_are_six_for_each_parameter_and_attention():
    # 6 × (8.0303e9 - 128256 × 4096) = 4.5030e10, and 6 × 32 × 4096 × 4096 = 3.22e9.
    assert flops_per_token(LLAMA3_8B, 4096) == pytest.approx(4.8251e10, rel=1e-4)


def test_layers_of_linear_attention_do_not_grow_with_the_sequence():
    hybrid = replace(LLAMA3_8B, linear=24)

    # 8 layers attend: 6 × 8 × 4096 = 196,608 more for each token of the sequence.
    assert flops_per_token(hybrid, 4097) - flops_per_token(hybrid, 4096) == 196_608


def test_utilisation_is_the_share_of_all_cards():
    # 8 × 989.4e12 / 4.8251e10 = 164,042 tokens a second would be all of it.
    assert utilisation(82_021, LLAMA3_8B, 4096, 8, 989.4) == pytest.approx(0.5, rel=1e-3)

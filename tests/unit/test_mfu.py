"""Model FLOPs utilisation, with numbers that are worked out by hand."""

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
    # 6 × 8.030e9 = 4.818e10, and 6 × 32 × 4096 × 4096 = 3.22e9.
    assert flops_per_token(LLAMA3_8B, 4096) == pytest.approx(5.1403e10, rel=1e-4)


def test_utilisation_is_the_share_of_all_cards():
    # 8 × 989.4e12 / 5.1403e10 = 153,983 tokens a second would be all of it.
    assert utilisation(76_991, LLAMA3_8B, 4096, 8, 989.4) == pytest.approx(0.5, rel=1e-3)

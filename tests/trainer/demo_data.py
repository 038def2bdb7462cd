"""The demo's two datasets, as the shipped registry declares them."""

from pathlib import Path

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
REGISTRY = yaml.safe_load((CHECKOUT / "config" / "datasets.yaml").read_text())
DATASETS = {
    name: REGISTRY[name]
    | {"file_name": str(CHECKOUT / "demo" / Path(REGISTRY[name]["file_name"]).name)}
    for name in ("demo_tools", "demo_reasoning")
}

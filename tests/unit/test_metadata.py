"""Front matter of a model card that the hub would refuse is refused here, without asking it."""

import pytest

from sft.errors import SftError
from sft.metadata import check_metadata, metadata_faults

GOOD = {
    "base_model": "Qwen/Qwen3-8B",
    "datasets": ["org/web", "squad"],
    "language": ["en", "code"],
    "library_name": "transformers",
    "license": "apache-2.0",
    "pipeline_tag": "text-generation",
    "tags": ["sft", "llamafactory"],
}


def test_good_front_matter_is_yaml():
    assert check_metadata(GOOD).splitlines()[0] == "base_model: Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"datasets": [None]}, "datasets: found None, expected an id of the hub"),
        ({"datasets": "org/web"}, "datasets: found 'org/web', expected a list"),
        ({"datasets": ["org/web", "/data/x"]}, "datasets: found '/data/x', expected an id"),
        ({"base_model": "/scratch/me/model"}, "base_model: found '/scratch/me/model', expected"),
        ({"base_model": "./model"}, "base_model: found './model', expected an id of the hub"),
        ({"base_model": "~/model"}, "base_model: found '~/model', expected an id of the hub"),
        ({"base_model": "a/b/c"}, "base_model: found 'a/b/c', expected an id of the hub"),
        ({"license": "Apache 2"}, "license: found 'Apache 2', expected an id that the hub lists"),
        ({"license": None}, "license: found None, expected an id that the hub lists"),
        ({"license": "other"}, "license_name: missing, expected the name of a license"),
        ({"license_name": "My Own"}, "license_name: found 'My Own', expected small letters"),
        ({"license_link": "LICENSE"}, "license_link: found 'LICENSE', expected a URL"),
        ({"language": ["English"]}, "language: found 'English', expected a code of ISO 639"),
        ({"language": [True]}, "language: found True, expected a code of ISO 639"),  # `no` in YAML
        ({"tags": ["sft", None]}, "tags: found None, expected a word"),
        ({"tags": ["sft", {"a": 1}]}, "tags: found {'a': 1}, expected a word"),
        ({"pipeline_tag": ""}, "pipeline_tag: found '', expected a word"),
    ],
)
def test_what_the_hub_would_refuse_is_named_by_its_key(change, said):
    (fault,) = metadata_faults(GOOD | change)

    assert fault.startswith(f"model card, {said}")


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(SftError) as refused:
        check_metadata(GOOD | {"datasets": [None], "license": "x"})

    assert len(refused.value.args) == 2

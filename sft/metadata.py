"""The front matter of a model card, held against what the hub takes, without asking the hub."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from huggingface_hub import ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from sft.errors import raise_faults

# https://huggingface.co/docs/hub/repositories-licenses
LICENSES = {
    *("apache-2.0", "mit", "openrail", "bigscience-openrail-m", "creativeml-openrail-m"),
    *("bigscience-bloom-rail-1.0", "bigcode-openrail-m", "afl-3.0", "artistic-2.0", "bsl-1.0"),
    *("bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear", "c-uda", "cc", "cc0-1.0"),
    *("cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0"),
    *("cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-3.0"),
    *("cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0"),
    *("cdla-sharing-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "wtfpl", "ecl-2.0"),
    *("epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1", "eupl-1.2", "agpl-3.0", "gfdl", "gpl"),
    *("gpl-2.0", "gpl-3.0", "lgpl", "lgpl-2.1", "lgpl-3.0", "isc", "lppl-1.3c", "ms-pl"),
    *("mpl-2.0", "odc-by", "odbl", "openrail++", "osl-3.0", "postgresql", "ofl-1.1", "ncsa"),
    *("unlicense", "zlib", "pddl", "lgpl-lr", "deepfloyd-if-license", "llama2", "llama3"),
    *("llama3.1", "llama3.2", "llama3.3", "llama4", "gemma", "unknown", "other"),
}
LICENSE_FILE, LINK = re.compile(r"LICENSE[\w.-]*"), re.compile(r"https?://\S+")
LICENSE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
LANGUAGE = re.compile(r"[a-z]{2,3}|code|multilingual")
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/+-]*")
LISTS = ("datasets", "tags", "language")


def check_metadata(data: Mapping[str, Any]) -> str:
    """The front matter as YAML; SftError with each key that the hub would refuse."""
    raise_faults(metadata_faults(data))
    return ModelCardData(**data).to_yaml()


def metadata_faults(data: Mapping[str, Any]) -> Iterator[str]:
    """A line for each value of a front matter that the hub would refuse."""
    for key in LISTS:
        if key in data and not isinstance(data[key], list):
            yield f"model card, {key}: found {data[key]!r}, expected a list"
    for key in ("base_model", "datasets"):
        for name in _values(data, key):
            if fault := hub_id_fault(name):
                yield f"model card, {key}: {fault}"
    for name in _values(data, "language"):
        if not (isinstance(name, str) and LANGUAGE.fullmatch(name)):
            yield f"model card, language: found {name!r}, expected a code of ISO 639 such as en"
    for key in ("tags", "pipeline_tag", "library_name"):
        for word in _values(data, key):
            if not (isinstance(word, str) and WORD.fullmatch(word)):
                yield f"model card, {key}: found {word!r}, expected a word"
    yield from _license_faults(data)


def hub_id_fault(name: Any) -> str | None:
    """Why a value is no id of a repository on the hub; None where it is one."""
    expected = "expected an id of the hub such as org/name"
    if not isinstance(name, str) or name.startswith((".", "~")):
        return f"found {name!r}, {expected}"
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        return f"found {name!r}, {expected}: {error}"
    return None


def known_license(said: Mapping[str, Any], base: str | None) -> dict[str, Any]:
    """The license keys of the card of the model `base`, in words that the hub takes.

    A license that the hub does not list goes by its own name, as `other`; a link to a file of the
    base leads to the base.
    """
    names = [str(name).lower() for name in _values(said, "license") if name]
    if not names:
        return {}
    link = str(said.get("license_link") or "")
    if base and LICENSE_FILE.fullmatch(link):
        link = f"https://huggingface.co/{base}/blob/main/{link}"
    linked = {"license_link": link} if LINK.fullmatch(link) else {}
    if "other" not in names and LICENSES.issuperset(names):
        return {"license": names[0] if len(names) == 1 else names, **linked}
    name = str(said.get("license_name") or names[0]).lower()
    plain = re.sub(r"[^a-z0-9._]+", "-", name).strip("-._")
    return {"license": "other", "license_name": plain or "unnamed", **linked}


def _license_faults(data: Mapping[str, Any]) -> Iterator[str]:
    for name in _values(data, "license"):
        if name not in LICENSES:
            yield (
                f"model card, license: found {name!r}, expected an id that the hub lists, or other "
                "with license_name"
            )
    name = data.get("license_name")
    if data.get("license") == "other" and name is None:
        yield "model card, license_name: missing, expected the name of a license that is other"
    if name is not None and not LICENSE_NAME.fullmatch(str(name)):
        yield f"model card, license_name: found {name!r}, expected small letters, digits and -._"
    link = data.get("license_link")
    if link is not None and not LINK.fullmatch(str(link)):
        yield f"model card, license_link: found {link!r}, expected a URL"


def _values(data: Mapping[str, Any], key: str) -> Iterable[Any]:
    if key not in data:
        return []
    return data[key] if isinstance(data[key], list) else [data[key]]

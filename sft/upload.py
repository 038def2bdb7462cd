"""A release sent to where the config says: a repository of the hub, or a folder."""

from pathlib import Path
from typing import Any

from sft.experiment import Experiment
from sft.folder_upload import upload_to_folder
from sft.hub_upload import upload_to_hub


def upload_release(
    release: Path, wanted: list[dict], experiment: Experiment, folder: str
) -> dict[str, Any]:
    """Send the files of the manifest `wanted`, and say where they are and what that took.

    `folder` is where releases are copied to; where it is empty, they go to the hub.
    """
    if folder:
        return upload_to_folder(release, wanted, Path(folder).resolve() / experiment.hub_id)
    return upload_to_hub(release, wanted, experiment.hub_id, experiment.private)

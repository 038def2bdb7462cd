"""What Slurm's commands print, taken apart."""

import re


def read_table(text: str, titles: str) -> list[str] | None:
    """The lines below the line of titles, which begins so; None where that is missing.

    An empty list has its titles all the same: without them a command gave no answer. Names of jobs
    may hold any character, and lines end nowhere but at line feeds.
    """
    first, *lines = text.split("\n")
    return [line for line in lines if line] if first.startswith(titles) else None


def read_facts(text: str) -> dict[str, str]:
    """The values by name in what scontrol shows as Name=value; of a value its first word."""
    return dict(re.findall(r"(\w+)=(\S*)", text))


def read_settings(text: str) -> dict[str, str]:
    """Slurm's settings, as scontrol show config prints them."""
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", text, re.MULTILINE))

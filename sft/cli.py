"""The command line: views of what the workflow does, without starting it."""

import argparse
import sys
from pathlib import Path

from tabulate import tabulate

from sft.catalog import read_catalog
from sft.config import read_config, registry_file, results_folder, site_names
from sft.errors import SftError
from sft.registration import registry_place
from sft.results import result_line


def main() -> None:
    """Run one command; a refusal is one message and exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m sft", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    results = commands.add_parser("results", help="losses, releases and the registry")
    _add_site(results)
    results.set_defaults(run=print_results)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except SftError as error:
        sys.exit(str(error))


def _add_site(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", type=Path, required=True, help="the site's profile, as for snakemake"
    )
    parser.add_argument("--configfile", type=Path, nargs="*", default=[])


def print_results(arguments: argparse.Namespace) -> None:
    """Print a table of the site's experiments, and where the report and the registry are."""
    config = read_config(arguments.profile, arguments.configfile)
    catalog = read_catalog(config, site_names())
    results = results_folder(config)
    lines = [result_line(each, results) for each in catalog.experiments.values()]
    print(tabulate(lines, headers="keys"))
    report = results / "report.html"
    if report.exists():
        print(f"\nreport    {report}")
    print(f"registry  {registry_place(registry_file(config))}")

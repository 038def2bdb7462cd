"""The command line: views of what the workflow does, without starting it."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path

from tabulate import tabulate

from sft.catalog import Catalog, decisions_name, read_catalog, tokens_name
from sft.config import read_config, registry_file, results_folder, site_names
from sft.doctor import Printer, has_fault, run_doctor
from sft.doctor import sum_up as sum_up_checks
from sft.drive import submit_drive
from sft.errors import SftError, nearest, raise_faults
from sft.facts import Facts
from sft.files import read_yaml
from sft.gate.gate import judge_findings, summaries
from sft.gate.preview import Sample, preview_text, wants_color
from sft.plan_text import list_findings, list_plans, make_plans, plan_page, sum_up
from sft.receipt import read_receipt
from sft.registration import registry_place, registry_url
from sft.registry import list_models
from sft.registry_text import models_text
from sft.request import read_requests
from sft.results import result_line
from sft.site import Site
from sft.slurm import SlurmAway, read_queue
from sft.status import Queue
from sft.status_text import Screen, screen_of, status_text, watch
from sft.step import REMEDIES, terminal_log
from sft.weights import DTYPE_WORDS


def main() -> None:
    """Run one command; a refusal is one message and exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m sft", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    results = commands.add_parser("results", help="losses, releases and the registry")
    _add_site(results)
    results.set_defaults(run=print_results)
    plan = commands.add_parser(
        "plan", help="what will come of each experiment, and what does not fit"
    )
    _add_site(plan)
    plan.add_argument("experiment", nargs="*", help="a name, or a pattern such as 'delphi-*'")
    plan.set_defaults(run=print_plan)
    preview = commands.add_parser("preview", help="examples as they will be trained, with the loss")
    _add_site(preview)
    preview.add_argument("experiment", help="a name")
    preview.set_defaults(run=print_preview)
    status = commands.add_parser("status", help="what runs, how far, how fast; what has stopped")
    _add_site(status)
    status.add_argument("experiment", nargs="*", help="a name, or a pattern; one name: a page")
    status.add_argument("--watch", action="store_true", help="draw it anew until Ctrl-C")
    status.add_argument("--every", type=float, default=30.0, help="seconds between two drawings")
    status.set_defaults(run=print_status)
    drive = commands.add_parser("drive", help="run snakemake as a Slurm job that renews itself")
    _add_site(drive)
    drive.add_argument("snakemake", nargs="*", help="more for snakemake, after --")
    drive.set_defaults(run=start_drive)
    doctor = commands.add_parser("doctor", help="whether the site is as its profile says")
    _add_site(doctor)
    doctor.add_argument("--network", action="store_true", help="try to reach the hub, too")
    doctor.set_defaults(run=examine_site)
    consolidate = commands.add_parser(
        "consolidate", help="safetensors of the shards in a checkpoint, from anywhere"
    )
    consolidate.add_argument("checkpoint", type=Path, help="a folder with shards")
    consolidate.add_argument("output", type=Path, help="the folder to make")
    consolidate.add_argument("--dtype", choices=DTYPE_WORDS, help="else the trainer's")
    consolidate.add_argument("--base", type=Path, help="a model with its config and tokenizer")
    consolidate.set_defaults(run=consolidate_checkpoint)
    registry = commands.add_parser("registry", help="the registry of models")
    listing = registry.add_subparsers(required=True).add_parser("list", help="what is registered")
    _add_site(listing)
    listing.add_argument("model", nargs="*", help="a name, or a pattern such as 'laion/*'")
    listing.set_defaults(run=print_registry)
    clean = commands.add_parser("clean", help="what a published run needs no more; delete it")
    _add_site(clean)
    clean.add_argument("experiment", help="a name")
    clean.add_argument("--yes", action="store_true", help="delete what is listed")
    clean.set_defaults(run=clean_run)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except SftError as error:
        sys.exit(str(error))
    except BrokenPipeError:  # … | head
        sys.stdout = None
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        sys.exit(f"{error}: {REMEDIES[error.errno]}; then run again")
    except KeyboardInterrupt:
        sys.exit(130)  # as the shell counts a Ctrl-C


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


def print_registry(arguments: argparse.Namespace) -> None:
    """Print the registered models in a table, and which registry that is."""
    file = registry_file(read_config(arguments.profile, arguments.configfile))
    print(models_text(list_models(registry_url(file)), arguments.model))
    print(f"\nregistry  {registry_place(file)}")


def print_plan(arguments: argparse.Namespace) -> None:
    """Print the plan of the named experiments in full, of all in a table; 1 if one is refused."""
    config = read_config(arguments.profile, arguments.configfile)
    catalog = read_catalog(config, site_names())
    facts = Facts(catalog, results_folder(config))
    names = _choose(catalog, arguments.experiment)
    requests = read_requests(read_yaml(_profile_file(arguments.profile)))
    plans, faults = make_plans(catalog, facts, requests, names)
    if arguments.experiment:
        pages = (plan_page(plan, catalog.site, facts, config) for plan in plans)
        print("\n\n".join([*pages, *(f"X {line}" for line in faults)]))
    else:
        print(list_plans(plans, catalog.site))
        print("\n".join(list_findings(plans, faults, most=None)))
    print(sum_up(plans))
    sys.exit(bool(faults or any(plan.refused for plan in plans)))


def print_preview(arguments: argparse.Namespace) -> None:
    """Print what an experiment will train, as the gate saw it; exit code 1 where it is refused."""
    config = read_config(arguments.profile, arguments.configfile)
    catalog = read_catalog(config, site_names())
    experiment = catalog.experiments[_choose(catalog, [arguments.experiment])[0]]
    folder = results_folder(config) / "tokens" / tokens_name(experiment)
    page = folder / f"preview-{decisions_name(experiment)}.html"
    if not (folder / "inspected.json").exists():
        receipt = folder / f"checked-{decisions_name(experiment)}.json"
        raise SftError(
            f"{experiment.name}: its tokens were not inspected yet; first run "
            f"snakemake --profile {arguments.profile} {receipt}"
        )
    inspected = read_receipt(folder / "inspected.json")
    judged = judge_findings(experiment, inspected, config.get("check_limits", {}))
    samples = [Sample.from_json(each) for each in inspected["samples"]]
    width, color = shutil.get_terminal_size().columns, wants_color(sys.stdout, os.environ)
    print(preview_text(summaries(inspected, judged), samples, width, color), end="")
    if page.exists():
        print(f"the same as a page: {page}")
    sys.exit(any(each.verdict == "refused" for each in judged))


def print_status(arguments: argparse.Namespace) -> None:
    """Print a line for each experiment, or a page for one; a driver need not live for it."""
    config = read_config(arguments.profile, arguments.configfile)
    catalog = read_catalog(config, site_names())
    results, names = results_folder(config), _choose(catalog, arguments.experiment)
    in_full = bool(arguments.experiment) and len(names) == 1

    def draw(screen: Screen) -> str:
        return status_text(catalog, results, ask_queue(catalog.site), names, in_full, screen)

    if arguments.watch:
        watch(draw, arguments.every)
    else:
        print(draw(screen_of(sys.stdout)))


def ask_queue(site: Site) -> Queue | None:
    """This user's jobs by name; none at a site without Slurm, None where Slurm does not answer."""
    if site.launcher != "slurm":
        return {}
    try:
        return read_queue()
    except SlurmAway:
        return None


def start_drive(arguments: argparse.Namespace) -> None:
    """Submit a driver, and print how to follow and how to stop it."""
    config = read_config(arguments.profile, arguments.configfile)
    site = read_catalog(config, site_names()).site
    if site.launcher != "slurm":
        raise SftError(f"site {site.name}: has no Slurm; start snakemake itself")
    request = read_requests(read_yaml(_profile_file(arguments.profile)))[""]
    more = [f"--configfile={path}" for path in arguments.configfile] + arguments.snakemake
    print(submit_drive(arguments.profile, request, results_folder(config), more))


def examine_site(arguments: argparse.Namespace) -> None:
    """Print what is found at the site; exit code 1 where something would stop a run."""
    checks = run_doctor(arguments.profile, arguments.configfile, Printer(), arguments.network)
    print(sum_up_checks(checks))
    sys.exit(has_fault(checks))


def consolidate_checkpoint(arguments: argparse.Namespace) -> None:
    """Make whole weights of a checkpoint's shards, and say how far it is."""
    from sft.alone import consolidate_alone  # the hub's client is not for each command

    with terminal_log():
        consolidate_alone(arguments.checkpoint, arguments.output, arguments.dtype, arguments.base)


def clean_run(arguments: argparse.Namespace) -> None:
    """Print what can go of a published run, and delete it where that is asked for."""
    from sft.clean import delete, find_surplus, surplus_text  # it, too, asks the hub

    config = read_config(arguments.profile, arguments.configfile)
    catalog = read_catalog(config, site_names())
    experiment = catalog.experiments[_choose(catalog, [escape(arguments.experiment)])[0]]
    surplus = find_surplus(experiment, Facts(catalog, results_folder(config)))
    print(surplus_text(surplus))
    if surplus.entries and arguments.yes:
        delete(surplus, catalog.site)
        print("deleted; receipts, logs and losses stay")
    elif surplus.entries:
        print("nothing was deleted; with --yes it is")


def _profile_file(profile: Path) -> Path:
    return profile / "config.yaml" if profile.is_dir() else profile


def _choose(catalog: Catalog, patterns: Iterable[str]) -> list[str]:
    """The experiments that the patterns name, all without any; SftError where one names none."""
    names, lines = {}, []
    for pattern in patterns:
        found = [name for name in catalog.experiments if fnmatchcase(name, pattern)]
        names |= dict.fromkeys(found)
        if not found:
            remedy = nearest(pattern, catalog.experiments)
            lines.append(f"no experiment {pattern!r} at {catalog.site.name}; {remedy}")
    raise_faults(lines)
    return list(names or catalog.experiments)

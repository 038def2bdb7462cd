"""The trainers behind one interface; everything else asks `BACKENDS[name]` and not which it is.

Each module has:
    CONFIG_FOLDER               where its base configs lie
    LAUNCHER_KEYS               keys of a base config that are for the workflow, never rendered
    OWNED_KEYS                  keys that no base config may hold, with who sets them
    known_keys()                every key that its parser or the workflow knows
    config_faults(config, where)            what a base config or a row cannot say, a line each
    whole_config_faults(config, where)      what is missing or contradictory once both are merged
    read_overrides(cells, where)            the keys that the cells of a row set, and their faults
    template_description(template)          its control strings, its end of turn, what it adds
    shipped_templates()                     the same of each that a base config names, and of ours
    template_hash(template)                 of a template of ours, None for its own
    token_options(config)                   the keys that decide which tokens are trained
    masking(config)                         what its tokens must look like, for the gate
    decided_faults(config)                  faults that a key of the config asks for
    needed_packages(config, attn)           what has to be importable in its environment, and why
    science(config)                         the keys that change the weights
    read_recipe(config)                     its steps, what it saves, what decides its memory
    render_config(experiment, site, batch, paths)          what the trainer reads
    read_rendered(config)                   its tokens, and the sequences a process takes a step
    render_pretokenize(experiment, paths, num_workers)     what its tokenizing reads
    READS_CONVERSATIONS         whether that reads our reading of the rows, or the rows themselves
    render_registry(experiment, fetched)    where these are, for a backend that reads them
    check_command, pretokenize_command, train_command      argument lists for its environment
None of them imports the trainer: they serve while the Snakefile is parsed.
"""

from sft.backends import axolotl, llamafactory

BACKENDS = {"llamafactory": llamafactory, "axolotl": axolotl}
DEFAULT_BACKEND = "llamafactory"

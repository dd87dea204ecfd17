# Every target makes the virtual environment it needs; nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compilations are cached on disk between tests and runs.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax

.PHONY: setup demo test lint docs bench soak pretrained clean

# The lock pins versions; pyproject.toml says what is needed. The demo installs the core only, the tests everything.
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

soak: $(VENV)/.dev
	$(BIN)/pytest -m soak -s

# The pages go to site/; they load nothing from a network, neither while they are built nor while they are read.
$(VENV)/.docs: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable ".[docs]"
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python docs/gen_reference.py --write
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir site

# Peers live in virtual environments of their own under benchmarks/.venvs, made on the way.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/rollouts.py
	$(BIN)/python benchmarks/collect.py
	$(BIN)/python benchmarks/fqi.py
	$(BIN)/python benchmarks/cheetah.py
	$(BIN)/python benchmarks/ppo.py

# The models that come with the library, from their data on: minutes for each on a GPU, hours for PPO's on a CPU. The same device gives
# the same bytes. PPO's may propose larger rates than the presets': one range for all families.
PPO := pendulum-ppo cartpole-ppo acrobot-ppo mountaincar-ppo
# Of a preset: the trees that are kept, and options of its run.
define published
	$(BIN)/metastep run $(1) --scale full $(3) --out runs/pretrained/$(1)
	$(BIN)/metastep publish runs/pretrained/$(1) --name $(1) --trees $(2) --out src/metastep/pretrained --force

endef
pretrained: $(VENV)/.core
	$(foreach preset,cartpole nav2d minigolf swingup,$(call published,$(preset),5,--device cpu))
	$(call published,halfcheetah,5,--device gpu)
	$(foreach preset,$(PPO),$(call published,$(preset),20,--device gpu --set meta.stepsize_high=0.1))
	$(BIN)/metastep publish $(PPO:%=runs/pretrained/%) --name ppo-classic --trees 20 --out src/metastep/pretrained --force

# What can be made again by a target; runs/ cannot, it holds results.
clean:
	rm -rf $(VENV) .cache build dist site *.egg-info src/*.egg-info benchmarks/.venvs

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
pretrained: $(VENV)/.core
	for preset in cartpole nav2d minigolf swingup halfcheetah; do \
	  if [ $$preset = halfcheetah ]; then device=gpu; else device=cpu; fi; \
	  $(BIN)/metastep run $$preset --scale full --device $$device --out runs/pretrained/$$preset && \
	  $(BIN)/metastep publish runs/pretrained/$$preset --name $$preset --trees 5 --out src/metastep/pretrained --force || exit 1; done
	for preset in $(PPO); do \
	  $(BIN)/metastep run $$preset --scale full --device gpu --set meta.stepsize_high=0.1 --out runs/pretrained/$$preset && \
	  $(BIN)/metastep publish runs/pretrained/$$preset --name $$preset --trees 20 --out src/metastep/pretrained --force || exit 1; done
	$(BIN)/metastep publish $(PPO:%=runs/pretrained/%) --name ppo-classic --trees 20 --out src/metastep/pretrained --force

# What can be made again by a target; runs/ cannot, it holds results.
clean:
	rm -rf $(VENV) .cache build dist site *.egg-info src/*.egg-info benchmarks/.venvs

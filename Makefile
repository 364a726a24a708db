# `make` prints the targets below with their `##` lines; `make test` is what CI runs.

BIN := .venv/bin
STAMP := .venv/.stamp

# Tests start hundreds of interpreters; without bytecode each of them compiles ulak anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup servers browser weasyprint run fmt lint types imports test pytest test-pythons soak bench figures check lock clean

help: ## print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## make .venv from requirements.lock; quick when nothing changed

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" bash scripts/setup.sh
	@touch $@

servers: ## install what tests and benchmarks start for themselves, if it is missing
	@bash scripts/servers.sh

browser: setup ## install Chromium and its fonts, if they are missing
	@bash scripts/browser.sh

weasyprint: setup ## install the libraries of WeasyPrint, if they are missing
	@bash scripts/weasyprint.sh

run: setup ## start the example application, with publishing and cutting, and with PDF rendering where Chromium can be had
	@bash scripts/browser.sh || echo "run: starting without Chromium: PDF jobs fail until" \
		"'make browser' has installed it; everything else works"
	exec env PDF_TEMPLATE_ALLOWLIST="$${PDF_TEMPLATE_ALLOWLIST:-invoice,report,certificate}" \
		$(BIN)/ulak up examples.demo:engine --service pdf,publishing,cutting

fmt: setup ## format the code and fix what ruff can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: setup ## ruff check, ruff format --check, codespell
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

types: setup ## mypy --strict on src/ulak
	$(BIN)/mypy

imports: setup ## imports point the right way (docs/design.md, section 4)
	$(BIN)/lint-imports

check: lint types imports ## lint, types and imports, without the tests

# The checks run beside the tests; each of them fails the target, and none stops another.
test: setup servers browser weasyprint ## everything CI checks
	$(MAKE) --no-print-directory --jobs=2 --keep-going pytest check

pytest: setup
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

test-pythons: setup servers browser weasyprint ## the tests on every Python, the wheel, the lock
	$(BIN)/python -m scripts.pythons $(ARGS)

soak: setup servers browser weasyprint ## what takes long: kills and faults (STORE=postgres, redis), what Prometheus answers, all sampled tests, mutants, a bare Debian; HOURS=3: a load for so long
ifdef HOURS
	exec $(BIN)/python -m bench.soak.hours --hours $(HOURS) --store $(or $(STORE),both) $(ARGS)
else
	$(BIN)/python -m bench.soak --store $(or $(STORE),sqlite) $(ARGS)
ifneq ($(STORE),redis)
	$(BIN)/python -m bench.soak.faults --store $(or $(STORE),sqlite) --seed $(or $(SEED),1)
endif
	$(BIN)/python -m bench.soak.browsers --seed $(or $(SEED),1)
	bash scripts/prometheus.sh
	$(BIN)/python -m tests.tools.prometheus_cases
	$(BIN)/python -m pytest -n auto --dist worksteal --whole -m "sampled or sized"
	$(BIN)/python -m tests.tools.mutate --seed $(or $(SEED),1) --count 60
	bash scripts/rehearse.sh
endif

bench: setup servers browser ## measure speed
	$(BIN)/python -m bench

figures: setup servers browser ## measure every promised figure and write docs/figures.md
	$(BIN)/python -m bench.figures

lock: setup ## write requirements.lock anew (UPGRADE=1: newest versions)
	bash scripts/lock.sh

clean: ## remove .venv, caches and build output
	rm -rf .venv .venvs dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two commands are the whole set-up: `make repro` and `make test`.
PYTHON ?= python3
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: repro test lint adapter seeds lock

repro: $(VENV)/installed ## run the study: every figure and the report
	dvc repro

test: $(VENV)/installed ## run every test
	python -m pytest -n 2 --dist loadfile

lint: $(VENV)/installed ## formatter, linters, types, and the direction of imports
	ruff format --check .
	ruff check .
	mypy
	lint-imports

adapter: $(VENV)/installed ## train the adapter of reader=minilm_ready again (half an hour)
	dvc exp run -S reader=minilm -S training=adapter finetune
	cp data/reader/adapter/* data/reader/reader.json data/readers/minilm_ready/

seeds: $(VENV)/installed ## train reader=minilm from five seeds: reports/metrics/reader_seeds.json (40 minutes)
	python benchmarks/reader.py seeds

lock: $(VENV)/installed ## write what is installed here as the new constraints
	pip freeze --exclude bertlift | sed 's/+cpu$$//' > constraints.txt

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "bertlift needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

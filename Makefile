# One way to do each chore; CONTRIBUTING.md says when. PYTHON is the interpreter of the development environment.
PYTHON ?= .venv/bin/python
SANITIZERS = -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined

.PHONY: env build test lint types sanitize tsan fuzz complexity soak servers bench dist readme clean

env:  ## a virtual environment with everything
	python3 -m venv .venv
	.venv/bin/pip install -e ".[dev]"

build:  ## compile the native modules in place
	$(PYTHON) setup.py build_ext --inplace

test:
	$(PYTHON) -m pytest

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	PATH="$(dir $(PYTHON)):$$PATH" cython-lint src

types:
	$(PYTHON) -m mypy

sanitize:  ## the suite without Spark, on modules built with AddressSanitizer and UndefinedBehaviorSanitizer
	PGDECODE_CFLAGS="$(SANITIZERS)" $(PYTHON) setup.py build_ext --inplace --force
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	PYTHONMALLOC=malloc ARROW_DEFAULT_MEMORY_POOL=system $(PYTHON) -m pytest -p no:cacheprovider --ignore-glob="*spark*" \
		--ignore-glob="tests/test_cli*" --ignore=tests/test_readme.py --ignore=tests/test_benchmarks.py
	$(PYTHON) setup.py build_ext --inplace --force

tsan:  ## the tests of threads, on modules built with ThreadSanitizer
	PGDECODE_CFLAGS="-O1 -g -fsanitize=thread" $(PYTHON) setup.py build_ext --inplace --force
	TSAN_OPTIONS="suppressions=tests/tsan.supp exitcode=66" LD_PRELOAD="$$(gcc -print-file-name=libtsan.so)" \
	$(PYTHON) -m pytest -p no:cacheprovider tests/test_threads.py
	$(PYTHON) setup.py build_ext --inplace --force

complexity:  ## whether a byte costs the same in much hostile data as in little, in instructions
	$(PYTHON) tests/complexity.py

soak:  ## fifty million messages, with memory watched
	$(PYTHON) tests/soak.py

servers:  ## random scenarios on PostgreSQL servers, everything that reads them compared
	cd tests && PYTHONPATH=.. $(abspath $(PYTHON)) -m servers --install ../build/servers

fuzz:  ## long property runs
	$(PYTHON) -m pytest tests/test_fuzz.py tests/test_messages.py --hypothesis-profile=long

bench:
	$(PYTHON) -m benchmarks

dist:  ## sdist and wheel
	$(PYTHON) -m build

readme:  ## write the generated parts of README.md anew
	$(PYTHON) -m tests.readme

clean:
	rm -rf build dist *.egg-info pgdecode/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis

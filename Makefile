# One way to do each chore; CONTRIBUTING.md says when. PYTHON is the interpreter of the development environment.
PYTHON ?= .venv/bin/python
FUZZ_SECONDS ?= 60
SEEDS ?= 1
CASES ?= 10000
SEED ?= 0
SANITIZERS = -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined

.PHONY: env build test test-all lint types sanitize tsan fuzz command-fuzz corpus properties complexity soak runs servers capture-servers bench dist audit readme docs scoreboard killed-drivers store-cost
.PHONY: clean spark-servers

env:  ## a virtual environment with everything
	python3 -m venv .venv
	.venv/bin/pip install -e ".[dev]"

build:  ## compile the native modules in place
	$(PYTHON) setup.py build_ext --inplace

test:  ## the quick tier: everything once
	$(PYTHON) -m pytest -n 2

test-all:  ## everything: captures of all servers, exhaustive and long tests
	$(PYTHON) -m pytest -n 2 -m "" --hypothesis-profile=usual

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	PATH="$(dir $(PYTHON)):$$PATH" cython-lint src tests/fuzz

types:
	$(PYTHON) -m mypy

# In a folder of its own, so that the usual build stays; the safe path keeps that build, which lies in the current
# folder, from being imported instead, also by the processes that tests start.
define instrumented
	PGDECODE_CFLAGS="$(1)" $(PYTHON) setup.py --quiet build --build-base build/$@ --build-lib build/$@/lib
	PYTHONSAFEPATH=1 PYTHONPATH="$(CURDIR)/build/$@/lib" PYTHONMALLOC=malloc ARROW_DEFAULT_MEMORY_POOL=system \
	LD_PRELOAD="$(foreach library,$(2),$$(gcc -print-file-name=$(library)))" $(3) $(PYTHON) -m pytest -m "" -p no:cacheprovider
endef

# A PostgreSQL server started with the sanitizers' libraries loaded hangs.
sanitize:  ## the suite without Spark and servers, on modules built with AddressSanitizer and UndefinedBehaviorSanitizer
	$(call instrumented,$(SANITIZERS),libasan.so libubsan.so,ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1) --ignore=tests/spark --ignore=tests/cli --ignore=tests/integration --ignore=tests/capture

tsan:  ## the tests of threads, on modules built with ThreadSanitizer
	$(call instrumented,-O1 -g -fsanitize=thread,libtsan.so,TSAN_OPTIONS="suppressions=tests/tsan.supp exitcode=66") \
		tests/payloads/test_threads.py

complexity:  ## whether a byte costs the same in much hostile data as in little, in instructions
	$(PYTHON) tests/robustness/complexity.py

soak:  ## fifty million messages, with memory watched
	$(PYTHON) tests/robustness/soak.py

runs:  ## sequences cut into runs, with killed processes, compared with one run over everything
	PYTHONPATH=tests:tests/runs $(PYTHON) -m run_campaign --captures --spark

killed-drivers:  ## drivers killed at 30 random points, on emulators of object stores
	PYTHONPATH=tests $(PYTHON) tests/storage/killed_drivers.py

store-cost:  ## CPU time of decoding through the S3 emulator, beside copying
	MIMALLOC_PURGE_DELAY=-1 PYTHONPATH=tests:. $(PYTHON) tests/storage/store_cost.py  # as the workers of Spark

servers:  ## random scenarios on PostgreSQL servers, everything that reads them compared
	PYTHONPATH=tests $(PYTHON) -m servers --install build/servers
	PYTHONPATH=tests $(PYTHON) -m servers.type_changes --servers build/servers

capture-servers:  ## capture of random workloads on PostgreSQL servers that are killed, restarted and cut
	PYTHONPATH=tests:tests/capture $(PYTHON) -m campaign --install build/servers

fuzz:  ## coverage-guided, FUZZ_SECONDS in all; needs clang, and says so
	PYTHONPATH=tests $(PYTHON) -m fuzz run --seconds $(FUZZ_SECONDS)

command-fuzz:  ## random command lines over damaged files and folders, CASES of them, by SEED
	PYTHONPATH=tests $(PYTHON) -m command_fuzz --cases $(CASES) --seed $(SEED)

corpus:  ## the least of what the fuzzer has found on this machine and the repository has, as tests/fuzz/corpus
	PYTHONPATH=tests $(PYTHON) -m fuzz merge

properties:  ## long property runs with random data, then SEEDS runs of all property tests
	PGDECODE_TEST_SEED=$${PGDECODE_TEST_SEED:-random} $(PYTHON) -m pytest tests/property/test_mutations.py tests/envelope/test_decode.py tests/property/test_random_sequences.py -m "" --hypothesis-profile=long
	for seed in $$(shuf -i 1-4294967295 -n $(SEEDS)); do \
		PGDECODE_TEST_SEED=$$seed $(PYTHON) -m pytest -q -n 2 -m hypothesis --ignore=tests/spark || exit 1; \
	done

spark-servers:  ## tests of a standalone cluster and of Spark Connect, and the tests of jobs on both
	$(PYTHON) -m pytest -m "" tests/spark/servers
	PGDECODE_TEST_SPARK=cluster $(PYTHON) -m pytest tests/spark/jobs
	PGDECODE_TEST_SPARK=connect $(PYTHON) -m pytest tests/spark/jobs

bench:
	$(PYTHON) -m benchmarks

dist:  ## sdist and wheel, by the build tools that .ci/build-requirements.txt pins
	python3 -m venv build/tools
	build/tools/bin/pip install --quiet --require-hashes -r .ci/build-requirements.txt
	build/tools/bin/python -m build --no-isolation --outdir $(or $(DIST),dist) >build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@ls $(or $(DIST),dist)/pgdecode-*

audit:  ## known vulnerabilities in what the environment holds
	.ci/audit

readme:  ## write the generated parts of SECURITY.md and docs/ anew
	$(PYTHON) -m tests.support.docs.generated

docs:  ## the documentation as a site, in build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet

scoreboard:  ## other decoders on the conformance suite: installs them by pip and npm, and writes docs/scoreboard.md
	$(PYTHON) tests/conformance/scoreboard.py

clean:
	find pgdecode -name '*.so' -delete
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

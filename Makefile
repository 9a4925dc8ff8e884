# One way to do each chore; `make help` lists all of them and says when. PYTHON is the interpreter of the development
# environment.
PYTHON ?= .venv/bin/python
EXTRAS ?= dev
FUZZ_SECONDS ?= 60
SEEDS ?= 1
CASES ?= 10000
SEED ?= 0
MARKS ?= not full
SANITIZERS = -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined
LIST = awk -F ':  [^\#]*\#\# ' '/^[a-z-]+:  .*\#\# /{printf "  %-16s %s\n", $$1, $$2} $(1)' Makefile

.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' Makefile)

main:
	@$(call LIST,/^help:/{exit})

env:  ## .venv with everything; EXTRAS=test: only what the tests need
	python3 -m venv .venv
	.venv/bin/pip install --quiet -e '.[$(EXTRAS)]'

test:  ## before each commit: the quick tests, under four minutes on two cores
	$(PYTHON) -m pytest -n 2

lint:  ## before each commit: style of Python and Cython
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	PATH="$(dir $(PYTHON)):$$PATH" cython-lint src tests/fuzz

docs:  ## after a change to a docstring or a page: the site in build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet

bench:  ## before and after a change made for speed: quote both results in the commit
	$(PYTHON) -m benchmarks

help:  ## all chores
	@$(call LIST)

# -- tests -------------------------------------------------------------------------------------------------------------

check:  ## in a fresh clone: the environment of the tests, then the quick tests
	$(MAKE) --no-print-directory env EXTRAS=test
	$(MAKE) --no-print-directory test

build:  ## after each change under src/, also one that you have pulled: compile the native modules in place
	$(PYTHON) setup.py build_ext --inplace

types:  ## before each commit: mypy
	$(PYTHON) -m mypy

test-all:  ## before a release: all tests, also long ones that .ci/run leaves out; 25 examples instead of 10
	$(PYTHON) -m pytest -n 2 -m "" --hypothesis-profile=usual

# In a folder of its own, so that the usual build stays; the safe path keeps that build, which lies in the current
# folder, from being imported instead, also by the processes that tests start.
define instrumented
	PGDECODE_CFLAGS="$(1)" $(PYTHON) setup.py --quiet build --build-base build/$@ --build-lib build/$@/lib
	PYTHONSAFEPATH=1 PYTHONPATH="$(CURDIR)/build/$@/lib" PYTHONMALLOC=malloc ARROW_DEFAULT_MEMORY_POOL=system \
	LD_PRELOAD="$(foreach library,$(2),$$(gcc -print-file-name=$(library)))" $(3) $(PYTHON) -m pytest -m "" -p no:cacheprovider
endef

# PostgreSQL and Java do not run with the sanitizers' libraries loaded.
sanitize:  ## after each change under src/: quick tests without Spark and servers under AddressSanitizer and UBSan; MARKS= for all
	$(call instrumented,$(SANITIZERS),libasan.so libubsan.so,ASAN_OPTIONS=detect_leaks=0 \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1) --ignore=tests/spark --ignore-glob='*/test_spark_*' \
	-n 2 --ignore=tests/cli --ignore=tests/integration --ignore=tests/capture -m "$(MARKS)"

tsan:  ## after a change to data that threads share: tests of threads under ThreadSanitizer; a missing wake-up makes them hang
	$(call instrumented,-O1 -g -fsanitize=thread,libtsan.so,TSAN_OPTIONS="suppressions=tests/tsan.supp exitcode=66") \
		tests/payloads/test_threads.py

no-memory:  ## after a change to allocations: all tests, and each allocation fails in turn
	PGDECODE_TEST_ALLOCATIONS=0 $(MAKE) test-all

fuzz:  ## after each change under src/: libFuzzer for FUZZ_SECONDS (60); needs clang, and says so
	PYTHONPATH=tests $(PYTHON) -m fuzz run --seconds $(FUZZ_SECONDS)

corpus:  ## after a long run of the fuzzer: its new inputs, minimised, to tests/fuzz/corpus
	PYTHONPATH=tests $(PYTHON) -m fuzz merge

command-fuzz:  ## after a change to cli, files or datasets: CASES (10000) random command lines over damaged files, by SEED
	PYTHONPATH=tests $(PYTHON) -m command_fuzz --cases $(CASES) --seed $(SEED)

properties:  ## after a change to the walker or the rules of transactions: long property tests with random data, by SEEDS
	PGDECODE_TEST_SEED=$${PGDECODE_TEST_SEED:-random} $(PYTHON) -m pytest tests/property/test_mutations.py tests/envelope/test_decode.py tests/property/test_random_sequences.py -m "" --hypothesis-profile=long
	for seed in $$(shuf -i 1-4294967295 -n $(SEEDS)); do \
		PGDECODE_TEST_SEED=$$seed $(PYTHON) -m pytest -q -n 2 -m hypothesis --ignore=tests/spark || exit 1; \
	done

net-changes:  ## after a change to net changes: all captures, and random tables under ALTER TABLE with random data, by SEEDS
	for seed in $$(shuf -i 1-4294967295 -n $(SEEDS)); do \
		PGDECODE_TEST_SEED=$$seed $(PYTHON) -m pytest -q -n 2 -m "" --hypothesis-profile=long tests/net || exit 1; \
	done

complexity:  ## after a change to code that processes many items: instructions per byte in little and much hostile data; needs valgrind
	$(PYTHON) tests/robustness/complexity.py

soak:  ## before a release: fifty million messages in constant memory
	$(PYTHON) tests/robustness/soak.py

# The emulator of Azure's object store; that of S3 comes with the environment.
AZURITE = build/azurite/node_modules/.bin/azurite-blob
$(AZURITE):
	npm install --prefix build/azurite --omit=dev --no-audit --no-fund --loglevel=error azurite@3 >/dev/null

runs:  $(AZURITE)  ## after a change to the rules of transactions or to data sets: sequences cut into calls and killed, compared with one call
	PYTHONPATH=tests:tests/datasets $(PYTHON) -m run_campaign --captures --spark --stores some

killed-drivers:  $(AZURITE)  ## after a change to object stores: drivers killed at 30 random points, on emulators
	PYTHONPATH=tests:tests/datasets $(PYTHON) -m run_campaign --trials 0 --killed 30 --spark --stores all

store-cost:  ## after a change to object stores: CPU time of decoding through the S3 emulator, beside copying
	MIMALLOC_PURGE_DELAY=-1 PYTHONPATH=tests:. $(PYTHON) tests/storage/store_cost.py  # as the workers of Spark

servers:  ## after a change to the rules of transactions: random scenarios on PostgreSQL 10 to 18, installed by npm
	PYTHONPATH=tests $(PYTHON) -m servers --install build/servers
	PYTHONPATH=tests $(PYTHON) -m servers.type_changes --servers build/servers

capture-servers:  ## after a change to capture: random workloads on PostgreSQL 10 to 18, killed, restarted and cut
	PYTHONPATH=tests:tests/capture $(PYTHON) -m campaign --install build/servers
	PYTHONPATH=tests:tests/capture $(PYTHON) -m flips --flips 1000

sync-servers:  ## after a change to pgdecode/lake: targets synced from PostgreSQL 10 to 18, killed, deleted and restored
	PYTHONPATH=tests:tests/lake $(PYTHON) -m sync_campaign --install build/servers

iceberg-rest:  ## after a change to pgdecode/lake/iceberg.py: tables in the REST catalog of Iceberg's own tests; needs Maven
	mkdir -p build/iceberg-rest
	mvn -q -f tests/lake/rest/pom.xml dependency:build-classpath -Dmdep.outputFile=$(CURDIR)/build/iceberg-rest/classpath
	$(PYTHON) -m pytest -m "" tests/lake/test_iceberg_rest.py

killed-lakes:  ## after a change to pgdecode/lake: runs of apply killed 100 times at random, in each format
	PYTHONPATH=tests:tests/lake $(PYTHON) -m killed_runs --kills 100

sync-soak:  ## before a release: 1,000 cycles of a sync, with memory, open files and the cost of a cycle that stay the same
	PYTHONPATH=tests:tests/lake $(PYTHON) -m sync_soak

spark-lakes:  ## after a change to spark_udfs/lake: Delta and Iceberg on the newest Spark that both have jars for
	$(PYTHON) -m pytest -m "" tests/spark/lake

spark-servers:  ## after a change to spark_udfs/runtime or jobs: a standalone cluster and Spark Connect
	$(PYTHON) -m pytest -m "" tests/spark/servers
	PGDECODE_TEST_SPARK=cluster $(PYTHON) -m pytest tests/spark/jobs
	PGDECODE_TEST_SPARK=connect $(PYTHON) -m pytest tests/spark/jobs

# -- what is generated, and releases -----------------------------------------------------------------------------------

readme:  ## after a change to messages, limits, errors, types or options: the tables in SECURITY.md and docs/
	$(PYTHON) -m tests.support.docs.generated

peers:  ## before a benchmark beside other decoders: builds and installs them, where cargo, go, npm and pip are
	$(PYTHON) -m benchmarks.peers --install

scoreboard:  peers  ## after a change to tests/conformance: docs/scoreboard.md of other decoders
	PYTHONPATH=. $(PYTHON) tests/conformance/scoreboard.py

dist:  ## for a release: sdist and wheel, by the build tools that .ci/build-requirements.txt pins by hash
	python3 -m venv build/tools
	build/tools/bin/pip install --quiet --require-hashes -r .ci/build-requirements.txt
	build/tools/bin/python -m build --no-isolation --outdir $(or $(DIST),dist) >build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@ls $(or $(DIST),dist)/pgdecode-*

audit:  ## known vulnerabilities in what the environment holds; CI runs it
	.ci/audit

clean:  ## remove what was built and cached
	find pgdecode -name '*.so' -delete
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

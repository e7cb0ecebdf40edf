# Build:   make && make install      (PG_CONFIG=/path/to/pg_config picks the server)
# Test:    make installcheck         against a running server that preloads dlock
#
# The targets below need no server: they install what is missing on a Debian
# machine, and use throw-away clusters.
#
#   make demo       two workers, one job, one death
#   make test       every suite; ONLY=regress, isolation, tap or t/NAME.pl for a part
#   make test-all   builds and tests on every supported PostgreSQL (VERSIONS="18 19")
#   make bench      what a call costs, beside what it replaces
#   make torture    SECONDS=60 SEED=…: tries to break every promise
#   make teeth      whether the torture notices a dlock that is broken

EXTENSION = dlock
MODULE_big = dlock
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))
DATA = dlock--1.0.sql
EXTRA_CLEAN = tmp_check

# In the order of a first acquaintance; each stands on its own.
REGRESS = install settings lease null errors transactions takeover history revoke \
	refused snapshot roles waiting share capacity sessions reentry all_or_none \
	definitions notify protect stats maintenance verify privileges hostile

ISOLATION = $(patsubst test/isolation/specs/%.spec,%,$(sort $(wildcard test/isolation/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test/isolation

# TAP tests need IPC::Run, so a plain installcheck leaves them out; add TAP_TESTS=1.
PROVE_TESTS = test/t/*.pl

DLOCK_VERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" dlock.control)
PG_CPPFLAGS = -DDLOCK_VERSION='"$(DLOCK_VERSION)"'

# Two exceptions for what the server's macros ask for: PG_FUNCTION_ARGS is not
# always looked at, and lengthof() is unsigned.  Clang does not know all of the
# flags that the server was built with.
PG_CFLAGS = -Wall -Wextra -Werror -Wno-unused-parameter -Wno-sign-compare \
	$(if $(findstring clang,$(CC)),-Wno-ignored-optimization-argument -Wno-ignored-attributes -Wno-unknown-warning-option)

# No bitcode: JIT inlines expressions, and no function here is worth it.
override with_llvm := no

all:

.PHONY: all listed demo test test-all bench torture teeth
demo test test-all bench teeth:
	@test/run $@

# SECONDS is a name that the shell has a use for.
torture:
	@TORTURE="SECONDS=$(SECONDS) SEED=$(SEED) CLIENTS=$(CLIENTS)" test/run $@

PG_CONFIG ?= pg_config
PGXS := $(wildcard $(shell $(PG_CONFIG) --pgxs 2>/dev/null))
ifneq ($(PGXS),)

include $(PGXS)

# PGXS keeps no track of headers.
$(OBJS): $(wildcard src/*.h) dlock.control

PROVE_FLAGS += --timer -j2 -I test/t

# A test that nobody runs looks like one that passes.
installcheck: $(if $(REGRESS),listed)
listed:
	@for t in $(filter-out $(REGRESS),$(basename $(notdir $(wildcard sql/*.sql)))); do \
		echo "sql/$$t.sql is not in REGRESS, in the Makefile" >&2; exit 1; done

else

all install uninstall installcheck clean:
	@echo "$(PG_CONFIG) knows no PGXS: install the server's development package, or set PG_CONFIG" >&2; exit 1

endif

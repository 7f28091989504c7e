# Everything a person types in this checkout. GNU make 3.81 and POSIX sh are enough; the work is
# done by the scripts in make/, run with a Python that make/python.sh finds.

SHELL = /bin/sh
TORCH ?= torch==2.13.0
PYTHON ?=
T ?=
N ?=
export TORCH PYTHON

python = sh make/python.sh
venv = .venv/bin/python

.PHONY: help demo test check venv dashboard docs reference types screens soak bench figures recording paths house map pictures trace fresh clean
.NOTPARALLEL:

help:
	@echo 'make demo         see it work: four processes train a small model on this machine'
	@echo 'make venv         everything for development, in .venv/'
	@echo 'make check        format, lint, types, import map, unit tests: under a minute'
	@echo 'make test         all short tests; T=cli runs those in tests/cli alone'
	@echo 'make dashboard    build the dashboard, with the Node here or one it fetches'
	@echo 'make docs         build the manual into .build/site; a dead link fails'
	@echo 'make reference    the generated pages of docs/reference, after a change of what they describe'
	@echo 'make types        what the dashboard knows of the API, after a change of the routes'
	@echo 'make screens      pictures of the dashboard at work, for docs/screens; T=overview that view alone'
	@echo 'make soak         the long tests; T=launch those in tests/launch alone'
	@echo 'make bench        measure beside torchx and torchrun; T=launch that area alone, N=30 samples;'
	@echo '                  T=control beside wandb and mlflow, T=scale ten thousand agents,'
	@echo '                  T=plane jobs and metrics beside mlflow, T=dashboard the page in a browser'
	@echo "make figures      README's table of figures, after a bench"
	@echo 'make recording    the animated recording of the demo in docs/pictures, after a change of it'
	@echo 'make paths        the files that four call paths pass, traced; OUT=file.json keeps them'
	@echo 'make house        how the package is folded, in figures; OUT=file.json keeps them'
	@echo 'make map          docs/internals/map.md, after modules or traced paths have changed'
	@echo 'make pictures     docs/pictures, after a change of the states, the rooms or the trace'
	@echo 'make trace        kill ranks, record what follows and when, and draw it; for a quiet machine'
	@echo 'make fresh        demo and check in a new clone, as an ordinary user with an empty home'
	@echo 'make clean        remove what make made'
	@echo
	@echo 'PYTHON=/path/to/python   the Python to build with (3.11 or newer)'
	@echo 'TORCH=torch==2.13.0      the torch to install, with any pip option after it'

demo:
	@$(python) make/venv.py demo
	@$(venv) make/demo.py

venv:
	@$(python) make/venv.py dev

check: venv
	@$(venv) make/check.py check

test: venv
	@sh make/apt.sh
	@$(venv) make/check.py test $(T)

dashboard:
	@$(python) make/dashboard.py --fetch

docs: venv
	@$(venv) make/docs.py

reference: venv
	@$(venv) make/reference.py

types: venv
	@$(venv) make/openapi.py

screens: venv
	@sh make/apt.sh
	@$(venv) make/screens.py $(T)

soak: venv
	@sh make/apt.sh
	@$(venv) make/check.py soak $(T)

bench: venv
	@$(python) make/venv.py peers
	@case ' $(T) ' in *' control '*|*' plane '*) $(python) make/venv.py trackers;; esac
	@for area in $(or $(T),cli launch); do \
	  $(venv) -m benchmarks.run $$area $(if $(N),-n $(N)) --peers .build/peers \
	    --out docs/evidence/bench-$$area.json || missed=1; \
	done; test -z "$$missed"

figures:
	@$(python) make/figures.py

recording: venv
	@$(venv) make/recording.py

paths: venv
	@$(venv) make/paths.py $(if $(OUT),--out $(OUT))

house:
	@$(python) make/house.py $(if $(OUT),--out $(OUT))

map:
	@$(python) make/map.py

pictures:
	@$(python) make/pictures.py

trace: venv
	@$(venv) -m pytest -q -m soak tests/live/test_after_a_kill.py
	@$(python) make/pictures.py

fresh:
	@$(python) make/fresh.py

clean:
	rm -rf .venv .build .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist

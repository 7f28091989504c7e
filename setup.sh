#!/bin/sh
# The same as `make venv`: a development environment in .venv/.
cd "$(dirname "$0")" && exec make venv

#!/usr/bin/env bash
# Tests the boards in this folder without KiCad: net lists, copper, sizes, values. It needs python3 only.
# Usage: test.sh            ends with "N passed, N failed"
#        test.sh --broken   breaks a copy of the files in many ways, and checks that the tests notice each
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONDONTWRITEBYTECODE=1
exec python3 led-module/test_module.py "$@"

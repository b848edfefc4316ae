#!/usr/bin/env bash
# As test_save_fails.sh, for the program whose checkpoints are written while training goes on, one after
# each step: a thread of its own writes them, and meets with all that can go wrong.
program=04_ddp_launcher
within=1
# shellcheck source=tests/test_save_fails.sh
. "$SRC/tests/test_save_fails.sh"

#!/usr/bin/env bash
# The same as test_save_fails.sh for a program in which a second thread writes the checkpoints while
# training continues, one after each step.
program=04_ddp_launcher
within=1
# shellcheck source=tests/test_save_fails.sh
. "$SRC/tests/test_save_fails.sh"

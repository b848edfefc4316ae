#!/usr/bin/env bash
# Each recipe is a file of words. Two steps must accept it, and their --help must show its values: the first step that
# has its options, and the last step.
. "$SRC/tests/test.sh"

for recipe in "$SRC"/recipes/*; do
    name=${recipe##*/}
    for header in "# Source: " "# Published" "@recipes/$name"; do
        check "$name: $header" grep -q "^#.*${header#\# }" "$recipe"
    done
    first=01_single_gpu
    grep -q '^--lr-scale' "$recipe" && first=03_ddp_fork
    grep -q '^--clip-norm' "$recipe" && first=05_ddp_amp
    for program in $first 07_dist_eval; do
        expect 0 "" "$BUILD/$program/train" "@$recipe" --help all
        help=$(tr -s ' \n' ' ' <output)
        while read -r option value; do
            case $option in
            --no-nesterov) option=nesterov value=no ;;
            --nesterov) value=yes ;;
            esac
            value=$(sed 's/^1e-4$/0.0001/; s/^5e-5$/5e-05/' <<<"$value")
            check "$name: $program $option $value" grep -qE -- "${option#--} [^[]*\[$value\]" <<<"$help"
        done < <(grep '^--' "$recipe")
    done
done
check "there are recipes" test "$passed" -gt 200

test_done

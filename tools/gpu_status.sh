#!/usr/bin/env bash
# gpu_status.sh - the table of docs/gpu.md: which GPU code has been tested where.
#
#   gpu_status.sh [REPORT...]     prints it with these results of ./ddp bundle or ./ddp doctor --gpu --report
#   gpu_status.sh --write         writes it into docs/gpu.md, with the reports in docs/gpu-reports/*.txt
#   gpu_status.sh --rows          prints the rows and their tests
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")

# What | tests with the stand-in | on one GPU | on two GPUs | on two nodes. A cell is filled when all its tests have
# passed in one report. -: none; ?: there is no test yet.
print_rows()
{
    local tool
    cat <<'END'
streams, events, recorded steps | test_streams_fake | test_streams_cuda | - | -
operations in f32 | test_ops_fake | test_ops_cuda | - | -
operations in bf16 and fp16 | test_ops_fake test_amp_ops_fake | test_ops_cuda test_amp_ops_cuda | - | -
layers of a transformer, in f32, bf16 and fp16 | test_transformer_ops_fake | test_transformer_ops_cuda | - | -
TF32 | - | twice_tf32 recorded_tf32 | - | -
loader and augmentation | test_loader_fake | test_loader_cuda | - | -
networks, inference | test_model_fake | test_model_cuda | - | -
a step like PyTorch's, f32 | test_step_fake | test_step_cuda | - | -
a step like PyTorch's, bf16 and fp16 | test_step_amp_fake | test_step_amp_cuda | - | -
a GPT's step like PyTorch's, f32, bf16 and fp16 | test_gpt_step_fake | test_gpt_step_cuda | - | -
a GPT: recorded and not, the same bits | test_fake_gpt | recorded_gpt_tf32 recorded_gpt_fp16 | - | -
01, 02, 03 and 07, one rank: the same bits | test_fake_cuda | steps_alike | - | -
04, 05 and 06, one rank: the same bits | - | steps_alike | - | -
`--deterministic`: the same bits twice | test_fake_cuda | twice_f32 twice_tf32 twice_fp16 twice_bf16 | - | -
recorded and not: the same bits | test_fake_cuda | recorded_f32 recorded_tf32 recorded_fp16 | - | -
02: devices of one process | test_replicas_fake test_fake_cuda | test_replicas_cuda | devices_2 | -
03: NCCL | test_fake_cuda | nccl_refuses_two | nccl_2_ranks | -
07: NCCL, by a launcher | test_fake_cuda | nccl_refuses_launched | nccl_2_launched | ?
NCCL: fp16, short messages, batches in parts | test_fake_cuda | - | nccl_2_fp16 | ?
SyncBN | test_ops_fake test_fake_cuda | test_ops_cuda gloo_2_sync_bn | nccl_2_sync_bn | ?
cuda-gloo: ranks share a GPU | test_fake_cuda | gloo_2_ranks gloo_4_ranks gloo_2_launched gloo_4_launched | - | ?
06: a job under Slurm | - | ? | ? | ?
`./ddp run` checks the GPU first | test_gpu_check | ? | ? | -
END
    for tool in memcheck racecheck initcheck synccheck; do
        case $tool in
        memcheck | initcheck) row="$tool | - | ${tool}_lenet ${tool}_resnet18 ${tool}_resnet18_fp16" ;;
        *) row="$tool, our kernels | - | ${tool}_lenet ${tool}_resnet18_fp16" ;;
        esac
        echo "compute-sanitizer, $row | - | -"
    done
}

# A report has a line "gpu: NAME", and lines "result: TEST pass", FAIL or skipped.
print_table()
{
    echo "| | compiled | stand-in | one GPU | two GPUs | two nodes |"
    echo "|---|---|---|---|---|---|"
    awk -F ' *[|] *' '
        FILENAME != "-" {
            if (sub(/^gpu: /, "")) gpu[FILENAME] = $0
            if (split($0, word, " ") == 3 && word[1] == "result:") result[FILENAME, word[2]] = word[3]
            files[FILENAME] = 1
            next
        }
        function cell(names,    n, name, i, file, passed, wrong, text) {      # of a row, over all reports
            if (names == "-") return ""
            n = split(names, name, " ")
            for (file in files) {
                passed = 0
                for (i = 1; i <= n; i++) {
                    if (result[file, name[i]] == "pass") passed++
                    if (result[file, name[i]] == "FAIL") wrong = wrong " " name[i]
                }
                if (wrong) return "**failed on " gpu[file] "**:" wrong
                if (passed == n) text = gpu[file]
            }
            return text ? "passed: " text : "not yet"
        }
        {
            stand_in = $2 == "-" ? "" : "passes"
            printf "| %s | yes | %s | %s | %s | %s |\n", $1, stand_in, cell($3), cell($4), cell($5)
        }
    ' "$@" - < <(print_rows)
}

write_table()
{
    local page=$root/docs/gpu.md reports=()
    for report in "$root"/docs/gpu-reports/*.txt; do
        [ ! -f "$report" ] || reports+=("$report")
    done
    print_table "${reports[@]}" >"$page.table"
    awk -v table="$page.table" '
        /^<!-- end of the table -->/ { inside = 0 }
        !inside { print }
        /^<!-- tools\/gpu_status.sh --write -->/ { inside = 1; while ((getline line < table) > 0) print line }
    ' "$page" >"$page.new"
    rm "$page.table"
    mv "$page.new" "$page"
}

case ${1:-} in
--rows) print_rows ;;
--write) write_table ;;
*) print_table "$@" ;;
esac

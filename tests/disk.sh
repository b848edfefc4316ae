# shellcheck shell=bash
# disk.sh - for scripts whose programs meet a disk that fails: LD_PRELOAD="$TMP/fault.so", see tests/shim/fault.c.
#
#   replaces FOLDER NAME...     these files were replaced in turn, says the FAULT_LOG `calls`: each was written beside
#                               its place, synced and renamed, and then the folder was synced

${CC:-cc} -shared -fPIC -O1 -o "$TMP/fault.so" "$SRC/tests/shim/fault.c" || exit 1

# What was opened before the first folder does not count; runs of equal calls count once.
replaces()
{
    local folder=$1 name
    for name in "${@:2}"; do
        printf '%s\n' "open $folder" "open beside $name" "write beside $name" "fsync beside $name" \
            "rename $folder/$name" "close beside $name" "fsync $folder" "close $folder"
    done >wanted
    sed -n '\|^open '"$folder"'$|,$p' calls |
        sed -E 's|^([a-z]+) .*/(.*)\.tmp( .*)?$|\1 beside \2|' | uniq | diff - wanted
}

# shellcheck shell=bash
# disk.sh - for tests of programs that write to a failing disk: LD_PRELOAD="$TMP/fault.so", see tests/shim/fault.c.
#
#   replaces FOLDER NAME...     succeeds if the FAULT_LOG `calls` shows that these files were replaced in turn: each was
#                               written to a temporary file, synced and renamed

${CC:-cc} -shared -fPIC -O1 -o "$TMP/fault.so" "$SRC/tests/shim/fault.c" || exit 1

# Calls before the first unlink of a temporary file do not count, nor do calls for lock files. Calls repeated in a row
# count once.
replaces()
{
    local folder=$1 name
    for name in "${@:2}"; do
        printf '%s\n' "unlink beside $name" "open beside $name" "write beside $name" "fsync beside $name" \
            "rename $folder/$name" "close beside $name"
    done >wanted
    sed -n '\|^unlink .*tmp$|,$p' calls | grep -v '\.lock' |
        sed -E 's|^([a-z]+) .*/(.*)\.tmp( .*)?$|\1 beside \2|' | uniq | diff - wanted
}

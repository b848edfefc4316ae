#!/usr/bin/env bash
# pread and write may transfer fewer bytes than requested, here at most 1000. The program must transfer the rest.
# ctest: TIMEOUT 300
. "$SRC/tests/test.sh"
cat >"$TMP/short.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
enum { MOST = 1000 };
ssize_t pread(int fd, void *to, size_t size, off_t at)
{
    ssize_t (*real)(int, void *, size_t, off_t) = (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    return real(fd, to, size < MOST ? size : MOST, at);
}
ssize_t pread64(int fd, void *to, size_t size, off_t at) { return pread(fd, to, size, at); }
ssize_t write(int fd, const void *from, size_t size)
{
    ssize_t (*real)(int, const void *, size_t) = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    return real(fd, from, size < MOST ? size : MOST);
}
END
check "the shim" "${CC:-cc}" -shared -fPIC -O1 -o "$TMP/short.so" "$TMP/short.c"
for name in test_safetensors test_checkpoint test_pictures; do
    expect 0 "passed, 0 failed" env LD_PRELOAD="$TMP/short.so" "$BUILD/../tests/$name"
done
test_done

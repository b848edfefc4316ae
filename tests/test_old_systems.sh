#!/usr/bin/env bash
# Many clusters have glibc 2.28: no program may need a newer one.
#
# shellcheck disable=SC2317  # functions are called by check
. "$SRC/tests/test.sh"
cat >newer <<'END'
SYS_(pidfd_[a-z_]*|close_range|clone3|openat2|faccessat2|epoll_pwait2|process_madvise|memfd_secret|io_uring_[a-z]*)
CLOSE_RANGE_[A-Z]*
P_PIDFD
(sigabbrev|sigdescr|strerrorname|strerrordesc)_np
close_range|closefrom|gettid|tgkill|getdents64|twalk_r|execveat|_Fork|dl_find_object|mallinfo2
pthread_(clockjoin_np|cond_clockwait|mutex_clocklock|rwlock_clock[a-z]*|attr_setsigmask_np)|sem_clockwait
posix_spawn_file_actions_(addchdir_np|addfchdir_np|addclosefrom_np|addtcsetpgrp_np)
pidfd_[a-z_]*|process_(madvise|mrelease)|epoll_pwait2|mount_setattr|fsopen|open_tree|move_mount
arc4random(_buf|_uniform)?|strlcpy|strlcat|timespec_getres|qsort_r_np|free_sized|memalignment|getrandom_np
END
# newer_in FILE...: prints each use of a name in `newer` outside comments.
newer_in() { sed 's,//.*,,' "$@" | grep -wnE -f newer; }
uses_newer()
{
    local file
    for file in "$SRC"/{common,common/*,common/*/*,0*,tools,exercises/gpu,tests,tests/fake_cuda,docs/reuse}/*; do
        [[ ! $file =~ \.(c|h|cc|cu|cuh)$ ]] || ! newer_in "$file" || echo "in $file"
    done
}
uses_newer >found
check "no name is newer than glibc 2.28" diff found /dev/null
echo "int n = syscall(SYS_pidfd_open, 1); // a use" >use.c
check "a newer name is noticed" newer_in use.c
test_done

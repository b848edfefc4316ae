// tool_old_kernel.c - runs a program as Linux 4.18 would: system calls that are newer do not exist.
//
//   tool_old_kernel PROGRAM [ARGUMENT...]      exit status 77: this system has no seccomp
#include "check.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { FIRST_NEWER = 424 };     // on x86-64 and ARM64: pidfd_send_signal, of Linux 5.1

int main(int argc, char **argv)
{
    static struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, FIRST_NEWER, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = { sizeof rules / sizeof *rules, rules };
    CHECK(argc > 1, "", "which program?");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        return 77;
    execvp(argv[1], argv + 1);
    FAIL("", "%s: %s", argv[1], strerror(errno));
}

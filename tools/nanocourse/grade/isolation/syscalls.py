"""Numbers of the system calls that a student's code needs, for the two architectures that torch has wheels for.

name:x86-64:arm64, a dash if the architecture has none. From the kernel's asm/unistd_64.h and asm-generic/unistd.h; a
test compares them with the headers of the machine it runs on.
"""

from __future__ import annotations

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, and the name in <linux/audit.h>

# Harmless by themselves: what they may touch is decided elsewhere, by Landlock, permissions and limits.
PLAIN = """
    read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70
    close:3:57 lseek:8:62 open:2:- openat:257:56 openat2:437:437 stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79
    statx:332:291 access:21:- faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 getcwd:79:17
    chdir:80:49 fchdir:81:50 getdents:78:- getdents64:217:61 mkdir:83:- mkdirat:258:34 rmdir:84:- unlink:87:-
    unlinkat:263:35 rename:82:- renameat:264:38 renameat2:316:276 ftruncate:77:46 truncate:76:45 fsync:74:82
    fdatasync:75:83 fadvise64:221:223 umask:95:166 statfs:137:43 fstatfs:138:44 sendfile:40:71
    copy_file_range:326:285
    dup:32:23 dup2:33:- dup3:292:24 pipe:22:- pipe2:293:59 poll:7:- ppoll:271:73 select:23:-
    pselect6:270:72 epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 eventfd2:290:19
    mmap:9:222 mprotect:10:226 munmap:11:215 mremap:25:216 madvise:28:233 brk:12:214 msync:26:227 mincore:27:232
    membarrier:324:283
    futex:202:98 futex_waitv:449:449 set_robust_list:273:99 get_robust_list:274:100 rseq:334:293
    set_tid_address:218:96 arch_prctl:158:- sched_yield:24:124 sched_getaffinity:204:123 sched_getparam:143:121
    sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126 getcpu:309:168
    rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137
    rt_sigsuspend:130:133 sigaltstack:131:132 restart_syscall:219:128 nanosleep:35:101 clock_nanosleep:230:115
    clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169 time:201:- times:100:153 getitimer:36:102
    setitimer:38:103 alarm:37:- timer_create:222:107 timer_settime:223:110 timer_delete:226:111
    getrandom:318:278 getrusage:98:165 sysinfo:99:179 uname:63:160 getrlimit:97:163 getpid:39:172 getppid:110:173
    gettid:186:178 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148
    getresgid:120:150 getpgrp:111:- getpgid:121:155 getsid:124:156 getgroups:115:158 capget:125:90 exit:60:93
    exit_group:231:94
"""
# Allowed with some arguments only.
BY_ARGUMENT = """
    clone:56:220 clone3:435:435 kill:62:129 tgkill:234:131 prctl:157:167 ioctl:16:29 prlimit64:302:261
    seccomp:317:277 fcntl:72:25
"""
# For a worker that compiles kernels: the assembler of the CUDA toolkit is a program of its own.
STARTING = """
    execve:59:221 vfork:58:- fork:57:- wait4:61:260 waitid:247:95
"""


def numbers(table: str, machine: str) -> dict[str, int]:
    """The calls of a table that this architecture has, with their numbers."""
    column = ARCHITECTURES[machine][0]
    rows = (row.split(":") for row in table.split())
    return {name: int(own[column]) for name, *own in rows if own[column] != "-"}

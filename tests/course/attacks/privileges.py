"""1.1: a user namespace of its own, root again, higher limits, another owner."""

import os
import resource

from attempts import call, told


def attention(q, k, v, positions):
    return told({
        "namespace": lambda: call("unshare", 0x10000000),
        "root": lambda: os.setresuid(0, 0, 0),
        "limits": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
        "owner": lambda: os.chown(__file__, 0, 0),
        "mode": lambda: os.chmod(__file__, 0o777),
        "mount": lambda: call("mount", b"none", b"/mnt", b"tmpfs", 0, None),
        "dumpable": lambda: call("prctl", 4, 1, 0, 0, 0),
        "new filter": lambda: call("prctl", 22, 2, None, 0, 0),
    })  # fmt: skip

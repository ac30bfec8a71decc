"""1.1: a user namespace of its own, root again, higher limits, another owner."""

import os
import resource

from attempts import call, told


def namespace():
    call("unshare", 0x10020000)  # of users and of mounts: in it one is root
    call("mount", b"none", b"/tmp", b"tmpfs", 0, None)


def attention(q, k, v, positions):
    return told({
        "namespace": namespace,
        "root": lambda: os.setresuid(0, 0, 0),
        "limits": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
        "owner": lambda: os.chown(__file__, 0, 0),
        "mode": lambda: os.chmod(__file__, 0o777),
        "mount": lambda: call("mount", b"none", b"/proc", b"tmpfs", 0, None),
    })  # fmt: skip

"""This server, started for a run and stopped after it: `nanoinfer serve` in a process of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nanobench.core.machine import child_environment

EXTRA = {"ignore_eos": True, "return_token_ids": True}  # fields that it has beside OpenAI's
KEY_VARIABLE = "NANOINFER_API_KEY"  # it would ask for
PATIENCE = 600.0  # seconds that it may take to load, and to capture its graphs
GRACE = 60.0  # seconds from SIGTERM to the end


@contextmanager
def own_server(options: Sequence[str]) -> Iterator[str]:
    """Its URL, once it is ready. options: of `nanoinfer serve`. OSError, with its last words, if it does not start.

    It is in a session of its own, so that Ctrl-C ends the requests first.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "nanoinfer", "serve", "--port", str(port), *options]
    with tempfile.TemporaryFile() as log:
        environment = {name: value for name, value in child_environment().items() if name != KEY_VARIABLE}
        server = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while not _ready(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    said = log.read().decode(errors="replace").strip().splitlines()[-3:]
                    what = "ended" if server.poll() is not None else f"was not ready within {PATIENCE:g} s"
                    raise OSError(f"`{' '.join(command[2:])}` {what}: {' '.join(said) or 'it said nothing'}")
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(GRACE)
            server.kill()
            server.wait()


def _ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False

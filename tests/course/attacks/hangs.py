"""1.1: never answers, and ignores all signals that can be ignored."""

import signal


def attention(q, k, v, positions):
    for number in range(1, 32):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        pass

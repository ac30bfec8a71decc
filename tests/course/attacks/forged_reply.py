"""1.1: messages that no worker would send: too deep, huge numbers, sizes that lie, a tensor of 2^70 columns."""

import struct
import sys

HEADERS = [
    b'{"op":"returned","lines":[],"parts":[],"value":{"T":["float32",[0,1180591620717411303424],0]}}',
    b'{"op":"returned","lines":[],"parts":[],"value":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"op":"returned","lines":[[1]],"parts":{"a":1},"value":1' + b"0" * 4000 + b"}",
    b'{"op":"ask","function":-1,"args":[]}',
]


def attention(q, k, v, positions):
    text = HEADERS[int(q.abs().sum() * 1000) % len(HEADERS)]
    frame = sys._getframe(1)
    replies = frame.f_locals["self"].replies
    text = text.replace(b'"op"', b'"turn":"%s","op"' % frame.f_locals["self"].turn.encode())
    replies.write(struct.pack("<4sIQ", b"NIC1", len(text), 0) + text)
    replies.flush()
    while True:
        pass
